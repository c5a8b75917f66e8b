"""Tables and figures of FedCE (Jiang et al., CVPR 2023) with the given sites."""

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedmerit.errors import BadInput
from fedmerit.methods.registry import counts_images
from fedmerit.schema.site_folder import open_sites
from fedmerit_data.figure_style import STYLE
from fedmerit_data.overview import intensities
from fedmerit_evaluation.fairness.measurement import Fairness, measure
from fedmerit_evaluation.figures import curves, dots_and_bars
from fedmerit_evaluation.figures.drawing import INK, site_style, titled
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.ground_truth.ground_truths import GroundTruth, coalition_utilities, complete_ground_truths
from fedmerit_evaluation.ground_truth.value_tables import leave_one_out_tables
from fedmerit_evaluation.report.overlays import draw_overlays, make_overlays
from fedmerit_evaluation.results.runs import Run, open_runs
from fedmerit_evaluation.results.views import STANDALONE
from fedmerit_evaluation.studies.comparison import comparison_tables
from fedmerit_lab.detection.rules import accumulated, free_rider_values, of_rounds
from fedmerit_lab.papers.artefact import Artefact, Drawn, Made, beside, printed, read_paper
from fedmerit_lab.papers.figures import heat_map, lines_over_rounds
from fedmerit_lab.papers.study import Compared, FreeRiding, Study, WithoutOne

ALL = Compared(
    (
        STANDALONE,
        "fedavg",
        "qfedavg",
        "cffl:reward=global",
        "fedci",
        "cgsv:reward=global",
        "fedce",
        "fedce:combine=plus",
    )
)
ABLATION = Compared(("fedce:combine=cosine", "fedce:combine=error", "fedce", "fedce:combine=plus"))
LEAVE_ONE_OUT = WithoutOne(("fedavg",))
FEWER = WithoutOne(("fedce",), with_all=False)
FEDCE = Compared(("fedce",))
FREE_RIDING = FreeRiding(("fedce",))


def _dice(study: Study, artefact: Artefact) -> Made:
    """Return Table 1 or 6 for every label, with the paper's means."""
    labels = [name for name in ALL.labels if study.can_train(name)]
    tables = comparison_tables(study.results(ALL), labels, study.seeds)
    chosen = [table for table in tables if table.name.startswith(artefact.name)]
    with_paper = []
    for table in chosen:
        for theirs in artefact.published:
            table = beside(table, theirs)
        with_paper.append(table)
    return Made([*with_paper, *printed(artefact.name, artefact.published)])


def _fairness(study: Study, ground_truth: GroundTruth | None = None) -> Fairness:
    results = study.results(ALL)
    methods = {label: counts_images(label.split(":")[0]) for label in results.methods}
    return measure(results, methods, standalone=STANDALONE, ground_truth=ground_truth)


def _detected(found: Fairness, name: str, lacking: str) -> Table:
    for table in found.tables:
        if table.name == name:
            return table
    raise BadInput(lacking)


def _performance(study: Study, artefact: Artefact) -> Made:
    """Return Table 2."""
    lacking = "no seed has both a method and local-only training; run the same command again"
    table = _detected(_fairness(study), "fairness-performance", lacking)
    (theirs,) = artefact.published
    return Made([replace(beside(table, theirs), name=artefact.name), *printed(artefact.name, artefact.published)])


def _collaboration(study: Study, artefact: Artefact) -> Made:
    """Return Table 3: aggregation weights and leave-one-out values."""
    trained = study.results(LEAVE_ONE_OUT)
    ground_truth = GroundTruth(trained, *complete_ground_truths(coalition_utilities(trained), study.names, study.seeds))
    found = _fairness(study, ground_truth)
    table = _detected(found, "fairness-leave-one-out", "no seed has every training; run the same command again")
    wanted = table.frame["Contribution"].isin(["mean weight"])
    wanted |= (table.frame["Method"] == "fedavg") & (table.frame["Contribution"] == "sample share")
    frame = table.frame[wanted].reset_index(drop=True)
    spread = None if table.spread is None else table.spread[wanted].reset_index(drop=True)
    table = Table(table.name, table.caption, frame, spread, decimals=table.decimals)
    (theirs,) = artefact.published
    return Made(
        [replace(beside(table, theirs), name=artefact.name), *printed(artefact.name, artefact.published)],
        notes=ground_truth.notes,
    )


