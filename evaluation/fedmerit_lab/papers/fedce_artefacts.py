"""Tables and figures of FedCE (Jiang et al., CVPR 2023), for other sites."""

import pandas as pd

from fedmerit.errors import BadInput
from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit_data.pictures import intensities
from fedmerit_evaluation.fairness.measurement import Fairness, measure
from fedmerit_evaluation.figures import curves, dots_and_bars
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.freeriders import figures
from fedmerit_evaluation.freeriders.detectors import accumulated, free_rider_values, of_rounds
from fedmerit_evaluation.ground_truth.ground_truths import GroundTruth, coalition_utilities, complete_ground_truths
from fedmerit_evaluation.ground_truth.value_tables import leave_one_out_tables
from fedmerit_evaluation.report.overlays import draw, overlays
from fedmerit_evaluation.results.dice import STANDALONE
from fedmerit_evaluation.results.run_folders import Run, open_runs
from fedmerit_evaluation.studies import comparison_tables
from fedmerit_lab.papers import descent_bounds, value_shift
from fedmerit_lab.papers.artefact import Artefact, Drawn, Made, Paper, beside, printed, published, renamed
from fedmerit_lab.papers.required_trainings import Compared, FreeRiding, WithoutOne
from fedmerit_lab.papers.share_bars import before_and_after
from fedmerit_lab.papers.study import Study

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
LEAVE_ONE_OUT = WithoutOne("fedavg")
FEWER = WithoutOne("fedce", with_all=False)
FEDCE = Compared(("fedce",))
FREE_RIDING = FreeRiding("fedce")


def _dice(study: Study, artefact: Artefact) -> Made:
    """Table 1 or 6, whichever is asked for, of every label; the paper's means beside it."""
    labels = [name for name in ALL.labels if study.can_train(name)]
    tables = comparison_tables.tables(study.results(ALL), labels, study.seeds)
    chosen = [table for table in tables if table.name.startswith(artefact.name)]
    with_paper = []
    for table in chosen:
        for theirs in artefact.published:
            table = beside(table, theirs)
        with_paper.append(table)
    return Made([*with_paper, *printed(artefact.name, artefact.published)])


def _fairness(study: Study, truth: GroundTruth | None = None) -> Fairness:
    results = study.results(ALL)
    return measure(
        results, {label: label.split(":")[0] for label in results.methods}, standalone=STANDALONE, ground_truth=truth
    )


def _detected(found: Fairness, name: str, lacking: str) -> Table:
    for table in found.tables:
        if table.name == name:
            return table
    raise BadInput(lacking)


def _performance(study: Study, artefact: Artefact) -> Made:
    """Table 2."""
    lacking = "no seed has both a method and training alone; the same command goes on"
    table = _detected(_fairness(study), "fairness-performance", lacking)
    (theirs,) = artefact.published
    return Made([renamed(beside(table, theirs), artefact.name), *printed(artefact.name, artefact.published)])


def _collaboration(study: Study, artefact: Artefact) -> Made:
    """Table 3: what each method aggregates by, beside leave-one-out."""
    trained = study.results(LEAVE_ONE_OUT)
    truth = GroundTruth(trained, *complete_ground_truths(coalition_utilities(trained), study.names, study.seeds))
    found = _fairness(study, truth)
    table = _detected(found, "fairness-leave-one-out", "no seed has every training; the same command goes on")
    wanted = table.frame["Contribution"].isin(["mean weight"])
    wanted |= (table.frame["Method"] == "fedavg") & (table.frame["Contribution"] == "sample share")
    table = _rows(table, wanted)
    (theirs,) = artefact.published
    return Made(
        [renamed(beside(table, theirs), artefact.name), *printed(artefact.name, artefact.published)], notes=truth.notes
    )


def _rows(table: Table, wanted: "pd.Series[bool]") -> Table:
    frame = table.frame[wanted].reset_index(drop=True)
    spread = None if table.spread is None else table.spread[wanted].reset_index(drop=True)
    return Table(table.name, table.caption, frame, spread, decimals=table.decimals)


def _leave_one_out(study: Study, artefact: Artefact) -> Made:
    """Tables 4 and 5."""
    first, second = leave_one_out_tables(study.results(LEAVE_ONE_OUT))
    tables = [renamed(first, artefact.name), renamed(second, f"{artefact.name}-by-site")]
    return Made([*tables, *printed(artefact.name, artefact.published)])


