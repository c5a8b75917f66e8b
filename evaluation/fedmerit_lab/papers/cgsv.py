"""Tables and figures of CGSV (Xu et al., NeurIPS 2021) with the patients of the given sites, repartitioned."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from fedmerit.contract.games import EXACT_SITES, cosine_game, sampled_shapley, shapley
from fedmerit.contract.vectors import cosine_to_sum, gram
from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import texts_digest
from fedmerit.files import write_text
from fedmerit.schema.configuration.settings import PRESETS, ROUNDS, Training
from fedmerit.schema.site_folder import Case, open_sites
from fedmerit.trainers.monai.networks import patch_size
from fedmerit.trainers.monai.prediction import image_losses
from fedmerit.trainers.monai.samples import build_samples
from fedmerit_data.figure_style import STYLE
from fedmerit_evaluation.figures.drawing import INK, METHOD_COLOURS, legend
from fedmerit_evaluation.figures.tables import Table, file_name
from fedmerit_evaluation.results.evaluation import final_models
from fedmerit_evaluation.results.runs import open_run
from fedmerit_evaluation.results.views import STANDALONE
from fedmerit_lab.papers.artefact import Artefact, Drawn, Made, every, printed, read_paper
from fedmerit_lab.papers.figures import site_marks
from fedmerit_lab.papers.partitioned_sites import (
    CLA,
    accuracies,
    agents,
    bars,
    correlate,
    fairness,
    keep_own,
    last_round_values,
    lines,
    local_only_and_final,
    needs,
    partitioned_needs,
    reputation_and_final,
    reputation_and_loss,
    require_partition,
)
from fedmerit_lab.papers.required_trainings import Compared
from fedmerit_lab.papers.study import Partition, Study

PERMUTATIONS = 150  # ln(2/0.1) / (2 * 0.1^2): the (0.1, 0.1)-approximation where marginals span 1, Maleki 2013
COSINE, SAMPLED = "cosine", f"sampled ({PERMUTATIONS})"
EXACT, WHOLE = "exact (Gram)", "exact (updates)"
COLOURS = dict(zip((COSINE, SAMPLED, EXACT, WHOLE), METHOD_COLOURS, strict=False))
SITES, DIMENSIONS = 10, 1024  # constant in each half of the figure
CHEAP = 2**28  # largest 2^N D for which whole updates are summed, in one or two seconds


def grid(largest_sites: int) -> list[tuple[int, int]]:
    """Return (N, D) of the figure: N to ``largest_sites`` at D = 1024, D from 2^6 to 2^18 at N = 10 or less.

    Raises:
        BadInput: ``largest_sites`` is not in 4 to 24.
    """
    if not 4 <= largest_sites <= EXACT_SITES:
        raise BadInput(
            f"largest sites {largest_sites}: expected 4 to {EXACT_SITES}; exact values take 2^sites coalitions"
        )
    over_sites = {(n, DIMENSIONS) for n in (*range(4, largest_sites, 2), largest_sites)}
    over_dimensions = {(min(SITES, largest_sites), 2**power) for power in range(6, 19, 2)}
    return sorted(over_sites | over_dimensions)


def compare(cells: Sequence[tuple[int, int]], *, repeats: int = 10, seed: int = 0) -> pd.DataFrame:
    """Return mean errors and median times of ``repeats`` draws; the errors of a cell repeat for a seed.

    Args:
        cells: (N, D) pairs.
        repeats: draws of the updates, 1 or more.
        seed: of the draws and of the permutations, 0 or more.

    Returns:
        ``(sites, dimensions, evaluation)`` x ``l1, l2, pearson, seconds``: distance to and correlation with the
        exact values, both normalised to sum 1; seconds from updates to values on one thread. There is no row of
        ``WHOLE`` if 2^N D exceeds `CHEAP`.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _draw(2, 2, seed, 0)  # the first call of each function takes longer
        rows = [
            row
            for sites, dimensions in cells
            for repeat in range(repeats)
            for row in _draw(sites, dimensions, seed, repeat)
        ]
    finally:
        torch.set_num_threads(threads)
    draws = pd.DataFrame(rows).groupby(["sites", "dimensions", "evaluation"], sort=False)
    return draws.agg({"l1": "mean", "l2": "mean", "pearson": "mean", "seconds": "median"})


