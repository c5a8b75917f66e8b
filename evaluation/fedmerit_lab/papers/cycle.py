"""Tables and figures of CYCle (Tastan et al., 2025): collaboration gain, its spread, reputations among sites.

Dice is that of the test cases of all sites together, as in `fedmerit_lab.papers.partitioned_sites`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit_data.figure_style import STYLE
from fedmerit_evaluation.fairness.measures import gain_spread, mean_gain
from fedmerit_evaluation.figures.drawing import panels, titled
from fedmerit_evaluation.figures.tables import Table, file_name
from fedmerit_evaluation.results.views import STANDALONE, Results
from fedmerit_lab.attacks.attacked_runs import HONEST, AttackedRun
from fedmerit_lab.papers.artefact import Artefact, Drawn, Made, printed, read_paper
from fedmerit_lab.papers.partitioned_sites import (
    artefact_methods,
    bars,
    local_only_and_final,
    needs,
    partitioned_needs,
    site_dice,
)
from fedmerit_lab.papers.study import Compared, Partition, Study, WrongMasks

DEEP = 0.5  # from here on text is white


def _write_numbers(panel: Axes, cells: NDArray[np.float64]) -> None:
    """Write the numbers of ``cells`` into a panel, white where the colour is deep; nothing for NaN."""
    for (row, column), value in np.ndenumerate(cells):
        if not np.isnan(value):
            ink = "white" if abs(value) > DEEP else "#1b1e23"
            panel.text(column, row, f"{value:.2f}", ha="center", va="center", color=ink, fontsize=8)


def reputations(results: Results) -> Figure:
    """Draw ratings of sites by each other, 0 to 1, in the first, a middle and the last round (Figures 4, 5 and 8).

    One panel per method and round; a row per rater, mean over seeds. The lowest row is the mean over raters and all
    rounds.
    """
    table = results.rounds.pairs("peer_reputation")
    of_methods = {str(name): part.droplevel("method") for name, part in table.groupby(level="method", observed=True)}
    rounds_of = {name: part.index.unique("round") for name, part in of_methods.items()}
    chosen = {name: sorted({int(of[at]) for at in (0, len(of) // 2, -1)}) for name, of in rounds_of.items()}
    with style.context([STYLE, {"axes.grid": False}]):
        figure, axes = panels(sum(map(len, chosen.values())))
        places = iter(axes)
        for method, rounds in chosen.items():
            ratings = of_methods[method]
            overall = ratings.groupby(level="round").mean().mean(axis=0).to_dict()
            for number in rounds:
                shown = ratings[ratings.index.get_level_values("round") == number].droplevel("round")
                shown = shown.dropna(axis=1, how="all")
                cells = np.vstack([shown.to_numpy(), [overall[site] for site in shown]])
                panel = next(places)
                panel.imshow(cells, vmin=0, vmax=1, cmap="Blues", aspect="auto")
                _write_numbers(panel, cells)
                panel.axhline(len(shown) - 0.5, color="white", linewidth=3)
                panel.set_title(f"{method}, round {number}" if len(chosen) > 1 else f"Round {number}")
                panel.set_xticks(range(shown.shape[1]), shown.columns)
                panel.set_yticks(range(len(cells)), [*shown.index, "all rounds"])
                panel.tick_params(length=0)
                if 2 * len(shown.columns) * max(len(str(site)) for site in shown.columns) > 90:  # names would overlap
                    panel.tick_params(axis="x", labelrotation=20)
        titled(figure, "Reputation with", "Site")
    return figure


def gains(study: Study, artefact: Artefact) -> Made:
    """Return mean Dice, mean gain over local-only training and its spread, by method and partition."""
    columns = _measured(study, artefact)
    there = artefact_methods(artefact, columns)
    frame = pd.DataFrame(
        {"Method": there} | {name: column.reindex(there).to_list() for name, column in columns.items()}
    )
    caption = (
        "Mean Dice (MVA), mean gain over local-only training (MCG) and its spread over sites (CGS), means over seeds"
    )
    return Made([Table(artefact.name, caption, frame, decimals=2), *printed(artefact.name, artefact.published)])


def gains_by_site(study: Study, artefact: Artefact) -> Made:
    """Return gain of each site over local-only training, and the sites that lost."""
    tables = []
    for need in partitioned_needs(artefact):
        local_only, final = local_only_and_final(study.results(need))
        gained = 100 * (final - local_only).groupby(level="method").mean()
        there = [label for label in need.labels if label in gained.index]
        gained = gained.reindex(there)
        below = gained.to_numpy(float) < 0
        columns = {str(site): gained[site].to_list() for site in gained.columns}
        lost = [", ".join(np.array(list(columns))[row]) or "none" for row in below]
        frame = pd.DataFrame({"Method": there} | columns | {"Worse than local-only": lost})
        name = need.where.name
        caption = f"Gain in Dice over local-only training [points], {name}, mean over seeds"
        tables.append(Table(f"{artefact.name}-{file_name(name).lower()}", caption, frame))
    return Made([*tables, *printed(artefact.name, artefact.published)])


def _measured(study: Study, artefact: Artefact) -> dict[str, pd.Series]:
    """Return by "MVA [%], Homogeneous" and so on, each method's mean over seeds."""
    columns: dict[str, pd.Series] = {}
    for need in partitioned_needs(artefact):
        local_only, final = local_only_and_final(study.results(need))
        both = (100 * local_only.to_numpy(float), 100 * final.to_numpy(float))
        name = need.where.heading
        for what, values in (
            ("MVA [%]", both[1].mean(axis=1)),
            ("MCG [points]", mean_gain(*both)),
            ("CGS [points]", gain_spread(*both)),
        ):
            columns[f"{what}, {name}"] = pd.Series(values, final.index).groupby(level="method").mean()
    return columns


