"""What sites hold of each other under CYCle (Tastan et al., 2025), and what becomes of those with wrong masks."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from evaluation.display import heat_maps
from evaluation.display.table import Table, file_name
from evaluation.freeriders.attacked_runs import HONEST, Attack
from evaluation.papers.artefact import Artefact, Drawn, Made, printed
from evaluation.papers.dealt_sites import deal_of, dealt, site_dice_of
from evaluation.papers.needs import WrongMasks
from evaluation.papers.study import Study
from evaluation.results.dice import ALONE
from evaluation.results.views import Results
from fedmerit.errors import BadInput


def heat_maps_of_reputations(study: Study, artefact: Artefact) -> Made:
    """What sites hold of each other, a figure for each way of dealing."""
    drawn = []
    for need in dealt(artefact):
        deal = deal_of(need).name
        name = f"{artefact.name}-{file_name(deal).lower()}"
        drawn.append(_reputations(name, f"{artefact.what}, {deal}", study.results(need)))
    return Made(drawn=drawn)


def dice_of_two_wrong(study: Study, artefact: Artefact) -> Made:
    """Table 8: Dice of each site, where the last two have wrong masks."""
    rows = []
    for need in dealt(artefact):
        dice = 100 * site_dice_of(study.results(need)).groupby(level="method").mean()
        for label, row in dice.iterrows():
            sites = {str(site): float(value) for site, value in row.items()}
            honest = float(np.mean(list(sites.values())[:3]))
            rows.append({"Masks": f"{label}, {deal_of(need).name}", **sites, "Mean of the first three": honest})
    caption = "Dice [%] of each site's final model where the last two sites have wrong masks in that share of images"
    table = Table(artefact.name, caption, pd.DataFrame(rows), decimals=2)
    return Made([table, *printed(artefact.name, artefact.published)])


def dice_by_share(study: Study, artefact: Artefact) -> Made:
    """Final Dice of each site by the share of wrong masks of the last one, and what its peers hold of it."""
    rows = []
    (alone,) = dealt(artefact)
    by_kind = {ALONE: study.results(alone)} | _flipped(study, artefact)
    for kind, results in by_kind.items():
        dice = 100 * site_dice_of(results).mean()
        *others, rider = (str(site) for site in dice.index)
        row: dict[str, object] = {"Masks": kind.replace(":share=", ", "), **{site: dice[site] for site in others}}
        row[rider] = dice[rider]
        row["Mean of the others"] = dice[others].mean()
        row[f"Reputation of {rider}"], row["Reputation of the others"] = _held_last(results, others, rider)
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


def _held_last(results: Results, others: Sequence[str], rider: str) -> tuple[float, float]:
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