def whole_update_game(updates: Tensor) -> Tensor:
    """Return (2^n,) float64 v(S) = cos(u_S, u_N) of every coalition from its summed (d,) update, the paper's O(2^n d).

    Args:
        updates: (n, d) float64. Entry S of the result is of the sites whose bits are set in S; entry 0 is 0.
    """
    middle = len(updates) // 2
    first, last = _sums(updates[:middle]), _sums(updates[middle:])  # 2^(n/2) sums each: never all 2^n at once
    everyone = updates.sum(dim=0)
    coalitions = torch.empty_like(first)
    blocks = []
    for sums in last:
        torch.add(first, sums, out=coalitions)
        scale = coalitions.norm(dim=1) * everyone.norm()
        blocks.append(torch.where(scale > 0, coalitions @ everyone / scale, 0.0))
    return torch.cat(blocks)


def _sums(updates: Tensor) -> Tensor:
    """Return (2^n, d) sums of ``updates`` over all coalitions, bit i for row i."""
    sums = torch.zeros(1, updates.shape[1], dtype=updates.dtype)
    for update in updates:
        sums = torch.cat([sums, sums + update])
    return sums


def _draw(sites: int, dimensions: int, seed: int, repeat: int) -> list[dict[str, Any]]:
    """Return one draw of updates and every evaluation of it: rows of `compare`, before means are taken."""
    state = np.random.SeedSequence([seed, sites, dimensions, repeat]).generate_state(1)
    generator = torch.Generator().manual_seed(int(state[0]))
    updates = torch.randn(sites, dimensions, generator=generator, dtype=torch.float64)
    weights = torch.full((sites,), 1 / sites, dtype=torch.float64)
    evaluations: dict[str, Callable[[], Tensor]] = {
        EXACT: lambda: shapley(cosine_game(gram(updates), weights)),
        COSINE: lambda: cosine_to_sum(gram(updates), weights),
        SAMPLED: lambda: sampled_shapley(gram(updates), weights, PERMUTATIONS, generator)[0],
    }
    if dimensions << sites <= CHEAP:
        evaluations[WHOLE] = lambda: shapley(whole_update_game(updates))
    rows, values = [], {}
    for name, evaluate in evaluations.items():
        start = time.perf_counter()
        values[name] = evaluate()
        seconds = time.perf_counter() - start
        row = {"sites": sites, "dimensions": dimensions, "evaluation": name}
        rows.append(row | errors(values[EXACT], values[name]) | {"seconds": seconds})
    return rows


def errors(exact: Tensor, values: Tensor) -> dict[str, float]:
    """Return ``l1``, ``l2`` and ``pearson`` between two (n,) vectors of values, each normalised to sum 1."""
    exact, values = exact / exact.sum(), values / values.sum()
    difference = exact - values
    return {
        "l1": float(difference.abs().sum()),
        "l2": float(difference.norm()),
        "pearson": float(torch.corrcoef(torch.stack([exact, values]))[0, 1]),
    }