def reputation_heat_maps(study: Study, artefact: Artefact) -> Made:
    """Return reputations of sites with each other, a figure for each partition."""
    drawn = []
    for need in partitioned_needs(artefact):
        partition = need.where.name
        name = f"{artefact.name}-{file_name(partition).lower()}"
        drawn.append(_reputations(name, f"{artefact.what}, {partition}", study.results(need)))
    return Made(drawn=drawn)


def dice_of_two_wrong(study: Study, artefact: Artefact) -> Made:
    """Return Table 8: Dice of each site if the last two have wrong masks."""
    rows = []
    for need in partitioned_needs(artefact):
        dice = 100 * site_dice(study.results(need)).groupby(level="method").mean()
        for label, row in dice.iterrows():
            sites = {str(site): float(value) for site, value in row.items()}
            honest = float(np.mean(list(sites.values())[:3]))
            rows.append({"Masks": f"{label}, {need.where.name}", **sites, "Mean of the first three": honest})
    caption = "Dice [%] of each site's final model if the last two sites have wrong masks in that share of images"
    table = Table(artefact.name, caption, pd.DataFrame(rows), decimals=2)
    return Made([table, *printed(artefact.name, artefact.published)])


def dice_by_share(study: Study, artefact: Artefact) -> Made:
    """Make the final Dice of each site by the share of wrong masks of the last one, and its reputation."""
    rows = []
    (local_only,) = partitioned_needs(artefact)
    by_kind = {STANDALONE: study.results(local_only)} | _wrong_masks(study, artefact)
    for kind, results in by_kind.items():
        dice = 100 * site_dice(results).mean()
        *others, last = (str(site) for site in dice.index)
        row: dict[str, object] = {"Masks": kind.replace(":share=", ", "), **{site: dice[site] for site in others}}
        row[last] = dice[last]
        row["Mean of the others"] = dice[others].mean()
        row[f"Reputation of {last}"], row["Reputation of the others"] = _last_reputations(results, others, last)
        rows.append(row)
    caption = (
        "Dice [%] of each site's final model, cycle, if the last site has wrong masks, mean over seeds; its reputation "
        "with the others, and theirs with each other, after the last round"
    )
    table = Table(artefact.name, caption, pd.DataFrame(rows), decimals=2)
    return Made([table, *printed(artefact.name, artefact.published)])


def reputations_by_share(study: Study, artefact: Artefact) -> Made:
    """Return reputations of sites with each other by the share of wrong masks of the last one, in one figure."""
    results = Results(
        pd.concat([wrong_mask.rows for wrong_mask in _wrong_masks(study, artefact).values()], ignore_index=True)
    )
    return Made(drawn=[_reputations(artefact.name, artefact.what, results)])


def _wrong_masks(study: Study, artefact: Artefact) -> dict[str, Results]:
    """Return by kind of wrong masks, the results of the runs; without wrong masks first."""
    (need,) = (need for need in artefact.needs if isinstance(need, WrongMasks))
    done: Sequence[AttackedRun] = study.done(need)
    rows = study.results(need).rows
    folders = {kind: [one.folder.name for one in done if one.kind == kind] for kind in (HONEST, *need.kinds)}
    return {
        kind: Results(rows[rows["run"].isin(names)].assign(method=kind)) for kind, names in folders.items() if names
    }


