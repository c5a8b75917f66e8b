"""Tables and figures of CYCle (Tastan et al., 2025), for the patients of other sites dealt into new ones."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib import style

from evaluation.display import heat_maps
from evaluation.display.drawing import STYLE, panels
from evaluation.display.table import Table, file_name
from evaluation.fairness.measures import gain_spread, mean_gain
from evaluation.freeriders.attacked_runs import HONEST, Attack
from evaluation.papers import mean_estimation
from evaluation.papers.artefact import Artefact, Drawn, Made, Paper, printed
from evaluation.papers.dealt_sites import alone_and_final, bars, deal_of, needs, scatter, site_dice_of
from evaluation.papers.needs import Compared, WrongMasks
from evaluation.papers.printed_tables import published
from evaluation.papers.study import Deal, Study
from evaluation.results.dice import ALONE
from evaluation.results.views import Results
from fedmerit.errors import BadInput

UNI, DIR = Deal("Homogeneous", "uniform"), Deal("Dirichlet (0.5)", "dirichlet", alpha=0.5)


def imbalanced(kappa: float, holders: int) -> Deal:
    """The first ``holders`` sites have a share ``kappa`` each, the others the rest."""
    return Deal(f"Imbalanced ({kappa:g}, {holders})", "imbalanced", kappa=kappa, holders=holders)


DEALS = (UNI, DIR, *(imbalanced(*one) for one in ((0.8, 1), (0.35, 2), (0.6, 1))))
OTHERS = tuple(imbalanced(*one) for one in ((0.4, 1), (0.12, 1), (0.41, 2), (0.23, 2), (0.14, 2)))  # of Table 5
AMONG = {  # of Table 2, and of Table 3
    numbers: tuple(
        replace(deal, into=number, title=f"{deal.name}, {number} sites")
        for deal in (UNI, DIR, *(Deal(f"Dirichlet ({alpha:g})", "dirichlet", alpha=alpha) for alpha in (2.0, 5.0)))
        for number in numbers
    )
    for numbers in ((5, 10), (2,))
}
METHODS = (ALONE, "fedavg", "vpdl", "cycle", "cffl", "rffl", "cgsv")
ALL = needs(METHODS, DEALS)
SHARES = (0.2, 0.5, 1.0)  # of images with wrong masks, in the place of flipped labels
WRONG = tuple(f"{kind}:share={share}" for kind in ("shifted", "inverted") for share in SHARES)
FLIPPED = WrongMasks("cycle", UNI, WRONG)
TWO_WRONG = tuple(
    Deal(f"Two wrong ({share:g})", "uniform", into=5, noise=(("site-4", share), ("site-5", share))) for share in SHARES
)
TOLD_APART = (ALONE, "fedavg", "vpdl", "cycle")
IN_PLOT = (ALONE, "vpdl", "cycle", "cffl", "rffl", "cgsv")
TAUS = tuple((opt, most) for opt in (0.1, 0.25, 0.4) for most in (0.6, 0.75, 0.9))
BY_TAU = (ALONE, *(f"cycle:tau_opt={opt:g}:tau_max={most:g}" for opt, most in TAUS))

NOT_THEIR_DATA = (
    "The paper classifies images (CIFAR-10, CIFAR-100, Fed-ISIC2019), by accuracy; here it is Dice of segmentations. "
    "Classes of its Dirichlet split are the patients' hospitals here."
)
PRINTED_SPREADS = (
    "The paper defines CGS by N - 1; from its Tables 6 and 9 follows that its numbers are by N, below ours by a factor "
    "of 0.89 for five sites. CYCle's homogeneous column of Table 1 differs from that of Tables 2 and 9."
)


HELD = (
    "In the first, a middle and the last round in which reputations are held; the paper has rounds 0, 25 and 75 after "
    "the warm-up."
)


def _measured(study: Study, artefact: Artefact) -> dict[str, pd.Series]:
    """By "MVA [%], Homogeneous" and so on, what each method has, mean over seeds."""
    columns: dict[str, pd.Series] = {}
    for need in artefact.needs:
        assert isinstance(need, Compared)
        alone, final = alone_and_final(study.results(need))
        both = (100 * alone.to_numpy(float), 100 * final.to_numpy(float))
        name = deal_of(need).heading
        for what, values in (
            ("MVA [%]", both[1].mean(axis=1)),
            ("MCG [points]", mean_gain(*both)),
            ("CGS [points]", gain_spread(*both)),
        ):
            columns[f"{what}, {name}"] = pd.Series(values, final.index).groupby(level="method").mean()
    return columns


def _gains(study: Study, artefact: Artefact) -> Made:
    """Mean Dice, mean gain over training alone and its spread, by method and way of dealing."""
    columns = _measured(study, artefact)
    labels = list(dict.fromkeys(label for need in artefact.needs for label in need.labels))
    there = [label for label in labels if any(label in column.index for column in columns.values())]
    frame = pd.DataFrame(
        {"Method": there} | {name: column.reindex(there).to_list() for name, column in columns.items()}
    )
    caption = "Mean Dice (MVA), mean gain over training alone (MCG) and its spread over sites (CGS), means over seeds"
    return Made([Table(artefact.name, caption, frame, decimals=2), *printed(artefact.name, artefact.published)])


def _plot(study: Study, artefact: Artefact) -> Made:
    """Gain and spread of every method on every deal, a point each."""
    columns = _measured(study, artefact)
    gains = {name.split(", ", 1)[1]: column for name, column in columns.items() if name.startswith("MCG")}
    parts = [
        pd.DataFrame({"MCG": gain, "CGS": columns[f"CGS [points], {deal}"]}).assign(deal=deal).reset_index()
        for deal, gain in gains.items()
    ]
    points = pd.concat(parts, ignore_index=True)
    return scatter(
        artefact,
        points,
        ("MCG", "Mean gain over training alone (MCG) [points]"),
        ("CGS", "Its spread over sites (CGS) [points]"),
    )


def _surfaces(study: Study, artefact: Artefact) -> Made:
    """Figure 14: what `_gains` has, as two maps over both parameters."""
    made = _gains(study, artefact)
    by_label = {f"cycle:tau_opt={opt:g}:tau_max={most:g}": (opt, most) for opt, most in TAUS}
    frame = made.tables[0].frame
    frame = frame[frame["Method"].isin(by_label)]
    if frame.empty:
        raise BadInput("no training of cycle is finished; the same command goes on")
    opt, most = zip(*(by_label[label] for label in frame["Method"]), strict=True)
    measured = {what: frame[f"{what}, {UNI.name}"].to_list() for what in ("MCG [points]", "CGS [points]")}
    numbers = pd.DataFrame({"tau_opt": opt, "tau_max": most} | measured)
    with style.context(STYLE):
        figure, axes = panels(2)
        for panel, what in zip(axes, ("MCG [points]", "CGS [points]"), strict=True):
            table = numbers.pivot(index="tau_opt", columns="tau_max", values=what)
            panel.imshow(table.to_numpy(float), cmap="viridis", origin="lower", aspect="auto")
            panel.set_xticks(range(table.shape[1]), [f"{value:g}" for value in table.columns])
            panel.set_yticks(range(table.shape[0]), [f"{value:g}" for value in table.index])
            panel.grid(visible=False)
            for (row, column), value in np.ndenumerate(table.to_numpy(float)):
                box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.5}
                panel.text(column, row, f"{value:.2f}", ha="center", va="center", bbox=box)
            panel.set_title(what)
            panel.set_xlabel("tau_max")
            panel.set_ylabel("tau_opt")
    return Made(made.tables, [Drawn(artefact.name, artefact.what, figure, numbers)])


def _means(study: Study, artefact: Artefact) -> Made:
    """Figure 6 or 7: no training."""
    if artefact.name == "figure6":
        table, over, title = mean_estimation.over_gaps(), "gap", "Difference of the true means"
    else:
        table, over, title = mean_estimation.over_ratios(), "ratio", "Samples of site 1 by those of site 2"
    deviations = [name for name in map(str, table) if name.startswith("deviation")]
    lines = [name for name in map(str, table) if name not in (over, *deviations)]
    figure = mean_estimation.draw(table, over, lines, title)
    drawn = [Drawn(artefact.name, artefact.what, figure, table)]
    if deviations:
        figure = mean_estimation.draw(table, over, deviations, title, "Deviation of what CYCle ends with")
        numbers = table[[over, *deviations]]
        drawn.append(Drawn(f"{artefact.name}-deviation", "What CYCle ends with: its deviation", figure, numbers))
    return Made(drawn=drawn)


def _two_wrong(study: Study, artefact: Artefact) -> Made:
    """Table 8: Dice of each site, where the last two have wrong masks."""
    rows = []
    for need in artefact.needs:
        assert isinstance(need, Compared)
        dice = 100 * site_dice_of(study.results(need)).groupby(level="method").mean()
        for label, row in dice.iterrows():
            sites = {str(site): float(value) for site, value in row.items()}
            honest = float(np.mean(list(sites.values())[:3]))
            rows.append({"Masks": f"{label}, {deal_of(need).name}", **sites, "Mean of the first three": honest})
    caption = "Dice [%] of each site's final model where the last two sites have wrong masks in that share of images"
    table = Table(artefact.name, caption, pd.DataFrame(rows), decimals=2)
    return Made([table, *printed(artefact.name, artefact.published)])


def _by_site(study: Study, artefact: Artefact) -> Made:
    """Gain of each site over training alone, and who lost."""
    tables = []
    for need in artefact.needs:
        assert isinstance(need, Compared)
        alone, final = alone_and_final(study.results(need))
        gains = 100 * (final - alone).groupby(level="method").mean()
        there = [label for label in need.labels if label in gains.index]
        gains = gains.reindex(there)
        below = gains.to_numpy(float) < 0
        columns = {str(site): gains[site].to_list() for site in gains.columns}
        lost = [", ".join(np.array(list(columns))[row]) or "nobody" for row in below]
        frame = pd.DataFrame({"Method": there} | columns | {"Worse off than alone": lost})
        deal = deal_of(need).name
        caption = f"Gain in Dice over training alone [points], {deal}, mean over seeds; those below 0 are named"
        tables.append(Table(f"{artefact.name}-{file_name(deal).lower()}", caption, frame))
    return Made([*tables, *printed(artefact.name, artefact.published)])


def _heat_maps(study: Study, artefact: Artefact) -> Made:
    """What sites hold of each other, a figure for each way of dealing."""
    drawn = []
    for need in artefact.needs:
        assert isinstance(need, Compared)
        deal = deal_of(need).name
        name = f"{artefact.name}-{file_name(deal).lower()}"
        drawn.append(_reputations(name, f"{artefact.what}, {deal}", study.results(need)))
    return Made(drawn=drawn)


def _reputations(name: str, caption: str, results: Results) -> Drawn:
    held = results.rounds.pairs("peer_reputation")
    if held.empty:
        raise BadInput("no run records what sites hold of each other: its rounds do not go beyond `warmup`")
    return Drawn(name, caption, heat_maps.reputations(results), held.reset_index())


def _flipped(study: Study, artefact: Artefact) -> dict[str, Results]:
    """By kind of wrong masks, the results of the runs; honest ones first."""
    (need,) = (need for need in artefact.needs if isinstance(need, WrongMasks))
    done: Sequence[Attack] = study.done(need)
    rows = study.results(need).rows
    folders = {kind: [one.folder.name for one in done if one.kind == kind] for kind in (HONEST, *need.kinds)}
    return {
        kind: Results(rows[rows["run"].isin(names)].assign(method=kind)) for kind, names in folders.items() if names
    }


def _rider_table(study: Study, artefact: Artefact) -> Made:
    """Final Dice of each site by the share of wrong masks of the last one, and what its peers hold of it."""
    rows = []
    (alone,) = (need for need in artefact.needs if isinstance(need, Compared))
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


def _held_last(results: Results, others: Sequence[str], rider: str) -> tuple[float, float]:
    """What ``others`` hold of the rider, and of each other, after the last round; NaN where they hold nothing."""
    held = results.rounds.pairs("peer_reputation")
    if held.empty:
        return math.nan, math.nan
    last = held.xs(held.index.get_level_values("round").max(), level="round").loc[
        lambda table: table.index.get_level_values("holder").isin(others)
    ]
    return float(last[rider].mean()), float(np.nanmean(last[list(others)].to_numpy(float)))


def _rider_maps(study: Study, artefact: Artefact) -> Made:
    results = Results(pd.concat([one.rows for one in _flipped(study, artefact).values()], ignore_index=True))
    return Made(drawn=[_reputations(artefact.name, artefact.what, results)])


PAPER = Paper(
    "CYCle: Choosing Your Collaborators Wisely to Enhance Collaborative Fairness in Decentralized Learning",
    "Tastan et al., 2025",
    "CIFAR-10, CIFAR-100 dealt among 5 or 10 participants, Fed-ISIC2019 among 6; 25 epochs alone, then 75 rounds; "
    "accuracy on one validation set",
    (
        Artefact(
            "table1",
            "Mean Dice, mean collaboration gain and its spread",
            _gains,
            ALL,
            (published("cycle-table1-resnet"), published("cycle-table1-cnn"), published("cycle-table4")),
            f"{NOT_THEIR_DATA} Its upper half is of ResNet18, its lower of a small network; here all methods train one "
            f"network. Table 4 is the same of the photographs of CIFAR-100. {PRINTED_SPREADS}",
        ),
        Artefact(
            "table2",
            "Mean Dice, mean collaboration gain and its spread among 5 and 10 sites",
            _gains,
            needs((ALONE, "vpdl", "cycle"), AMONG[5, 10]),
            (published("cycle-table2"),),
            f"{NOT_THEIR_DATA} {PRINTED_SPREADS}",
            on_demand=True,
        ),
        Artefact(
            "table3",
            "Mean Dice, mean collaboration gain and its spread of two sites",
            _gains,
            needs((ALONE, "vpdl", "cycle"), AMONG[2,]),
            (published("cycle-table3"),),
            f"{NOT_THEIR_DATA} {PRINTED_SPREADS}",
            on_demand=True,
        ),
        Artefact(
            "table5",
            "Mean Dice, mean collaboration gain and its spread of other imbalanced deals",
            _gains,
            needs(TOLD_APART, OTHERS),
            (published("cycle-table5"),),
            f"{NOT_THEIR_DATA} {PRINTED_SPREADS}",
        ),
        Artefact(
            "table8",
            "Final Dice where two sites have wrong masks",
            _two_wrong,
            (Compared((ALONE, "cycle"), Deal("Homogeneous", "uniform", into=5)), *needs(("cycle",), TWO_WRONG)),
            (published("cycle-table8"),),
            "Of five sites; masks of training images moved by half their extent, in the place of flipped labels "
            " of CIFAR-10.",
        ),
        Artefact(
            "figure12",
            "Reputation of each site with each other, where the last two have wrong masks",
            _heat_maps,
            needs(("cycle",), TWO_WRONG),
            remark="Of the runs of table8.",
        ),
        Artefact(
            "figure6",
            "Two sites that estimate a mean: how often together is no worse than alone, by how far they differ",
            _means,
            remark="No training: 10000 draws, as in the paper, and its bounds (Theorem A.1, Lemma A.1) beside them.",
        ),
        Artefact(
            "figure7",
            "Two sites that estimate one mean: likewise, by how many times the samples of the second the first has",
            _means,
            remark=f"The paper does not say how many samples the second site has; {mean_estimation.SAMPLES} here.",
        ),
        Artefact(
            "figure11",
            "Final Dice of every site of other imbalanced deals",
            bars,
            needs(TOLD_APART, OTHERS),
            remark=f"{NOT_THEIR_DATA} Of the runs of table5.",
        ),
        Artefact(
            "figure13",
            "Gain and its spread on ten deals",
            _plot,
            needs(IN_PLOT, (*DEALS, *OTHERS)),
            remark=NOT_THEIR_DATA,
        ),
        Artefact(
            "figure14",
            "Gain and its spread by tau_opt and tau_max",
            _surfaces,
            needs(BY_TAU, (UNI,)),
            remark="The paper draws surfaces and prints no numbers.",
        ),
        Artefact(
            "table9",
            "Gain of every site over training alone",
            _by_site,
            ALL,
            (published("cycle-table9-resnet"), published("cycle-table9-cnn"), published("cycle-table6")),
            f"{NOT_THEIR_DATA} The paper prints accuracies, in which its text counts the losers. Table 6 is the same "
            "of the photographs of CIFAR-100.",
        ),
        Artefact(
            "figure2",
            "Final Dice of every site",
            bars,
            needs((ALONE, "fedavg", "vpdl", "cycle"), DEALS),
            remark=NOT_THEIR_DATA,
        ),
        Artefact(
            "figure3",
            "Final Dice of every site, beside CFFL, RFFL and CGSV",
            bars,
            needs((ALONE, "cffl", "rffl", "cgsv", "cycle"), DEALS),
            remark=f"{NOT_THEIR_DATA} The paper's is of a small network, as the lower half of its Table 1.",
        ),
        Artefact(
            "figure4",
            "Reputation of each site with each other, two imbalanced deals",
            _heat_maps,
            needs(("cycle",), DEALS[2:4]),
            remark=HELD,
        ),
        Artefact(
            "figure8",
            "Reputation of each site with each other, the other deals",
            _heat_maps,
            needs(("cycle",), (UNI, DIR, DEALS[4])),
            remark=HELD,
        ),
        Artefact(
            "table7",
            "Final Dice where one site has wrong masks",
            _rider_table,
            (Compared((ALONE,), UNI), FLIPPED),
            (published("cycle-table7"),),
            "Masks that are shifted by a quarter of their extent, or inverted, in a share of the last site's training "
            "images, in the place of flipped labels of CIFAR-10. Validation and test masks are right.",
        ),
        Artefact(
            "figure5",
            "Reputation of each site with each other, where the last one has wrong masks",
            _rider_maps,
            (FLIPPED,),
            remark="Of the runs of table7.",
        ),
    ),
    {
        "Figure 1": "a diagram",
        "Table 4, Table 6, Figure 10": "photographs of CIFAR-100; the same of other sites: table1, table9 and figure2",
        "Figure 9": "photographs of Fed-ISIC2019, classified and not segmented; the same of other sites: figure4",
    },
)