def _intensities(study: Study, artefact: Artefact) -> Made:
    """Figure 2."""
    figure = intensities(open_sites(study.sites))
    curves = [
        pd.DataFrame({"site": str(line.get_label()), "intensity": line.get_xdata(), "density": line.get_ydata()})
        for line in figure.axes[0].get_lines()
    ]
    return Made(drawn=[Drawn(artefact.name, artefact.what, figure, pd.concat(curves, ignore_index=True))])


def _convergence(study: Study, artefact: Artefact) -> Made:
    """Figure 3."""
    results = study.results(ALL)
    by_round = results.rounds.validation.groupby(level=["method", "round"], observed=True).mean().mean(axis=1)
    numbers = (100 * by_round).rename("validation Dice [%]").reset_index()
    return Made(drawn=[Drawn(artefact.name, artefact.what, curves.convergence(results), numbers)])


def _free_riders(study: Study, artefact: Artefact) -> Made:
    """Figure 4 or 7, whichever is asked for."""
    attacks = study.trainings[FREE_RIDING]
    results = study.results(FREE_RIDING)
    values = accumulated(free_rider_values(results))
    table = values if artefact.name == "figure4" else of_rounds(results, "cosine_to_mean")
    riders = {attack.folder.name: attack.site or "nobody" for attack in attacks}
    numbers = table.reset_index()
    numbers.insert(0, "rider", numbers["run"].map(riders))
    return Made(
        drawn=[
            Drawn(artefact.name, artefact.what, figure, numbers)
            for name, figure in figures.figures(attacks, results).items()
            if name.startswith(f"{artefact.name}_")
        ]
    )


def _change(study: Study, artefact: Artefact) -> Made:
    """Figure 5: FedCE's weights of the sites that remain, with and without one, re-normalised."""
    if len(study.names) < 3:
        raise BadInput(f"{len(study.names)} sites: without one there is nothing to compare; it takes 3 or more")
    all_sites = study.results(FEDCE).rounds.contributions["weight"].groupby(level="site").mean()
    rows = []
    runs = {training.folder: training.coalition for training in study.done(FEWER)}
    for left_out in study.names:
        own = [folder for folder, members in runs.items() if left_out not in members]
        if not own:
            continue
        said = pd.concat([run.results.rounds.contributions["weight"] for run in open_runs(own)])
        without = said.groupby(level="site").mean()
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
        [Drawn(artefact.name, artefact.what, before_and_after(shares), shares.reset_index())],
    )


def _ablation(study: Study, artefact: Artefact) -> Made:
    """Figure 6."""
    results = study.results(ABLATION)
    tables = comparison_tables.tables(results, list(ABLATION.labels), study.seeds)
    chosen = [renamed(table, table.name.replace("table6", artefact.name)) for table in tables if "table6" in table.name]
    return Made(chosen, [Drawn(artefact.name, artefact.what, dots_and_bars.dice_bars(results), chosen[0].frame)])


def _segmentations(study: Study, artefact: Artefact) -> Made:
    """Figures 8 and 9."""
    runs: list[Run] = open_runs([run.folder for run in study.done(ALL)])
    shown = overlays(runs, study.sites)
    numbers = [{"site": one.site, "which": one.which, "method": one.method, "dice": one.dice} for one in shown]
    return Made(drawn=[Drawn(artefact.name, artefact.what, draw(shown), pd.DataFrame(numbers))])


def _shift(study: Study, artefact: Artefact) -> Made:
    """Theorem 3.2; of no trainings."""
    caption = (
        f"{artefact.what}: {value_shift.OTHERS} others drawn from {value_shift.POINTS} points of the plane, which are "
        "turned about 0"
    )
    return Made([Table(artefact.name, caption, value_shift.table(), decimals=3)])


def _descent(study: Study, artefact: Artefact) -> Made:
    """Theorem 3.3 and its corollary; of no trainings."""
    rounds = descent_bounds.ROUNDS * descent_bounds.REPEATS
    caption = f"{artefact.what}: quadratic losses of {descent_bounds.SITES} sites, {rounds} rounds a row"
    return Made([Table(artefact.name, caption, descent_bounds.table(), decimals=1)])