def _last_reputations(results: Results, others: Sequence[str], site: str) -> tuple[float, float]:
    """Return mean reputations of ``site`` and ``others`` with ``others`` after the last round, or NaN."""
    found = results.rounds.pairs("peer_reputation")
    if found.empty:
        return math.nan, math.nan
    last = found.xs(found.index.get_level_values("round").max(), level="round").loc[
        lambda table: table.index.get_level_values("rater").isin(others)
    ]
    return float(last[site].mean()), float(np.nanmean(last[list(others)].to_numpy(float)))


def _reputations(name: str, caption: str, results: Results) -> Drawn:
    found = results.rounds.pairs("peer_reputation")
    if found.empty:
        raise BadInput("no run records reputations among sites: train more rounds than `warmup`")
    return Drawn(name, caption, reputations(results), found.reset_index())


UNI, DIR = Partition("Homogeneous", "uniform"), Partition("Dirichlet (0.5)", "dirichlet", alpha=0.5)


def imbalanced(kappa: float, holders: int) -> Partition:
    """Return the first ``holders`` sites have a share ``kappa`` each, the others the rest."""
    return Partition(f"Imbalanced ({kappa:g}, {holders})", "imbalanced", kappa=kappa, holders=holders)


PARTITIONS = (UNI, DIR, *(imbalanced(*one) for one in ((0.8, 1), (0.35, 2), (0.6, 1))))
OTHERS = tuple(imbalanced(*one) for one in ((0.4, 1), (0.12, 1), (0.41, 2), (0.23, 2), (0.14, 2)))  # of Table 5
AMONG = {  # of Table 2, and of Table 3
    numbers: tuple(
        replace(one, into=number, title=f"{one.name}, {number} sites")
        for one in (UNI, DIR, *(Partition(f"Dirichlet ({alpha:g})", "dirichlet", alpha=alpha) for alpha in (2.0, 5.0)))
        for number in numbers
    )
    for numbers in ((5, 10), (2,))
}
METHODS = (STANDALONE, "fedavg", "vpdl", "cycle", "cffl", "rffl", "cgsv")
ALL = needs(METHODS, PARTITIONS)
SHARES = (0.2, 0.5, 1.0)  # of images with wrong masks, instead of flipped labels
WRONG = tuple(f"{kind}:share={share}" for kind in ("shifted", "inverted") for share in SHARES)
FLIPPED = WrongMasks(("cycle",), UNI, WRONG)
TWO_WRONG = tuple(
    Partition(f"Two wrong ({share:g})", "uniform", into=5, noise=(("site-4", share), ("site-5", share)))
    for share in SHARES
)
WITH_ONE_MODEL = (STANDALONE, "fedavg", "vpdl", "cycle")


PAPER = read_paper(
    "cycle",
    {
        "table1": (gains, ALL),
        "table2": (gains, needs((STANDALONE, "vpdl", "cycle"), AMONG[5, 10])),
        "table3": (gains, needs((STANDALONE, "vpdl", "cycle"), AMONG[2,])),
        "table5": (gains, needs(WITH_ONE_MODEL, OTHERS)),
        "table8": (
            dice_of_two_wrong,
            (Compared((STANDALONE, "cycle"), replace(UNI, into=5)), *needs(("cycle",), TWO_WRONG)),
        ),
        "figure12": (reputation_heat_maps, needs(("cycle",), TWO_WRONG)),
        "figure11": (bars, needs(WITH_ONE_MODEL, OTHERS)),
        "table9": (gains_by_site, ALL),
        "figure2": (bars, needs(WITH_ONE_MODEL, PARTITIONS)),
        "figure3": (bars, needs((STANDALONE, "cffl", "rffl", "cgsv", "cycle"), PARTITIONS)),
        "figure4": (reputation_heat_maps, needs(("cycle",), PARTITIONS[2:4])),
        "figure8": (reputation_heat_maps, needs(("cycle",), (UNI, DIR, PARTITIONS[4]))),
        "table7": (dice_by_share, (Compared((STANDALONE,), UNI), FLIPPED)),
        "figure5": (reputations_by_share, (FLIPPED,)),
    },
)