def draw(table: pd.DataFrame) -> Figure:
    """Return error, correlation and time of `compare`'s table over N at D = 1024 (left) and over D at one N (right)."""
    fixed = min(SITES, table.index.get_level_values("sites").max())
    halves = {
        f"Sites N, at D = {DIMENSIONS}": table.xs(DIMENSIONS, level="dimensions"),
        f"Dimensions D, at N = {fixed}": table.xs(fixed, level="sites"),
    }
    with style.context(STYLE):
        figure = Figure(figsize=(9.6, 7.2), dpi=160, layout="constrained")
        panels = figure.subplots(3, 2, sharex="col", sharey="row")
        for (error, pearson, seconds), (title, half) in zip(panels.T, halves.items(), strict=True):
            for name, colour in COLOURS.items():
                line = half[half.index.get_level_values("evaluation") == name].droplevel("evaluation")
                look: Any = {"color": colour, "marker": "o", "markersize": 3.5}
                if name in (COSINE, SAMPLED):
                    error.plot(line["l1"], **look)
                    error.plot(line["l2"], linestyle="--", **look)
                    pearson.plot(line["pearson"], **look)
                seconds.plot(1000 * line["seconds"], **look)
            error.set_yscale("log")
            seconds.set_yscale("log")
            seconds.set_xlabel(title)
        panels[2, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
        panels[2, 1].set_xscale("log", base=2)
        for panel, label in zip(
            panels[:, 0], ("Error, values of sum 1", "Pearson r with exact values", "Time [ms]"), strict=True
        ):
            panel.set_ylabel(label)
        lines = [Line2D([], [], color=colour, marker="o", markersize=3.5, label=n) for n, colour in COLOURS.items()]
        legend(figure, lines, "Evaluation")
        styles: dict[str, Any] = {"\N{SCRIPT SMALL L}1": "-", "\N{SCRIPT SMALL L}2": "--"}
        norms = [Line2D([], [], color=INK, linestyle=line, label=norm) for norm, line in styles.items()]
        panels[0, 0].legend(handles=norms)
    return figure


FILE = "testing-losses-{}.csv"  # by a digest of the sites


def final_losses(run: Path, sites: Path) -> "pd.Series[float]":
    """Return by site, the mean soft Dice loss of its final model over the test images of all sites, 0 to 1.

    Args:
        run: a finished run folder; the result is stored in its folder ``evaluation``.
        sites: the site folders it was trained on.

    Raises:
        BadInput: there are no final models, or no site has a test image.
    """
    whose = texts_digest([str(Path(sites).resolve()), *(site.digest for site in open_sites(sites))])
    path = Path(run) / "evaluation" / FILE.format(whose[:16])
    if not path.exists():
        write_text(path, _computed(run, sites).to_csv(lineterminator="\n"))
    # a site may be called NA
    table = pd.read_csv(path, dtype={"site": str}, keep_default_na=False, na_values={"loss": [""]})
    return table.set_index("site")["loss"]


def _computed(run: Path, sites: Path) -> "pd.Series[float]":
    folders, model_of = open_sites(sites), final_models(run)
    cases: Sequence[Case] = [case for folder in folders for case in folder.cases("testing")]
    if not cases:
        raise BadInput(f"{sites}: no site has a testing case; prepare the sites again")
    amp = open_run(run).info["training"].get("amp", False)
    found: dict[torch.nn.Module, float] = {}  # one model for all is evaluated once
    losses = {}
    for folder in folders:
        model = model_of(folder)
        if model not in found:
            found[model] = float(image_losses(model, build_samples(cases, patch_size(model)), amp).mean())
        losses[folder.name] = found[model]
    return pd.Series(losses, name="loss").rename_axis("site")


UNI, POW = Partition("UNI", "uniform"), Partition("POW", "powerlaw")
PARTITIONS = (UNI, POW, CLA)
THREE, FIVE = (tuple(replace(one, into=number) for one in PARTITIONS) for number in (3, 5))  # FIVE: of Tables 5 and 6
NOISY = Partition("noisy", "uniform", into=5, noise=(("site-1", 0.2), ("site-2", 0.4), ("site-3", 0.6)))
ALTRUISM = ("cgsv", "cgsv:beta=1.2", "cgsv:beta=1.5", "cgsv:beta=2")
METHODS = ("standalone", "fedavg", "qfedavg", "cffl", "eci", "dw", "rr", "eu", *ALTRUISM)
ALL = needs(METHODS, PARTITIONS)
ALL_KEEP_OWN = needs(keep_own(METHODS), PARTITIONS)
LARGEST = 14  # sites of Figure 1: some seconds


def _accuracy(study: Study, artefact: Artefact) -> Made:
    return accuracies(study, artefact, agents(study))


def _all_accuracies(study: Study, artefact: Artefact) -> Made:
    return accuracies(study, artefact, every)


def _approximation(study: Study, artefact: Artefact) -> Made:
    """Return Figure 1; it is computed once, since times would differ."""
    path = study.out / "figures" / f"{artefact.name}.csv"
    index = ["sites", "dimensions", "evaluation"]
    computed = pd.read_csv(path).set_index(index) if path.exists() else None
    table = compare(grid(LARGEST)) if computed is None else computed
    return Made(drawn=[Drawn(artefact.name, artefact.what, draw(table), table.reset_index())])


def _overhead(study: Study, artefact: Artefact) -> Made:
    """Make Table 3: the time that a round takes beyond local-only training; sites in turn, then the server."""
    (need,) = partitioned_needs(artefact)
    rounds = study.results(need).plain.rounds
    sites = rounds.of("seconds").sum(axis=1).groupby(level="method").median()
    server = rounds.of("server_seconds").max(axis=1).groupby(level="method").median()
    labels = [label for label in need.labels if label in sites.index]
    sites, server = sites[labels], server.reindex(labels)
    both = sites + server
    training = sites.get(STANDALONE, float("nan"))
    columns = {"Sites [s]": sites, "Server [s]": server, "Overhead [s]": both - training}
    frame = pd.DataFrame(columns | {"Ratio to training": (both - training) / training})
    frame = frame.rename_axis("Method").reset_index()
    caption = (
        "Wall-clock time of a round, median over rounds and seeds: sum over sites, server, and overhead of both over "
        "local-only training"
    )
    table = Table(artefact.name, caption, frame, decimals=3)
    return Made([table, *printed(artefact.name, artefact.published)])


def _with_losses(study: Study, artefact: Artefact) -> Made:
    """Return final Dice of each site by method, its test loss and its training loss of the last round."""
    drawn = list(bars(study, artefact).drawn)
    for need in partitioned_needs(artefact):
        sites, found = study.open_partition(require_partition(need)), {}
        for run in study.done(need):
            found[run.label, run.seed] = final_losses(run.folder, sites)
        test = pd.DataFrame(found).T.rename_axis(["method", "seed"])
        for name, title, table in (
            ("test-loss", "Test loss", test),
            ("train-loss", "Training loss of the last round", last_round_values(study.results(need), "train_loss")),
        ):
            means = table.groupby(level="method").mean()
            means = means.loc[[label for label in need.labels if label in means.index]]
            file = f"{artefact.name}-{name}" + f"-{file_name(require_partition(need).name)}" * (len(artefact.needs) > 1)
            numbers = means.rename_axis("method").reset_index()
            caption = f"{artefact.what}, {require_partition(need).name}: {title.lower()}"
            drawn.append(Drawn(file, caption, site_marks(means, title), numbers))
    return Made(drawn=drawn)


def _hyper_parameters(study: Study, artefact: Artefact) -> Made:
    """Return Table 4; it takes no training."""
    paper = PRESETS["cgsv"]
    presets = {"--preset paper": (paper.training, paper.rounds), "the default": (asdict(Training()), ROUNDS)}
    rows = [
        {
            "Training": name,
            "B": float(training["batch_size"]),
            "Step size x 1000": 1000 * float(training["lr"]),
            "Decay [%]": 100 * training["decay"] if training["schedule"] == "step" else float("nan"),
            "T": float(rounds),
            "Optimiser": str(training["optimizer"]),
            "Schedule": str(training["schedule"]),
        }
        for name, (training, rounds) in presets.items()
    ]
    table = Table(artefact.name, artefact.what, pd.DataFrame(rows), decimals=2)
    return Made([table, *printed(artefact.name, artefact.published)])


PAPER = read_paper(
    "cgsv",
    {
        "table1": (_accuracy, ALL),
        "table2": (correlate(local_only_and_final, agents), ALL_KEEP_OWN),
        "table3": (_overhead, (Compared(METHODS, POW),)),
        "table4": (_hyper_parameters, ()),
        "table5": (_all_accuracies, needs(METHODS, FIVE)),
        "table6": (fairness, needs(keep_own(METHODS), FIVE)),
        "table7": (correlate(reputation_and_final, agents), ALL),
        "table8": (correlate(reputation_and_loss, agents), ALL),
        "figure1": (_approximation, ()),
        "figure2": (
            lines(model_distance="Distance to the server's model", train_loss="Training loss"),
            (Compared(("cgsv",), NOISY),),
        ),
        "figure3": (
            lines(validation="Validation Dice [%]", train_loss="Training loss"),
            needs(("cgsv:beta=2",), PARTITIONS),
        ),
        "figure4": (lines(reputation="Reputation"), needs(("cgsv",), THREE)),
        "figure5": (lines(reward_distance="Distance to the aggregate"), needs(("cgsv",), THREE)),
        "figure6": (
            lines(output_distance="Distance to the server's output layer", model_distance="Distance to its model"),
            needs(("cgsv",), THREE),
        ),
        "figure7": (lines(train_loss="Training loss"), (Compared(ALTRUISM, CLA),)),
        "figure8": (_with_losses, (Compared(ALTRUISM, CLA),)),
        "figure9-12": (_with_losses, needs(keep_own(("qfedavg", "cgsv")), PARTITIONS)),
    },
)