PAPER = Paper(
    "Fair Federated Medical Image Segmentation via Client Contribution Estimation",
    "Jiang et al., CVPR 2023",
    "six sources of retinal fundus images and six hospitals of prostate MRI, 256 x 256, random splits 0.5 / 0.25 "
    "/ 0.25; 200 rounds of one epoch, Dice loss, Adam at 1e-3 with beta (0.9, 0.99), batch 8, three seeds",
    (
        Artefact(
            "table1",
            "Dice of every method on every site",
            _dice,
            (ALL,),
            (published("fedce-table6-fundus"), published("fedce-table6-prostate")),
            "Clients are numbered in the paper, not named: only Avg. and Std. stand side by side. Std. is over the "
            "sites, a sample's (ddof 1). CFFL and CGSV are trained towards one global model, as the paper's tables of "
            "aggregation weights suggest; it does not say.",
        ),
        Artefact(
            "table2",
            "Performance fairness: Dice of every method beside training alone",
            _performance,
            (ALL,),
            (published("fedce-table2"),),
            "The paper's prostate half does not follow from its own Table 1: from those means FedCE (Multi.) gives "
            "86.0 and 2.95, not 98.25 and 1.09. With few sites, correlations say little.",
        ),
        Artefact(
            "table3",
            "Collaboration fairness: aggregation weights beside leave-one-out",
            _collaboration,
            (ALL, LEAVE_ONE_OUT),
            (published("fedce-table3"),),
            "Weights are means over rounds; the paper takes aggregation weights and does not say of which round. "
            "Shares of leave-one-out exist only where the drops sum to more than 0.",
        ),
        Artefact(
            "table4-5",
            "Leave-one-out: drop of Dice without each site, and its share of the images",
            _leave_one_out,
            (LEAVE_ONE_OUT,),
            (published("fedce-table4"), published("fedce-table5")),
            "Table 4 is the paper's fundus, Table 5 its prostate. Drops are signed here, positive where a site helped; "
            "shares are of their sum. The paper prints 1.74 % for client 3 of prostate, where its drops give 2.47 %.",
        ),
        Artefact(
            "table6",
            "As Table 1, with deviations over seeds",
            _dice,
            (ALL,),
            (published("fedce-table6-fundus"), published("fedce-table6-prostate")),
            "Deviations are a sample's (ddof 1) over the seeds asked for.",
        ),
        Artefact(
            "figure2",
            "Intensities of each site",
            _intensities,
            remark="Of normalised images, as they are trained on; the paper does not say what it normalises.",
            private=True,
        ),
        Artefact(
            "figure3",
            "Convergence: validation Dice over rounds, mean of sites",
            _convergence,
            (ALL,),
            remark="Smoothed by a Savitzky-Golay filter as in the paper, which does not state its window. The paper "
            "prints no numbers.",
        ),
        Artefact(
            "figure4",
            "Free riders: the value that tells them, each site riding in a training of its own",
            _free_riders,
            (FREE_RIDING,),
            remark="The paper defines the value in words alone: cosine to the mean update times the growth of the "
            "site's own error; its mean over rounds, below 0 drawn as 0.",
        ),
        Artefact(
            "figure5",
            "Weights of the sites that remain, with and without one",
            _change,
            (FEDCE, FEWER),
            remark="The paper leaves out client 5 of fundus alone, whose images differ most, and reports changes below "
            "1 %; here every site in turn, since which one differs is not known beforehand.",
        ),
        Artefact(
            "figure6",
            "Ablation: the two terms of a contribution, alone and combined",
            _ablation,
            (ABLATION,),
            remark="combine=cosine is the term of gradient space alone, combine=error that of data space. The paper "
            "prints no numbers.",
        ),
        Artefact(
            "figure7",
            "Free riders: cosine of each site's update to the mean",
            _free_riders,
            (FREE_RIDING,),
            remark="The paper shows prostate, over 200 rounds.",
        ),
        Artefact(
            "figure8-9",
            "Segmentations of each site's best, median and worst test case",
            _segmentations,
            (ALL,),
            remark="The cases are chosen by the first method's Dice, those of the paper by hand.",
            private=True,
        ),
        Artefact(
            "theorem3.2",
            "Theorem 3.2: what a shift of the other clients changes of a value, and its bound",
            _shift,
            remark="The theorem assumes that a contribution changes little where its own client is another (Eq. 8); "
            "its proof needs that where one of the others is (Eq. 11). As printed it fails, of a contribution that "
            "hangs on the others alone; as proved it holds. Of a training the bound cannot be computed: no distance "
            "between the distributions that sites are drawn from is known.",
        ),
        Artefact(
            "theorem3.3",
            "Theorem 3.3 and Corollary 3.4: descent of a round, and its bound",
            _descent,
            remark="The theorem asks for a rate of at least 1/L; that of 0.1/L shows what it leaves out. Its proof "
            "takes for granted that a step is no longer than the gradient, and its rho is 1 at every site, not FedCE's "
            "weight. The corollary is derived from a number that is at least 1 where at most 1 is needed. Of a "
            "training the bound cannot be computed: the loss of a network has no known L.",
        ),
    ),
    {"Figure 1": "the method as a diagram, not an experiment"},
)