def _leave_one_out(study: Study, artefact: Artefact) -> Made:
    """Return Tables 4 and 5."""
    first, second = leave_one_out_tables(study.results(LEAVE_ONE_OUT))
    tables = [replace(first, name=artefact.name), replace(second, name=f"{artefact.name}-by-site")]
    return Made([*tables, *printed(artefact.name, artefact.published)])


def _intensities(study: Study, artefact: Artefact) -> Made:
    """Return Figure 2."""
    figure = intensities(open_sites(study.sites))
    curves = [
        pd.DataFrame({"site": str(line.get_label()), "intensity": line.get_xdata(), "density": line.get_ydata()})
        for line in figure.axes[0].get_lines()
    ]
    return Made(drawn=[Drawn(artefact.name, artefact.what, figure, pd.concat(curves, ignore_index=True))])


def _convergence(study: Study, artefact: Artefact) -> Made:
    """Return Figure 3."""
    results = study.results(ALL)
    by_round = results.rounds.validation.groupby(level=["method", "round"], observed=True).mean().mean(axis=1)
    numbers = (100 * by_round).rename("validation Dice [%]").reset_index()
    return Made(drawn=[Drawn(artefact.name, artefact.what, curves.convergence(results.rounds.validation), numbers)])


def _free_riders(study: Study, artefact: Artefact) -> Made:
    """Return Figure 4 or 7: means over seeds, by free rider."""
    attacks, results = study.trainings[FREE_RIDING], study.results(FREE_RIDING)
    values = accumulated(free_rider_values(results))
    table = values if artefact.name == "figure4" else of_rounds(results, "cosine_to_mean")
    free_riders = {attack.folder.name: attack.site or "none" for attack in attacks}
    numbers = table.reset_index()
    numbers.insert(0, "free_rider", numbers["run"].map(free_riders))
    by_site = {
        str(site): rows.drop(columns=["free_rider", "run"]).groupby("round").mean().dropna(axis=1, how="all")
        for site, rows in numbers.groupby("free_rider")
        if site != "none"
    }
    if artefact.name == "figure4":
        figure = heat_map(by_site, "Free-rider value, mean over rounds")
    else:
        by_title = {f"{site} attacks": rows for site, rows in by_site.items()}
        bold = {f"{site} attacks": site for site in by_site}
        figure = lines_over_rounds(by_title, "Cosine to the mean update", bold=bold)
    return Made(drawn=[Drawn(artefact.name, artefact.what, figure, numbers)])


def _change(study: Study, artefact: Artefact) -> Made:
    """Return Figure 5: FedCE's weights of the sites that remain, with and without one, re-normalised."""
    if len(study.names) < 3:
        raise BadInput(f"{len(study.names)} sites: too few to leave one out and compare; 3 or more are needed")
    all_sites = study.results(FEDCE).rounds.contributions["weight"].groupby(level="site").mean()
    rows = []
    runs = {training.folder: training.coalition for training in study.done(FEWER)}
    for left_out in study.names:
        own = [folder for folder, members in runs.items() if left_out not in members]
        if not own:
            continue
        weights = pd.concat([run.results.rounds.contributions["weight"] for run in open_runs(own)])
        without = weights.groupby(level="site").mean()
        before = all_sites[without.index] / all_sites[without.index].sum()
        rows.append(pd.DataFrame({"with_all": 100 * before, "without_it": 100 * without}).assign(without=left_out))
    shares = pd.concat(rows).rename_axis("site").set_index("without", append=True).swaplevel()
    headings = {"with_all": "Share with all [%]", "without_it": "Share without it [%]"}
    change = shares["without_it"] - shares["with_all"]
    frame = shares.rename(columns=headings).assign(**{"Change [points]": change}).reset_index()
    frame = frame.rename(columns={"without": "Without", "site": "Site"})
    caption = "Weight of the last round, mean over seeds, re-normalised over the sites that remain"
    return Made(
        [Table(artefact.name, caption, frame, decimals=2)],
        [Drawn(artefact.name, artefact.what, _share_bars(shares), shares.reset_index())],
    )


