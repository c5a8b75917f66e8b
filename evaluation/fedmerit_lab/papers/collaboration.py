"""What sites gain by collaborating (MCG) and how evenly (CGS), as tables and figures of CYCle (Tastan et al., 2025).

Dice is that of the test cases of all sites together, as in `fedmerit_lab.papers.partitioned_sites`.

What sites hold of each other under CYCle (Tastan et al., 2025), and what becomes of those with wrong masks.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedmerit.errors import BadInput
from fedmerit_evaluation.fairness.measures import gain_spread, mean_gain
from fedmerit_evaluation.figures import heat_maps
from fedmerit_evaluation.figures.tables import Table, file_name
from fedmerit_evaluation.freeriders.attacked_runs import HONEST, Attack
from fedmerit_evaluation.results.dice import STANDALONE
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.papers.artefact import Artefact, Drawn, Made, printed
from fedmerit_lab.papers.partitioned_sites import (
    artefact_methods,
    local_only_and_final,
    parameters_of,
    partitioned_needs,
    require_partition,
    scatter,
    site_dice,
)
from fedmerit_lab.papers.required_trainings import WrongMasks
from fedmerit_lab.papers.study import Study

TAUS = ("tau_opt", "tau_max")  # of Eq. 5, Tastan et al. 2025


def gains(study: Study, artefact: Artefact) -> Made:
    """Mean Dice, mean gain over training alone and its spread, by method and way of dealing."""
    columns = _measured(study, artefact)
    there = artefact_methods(artefact, columns)
    frame = pd.DataFrame(
        {"Method": there} | {name: column.reindex(there).to_list() for name, column in columns.items()}
    )
    caption = "Mean Dice (MVA), mean gain over training alone (MCG) and its spread over sites (CGS), means over seeds"
    return Made([Table(artefact.name, caption, frame, decimals=2), *printed(artefact.name, artefact.published)])


def gain_beside_spread(study: Study, artefact: Artefact) -> Made:
    """Gain and spread of every method on every deal, a point each."""
    columns = _measured(study, artefact)
    by_deal = {name.split(", ", 1)[1]: column for name, column in columns.items() if name.startswith("MCG")}
    parts = [
        pd.DataFrame({"MCG": gain, "CGS": columns[f"CGS [points], {deal}"]}).assign(deal=deal).reset_index()
        for deal, gain in by_deal.items()
    ]
    points = pd.concat(parts, ignore_index=True)
    return scatter(
        artefact,
        points,
        ("MCG", "Mean gain over training alone (MCG) [points]"),
        ("CGS", "Its spread over sites (CGS) [points]"),
    )


def gain_by_parameters(study: Study, artefact: Artefact) -> Made:
    """What `gains` has of one way of dealing, as two maps over `TAUS`, by the labels that set both."""
    made = gains(study, artefact)
    frame = made.tables[0].frame
    set_by = pd.DataFrame([parameters_of(label) for label in frame["Method"]], frame.index, list(TAUS)).dropna()
    frame = frame.loc[set_by.index]
    if frame.empty:
        raise BadInput("no training of cycle is finished; the same command goes on")
    (need,) = partitioned_needs(artefact)
    measured = {
        what: frame[f"{what}, {require_partition(need).heading}"].to_list() for what in ("MCG [points]", "CGS [points]")
    }
    numbers = set_by.astype(float).assign(**measured).reset_index(drop=True)
    figure = heat_maps.over_parameters(numbers, TAUS)
    return Made(made.tables, [Drawn(artefact.name, artefact.what, figure, numbers)])


def gains_by_site(study: Study, artefact: Artefact) -> Made:
    """Gain of each site over training alone, and who lost."""
    tables = []
    for need in partitioned_needs(artefact):
        alone, final = local_only_and_final(study.results(need))
        gained = 100 * (final - alone).groupby(level="method").mean()
        there = [label for label in need.labels if label in gained.index]
        gained = gained.reindex(there)
        below = gained.to_numpy(float) < 0
        columns = {str(site): gained[site].to_list() for site in gained.columns}
        lost = [", ".join(np.array(list(columns))[row]) or "nobody" for row in below]
        frame = pd.DataFrame({"Method": there} | columns | {"Worse off than alone": lost})
        deal = require_partition(need).name
        caption = f"Gain in Dice over training alone [points], {deal}, mean over seeds; those below 0 are named"
        tables.append(Table(f"{artefact.name}-{file_name(deal).lower()}", caption, frame))
    return Made([*tables, *printed(artefact.name, artefact.published)])


def _measured(study: Study, artefact: Artefact) -> dict[str, pd.Series]:
    """By "MVA [%], Homogeneous" and so on, what each method has, mean over seeds."""
    columns: dict[str, pd.Series] = {}
    for need in partitioned_needs(artefact):
        alone, final = local_only_and_final(study.results(need))
        both = (100 * alone.to_numpy(float), 100 * final.to_numpy(float))
        name = require_partition(need).heading
        for what, values in (
            ("MVA [%]", both[1].mean(axis=1)),
            ("MCG [points]", mean_gain(*both)),
            ("CGS [points]", gain_spread(*both)),
        ):
            columns[f"{what}, {name}"] = pd.Series(values, final.index).groupby(level="method").mean()
    return columns


def reputation_heat_maps(study: Study, artefact: Artefact) -> Made:
    """What sites hold of each other, a figure for each way of dealing."""
    drawn = []
    for need in partitioned_needs(artefact):
        deal = require_partition(need).name
        name = f"{artefact.name}-{file_name(deal).lower()}"
        drawn.append(_reputations(name, f"{artefact.what}, {deal}", study.results(need)))
    return Made(drawn=drawn)


def dice_of_two_wrong(study: Study, artefact: Artefact) -> Made:
    """Table 8: Dice of each site, where the last two have wrong masks."""
    rows = []
    for need in partitioned_needs(artefact):
        dice = 100 * site_dice(study.results(need)).groupby(level="method").mean()
        for label, row in dice.iterrows():
            sites = {str(site): float(value) for site, value in row.items()}
            honest = float(np.mean(list(sites.values())[:3]))
            rows.append(
                {"Masks": f"{label}, {require_partition(need).name}", **sites, "Mean of the first three": honest}
            )
    caption = "Dice [%] of each site's final model where the last two sites have wrong masks in that share of images"
    table = Table(artefact.name, caption, pd.DataFrame(rows), decimals=2)
    return Made([table, *printed(artefact.name, artefact.published)])


def dice_by_share(study: Study, artefact: Artefact) -> Made:
    """Final Dice of each site by the share of wrong masks of the last one, and what its peers hold of it."""
    rows = []
    (alone,) = partitioned_needs(artefact)
    by_kind = {STANDALONE: study.results(alone)} | _flipped(study, artefact)
    for kind, results in by_kind.items():
        dice = 100 * site_dice(results).mean()
        *others, rider = (str(site) for site in dice.index)
        row: dict[str, object] = {"Masks": kind.replace(":share=", ", "), **{site: dice[site] for site in others}}
        row[rider] = dice[rider]
        row["Mean of the others"] = dice[others].mean()
        row[f"Reputation of {rider}"], row["Reputation of the others"] = _last_reputations(results, others, rider)
        rows.append(row)
    caption = "Dice [%] of each site's final model, cycle, where the last site has wrong masks, mean over seeds; and "
    caption += "what the others hold of it, and all of each other, after the last round"
    table = Table(artefact.name, caption, pd.DataFrame(rows), decimals=2)
    return Made([table, *printed(artefact.name, artefact.published)])


def reputations_by_share(study: Study, artefact: Artefact) -> Made:
    """What sites hold of each other by the share of wrong masks of the last one, all in one figure."""
    results = Results(pd.concat([one.rows for one in _flipped(study, artefact).values()], ignore_index=True))
    return Made(drawn=[_reputations(artefact.name, artefact.what, results)])


def _flipped(study: Study, artefact: Artefact) -> dict[str, Results]:
    """By kind of wrong masks, the results of the runs; honest ones first."""
    (need,) = (need for need in artefact.needs if isinstance(need, WrongMasks))
    done: Sequence[Attack] = study.done(need)
    rows = study.results(need).rows
    folders = {kind: [one.folder.name for one in done if one.kind == kind] for kind in (HONEST, *need.kinds)}
    return {
        kind: Results(rows[rows["run"].isin(names)].assign(method=kind)) for kind, names in folders.items() if names
    }


def _last_reputations(results: Results, others: Sequence[str], rider: str) -> tuple[float, float]:
    """What ``others`` hold of the rider, and of each other, after the last round; NaN where they hold nothing."""
    held = results.rounds.pairs("peer_reputation")
    if held.empty:
        return math.nan, math.nan
    last = held.xs(held.index.get_level_values("round").max(), level="round").loc[
        lambda table: table.index.get_level_values("holder").isin(others)
    ]
    return float(last[rider].mean()), float(np.nanmean(last[list(others)].to_numpy(float)))


def _reputations(name: str, caption: str, results: Results) -> Drawn:
    held = results.rounds.pairs("peer_reputation")
    if held.empty:
        raise BadInput("no run records what sites hold of each other: its rounds do not go beyond `warmup`")
    return Drawn(name, caption, heat_maps.reputations(results), held.reset_index())
