"""Figure 1 of CGSV (Xu et al., NeurIPS 2021): approximations of cosine gradient Shapley values, their error and time.

Updates of N sites in D dimensions are drawn from the standard normal distribution, as in the paper; the game is
v(S) = cos(u_S, u_N). All evaluations but ``WHOLE`` work on the Gram matrix of the updates, as the method does.
"""

import time
from collections.abc import Callable, Sequence
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
from fedmerit_evaluation.figures.drawing import INK, METHOD_COLOURS, STYLE, legend

PERMUTATIONS = 150  # ln(2/0.1) / (2 * 0.1^2): the (0.1, 0.1)-approximation where marginals span 1, Maleki 2013
COSINE, SAMPLED = "cosine", f"sampled ({PERMUTATIONS})"
EXACT, WHOLE = "exact (Gram)", "exact (updates)"
COLOURS = dict(zip((COSINE, SAMPLED, EXACT, WHOLE), METHOD_COLOURS, strict=False))
SITES, DIMENSIONS = 10, 1024  # constant in each half of the figure
CHEAP = 2**28  # largest 2^N D for which whole updates are summed, in one or two seconds


def grid(largest_sites: int) -> list[tuple[int, int]]:
    """(N, D) of the figure: N to ``largest_sites`` at D = 1024, D from 2^6 to 2^18 at N = 10 or less.

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
    """Mean errors and median times of ``repeats`` draws; the errors of a cell repeat for a seed.

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
    """(2^n,) float64 v(S) = cos(u_S, u_N) of every coalition from its summed (d,) update, the paper's O(2^n d).

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
    """(2^n, d) sums of ``updates`` over all coalitions, bit i for row i."""
    sums = torch.zeros(1, updates.shape[1], dtype=updates.dtype)
    for update in updates:
        sums = torch.cat([sums, sums + update])
    return sums


def _draw(sites: int, dimensions: int, seed: int, repeat: int) -> list[dict[str, Any]]:
    """One draw of updates and every evaluation of it: rows of `compare`, before means are taken."""
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
    """``l1``, ``l2`` and ``pearson`` between two (n,) vectors of values, each normalised to sum 1."""
    exact, values = exact / exact.sum(), values / values.sum()
    difference = exact - values
    return {
        "l1": float(difference.abs().sum()),
        "l2": float(difference.norm()),
        "pearson": float(torch.corrcoef(torch.stack([exact, values]))[0, 1]),
    }


def draw(table: pd.DataFrame) -> Figure:
    """Error, correlation and time of `compare`'s table over N at D = 1024 (left) and over D at one N (right)."""
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