def _share_bars(shares: pd.DataFrame) -> Figure:
    """Draw Figure 5 of Jiang et al. 2023: a panel for each site left out, the others' values with and without it.

    Args:
        shares: ``without, site`` x ``with_all, without_it``, percent, of the sites that remain; each pair sums to 100.
    """
    left_out = list(shares.index.unique("without"))
    sites = sorted({*left_out, *shares.index.unique("site")})
    with style.context(STYLE):
        columns = min(3, len(left_out))
        rows = -(-len(left_out) // columns)
        figure = Figure(figsize=(1.9 + 3.2 * columns, 0.9 + 2.6 * rows), dpi=160, layout="constrained")
        axes = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
        for panel, without in zip(axes, left_out, strict=False):
            table = shares.loc[without]
            places = np.arange(len(table))
            for shift, column, alpha, line in ((-0.2, "with_all", 0.9, "-"), (0.2, "without_it", 0.45, "--")):
                colours = [site_style(sites, str(site))["color"] for site in table.index]
                panel.bar(places + shift, table[column], 0.36, color=colours, alpha=alpha)
                panel.plot(places + shift, table[column], color=INK, linewidth=1, linestyle=line)
            largest = (table["with_all"] - table["without_it"]).abs().max()
            panel.set_title(f"without {without}: \N{GREEK CAPITAL LETTER DELTA} up to {largest:.1f}")
            panel.set_xticks(places, [str(site) for site in table.index], rotation=30)
        for panel in axes[len(left_out) :]:
            panel.set_axis_off()
        titled(figure, "Share of the weights [%]")
        handles = [
            Line2D([], [], color=INK, linewidth=1, label="all sites, re-normalised"),
            Line2D([], [], color=INK, linewidth=1, linestyle="--", label="trained without it"),
        ]
        figure.legend(handles=handles, loc="outside lower left", ncols=2)
    return figure


def _ablation(study: Study, artefact: Artefact) -> Made:
    """Return Figure 6."""
    results = study.results(ABLATION)
    tables = comparison_tables(results, list(ABLATION.labels), study.seeds)
    chosen = [
        replace(table, name=table.name.replace("table6", artefact.name)) for table in tables if "table6" in table.name
    ]
    return Made(
        chosen,
        [
            Drawn(
                artefact.name,
                artefact.what,
                dots_and_bars.dice_bars(results.dice.cases, results.sites),
                chosen[0].frame,
            )
        ],
    )


def _segmentations(study: Study, artefact: Artefact) -> Made:
    """Return Figures 8 and 9."""
    runs: list[Run] = open_runs([run.folder for run in study.done(ALL)])
    shown = make_overlays(runs, study.sites)
    numbers = [{"site": one.site, "which": one.which, "method": one.method, "dice": one.dice} for one in shown]
    return Made(drawn=[Drawn(artefact.name, artefact.what, draw_overlays(shown), pd.DataFrame(numbers))])


PAPER = read_paper(
    "fedce",
    {
        "table1": (_dice, (ALL,)),
        "table2": (_performance, (ALL,)),
        "table3": (_collaboration, (ALL, LEAVE_ONE_OUT)),
        "table4-5": (_leave_one_out, (LEAVE_ONE_OUT,)),
        "table6": (_dice, (ALL,)),
        "figure2": (_intensities, ()),
        "figure3": (_convergence, (ALL,)),
        "figure4": (_free_riders, (FREE_RIDING,)),
        "figure5": (_change, (FEDCE, FEWER)),
        "figure6": (_ablation, (ABLATION,)),
        "figure7": (_free_riders, (FREE_RIDING,)),
        "figure8-9": (_segmentations, (ALL,)),
    },
)
