"""Two sites that each estimate a mean, alone and together: Section 4.3 and Appendices A and B of Tastan et al. 2025.

Site i has θ̂_i ~ N(θ_i, γ_i²). FedAvg gives both the mean of the two (by samples), CYCle each w_i = (1 - r/2) θ̂_i +
r/2 θ̂_k with r = 1 up to d = 1, 2 - d up to 2, else 0, of d = ((θ̂_2 - θ̂_1)/2)² (Eqs. 17 to 22). Together is useful to
i where (w_i - θ_i)² <= (θ̂_i - θ_i)².
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedmerit_evaluation.figures.drawing import METHOD_COLOURS, STYLE

RUNS = 10_000  # as in the paper
VARIANCE, SAMPLES = 5.0, 10  # of Figure 7: σ²; how many samples site 2 has is not stated
GAPS = tuple(np.linspace(0, 5, 21).round(2))  # θ_2 - θ_1 of Figure 6
RATIOS = tuple(range(1, 11))  # N_1 / N_2 of Figure 7


@dataclass(frozen=True)
class Estimates:
    """What two sites estimate in many runs; every array is (runs, 2)."""

    true: NDArray[np.float64]
    alone: NDArray[np.float64]  # θ̂
    fedavg: NDArray[np.float64]
    cycle: NDArray[np.float64]

    def useful(self, together: NDArray[np.float64]) -> NDArray[np.float64]:
        """(2,) how often each site is at least as near with ``together`` as alone."""
        no_farther = (together - self.true) ** 2 <= (self.alone - self.true) ** 2
        shares: NDArray[np.float64] = no_farther.mean(axis=0)
        return shares


def estimates(gap: float, deviations: Sequence[float], samples: Sequence[float], runs: int, seed: int) -> Estimates:
    """Draws of θ_1 = 0 and θ_2 = ``gap``, with γ_i of ``deviations`` and N_i of ``samples``."""
    true = np.broadcast_to([0.0, gap], (runs, 2))
    alone = np.random.default_rng(seed).normal(true, np.asarray(deviations))
    fedavg = np.repeat((alone @ (np.asarray(samples) / np.sum(samples)))[:, None], 2, axis=1)
    d = ((alone[:, 1:] - alone[:, :1]) / 2) ** 2
    r = np.clip(2 - d, 0, 1)
    return Estimates(true, alone, fedavg, (1 - r / 2) * alone + r / 2 * alone[:, ::-1])


def over_gaps(runs: int = RUNS, seed: int = 0) -> pd.DataFrame:
    """Figure 6, γ = 1: ``gap``, usefulness to site 1 by method, and what the paper bounds it by.

    Theorem A.1 bounds CYCle's from below by exp(-1/(4γ²))/8, Lemma A.1 FedAvg's from above by 2 exp(-γ_G²/(5γ²)), of
    γ_G = ``gap``/2.
    """
    rows = []
    for gap in GAPS:
        drawn = estimates(gap, (1.0, 1.0), (1.0, 1.0), runs, seed)
        rows.append(
            {
                "gap": gap,
                "fedavg": drawn.useful(drawn.fedavg)[0],
                "cycle": drawn.useful(drawn.cycle)[0],
                "at least, cycle": float(np.exp(-0.25) / 8),
                "at most, fedavg": float(min(1.0, 2 * np.exp(-((gap / 2) ** 2) / 5))),
            }
        )
    return pd.DataFrame(rows)


def over_ratios(runs: int = RUNS, seed: int = 0) -> pd.DataFrame:
    """Figure 7, one true mean: ``ratio`` N_1 / N_2, usefulness to each site, deviations of what they end with."""
    rows = []
    for ratio in RATIOS:
        samples = [float(ratio * SAMPLES), float(SAMPLES)]
        drawn = estimates(0.0, [(VARIANCE / number) ** 0.5 for number in samples], samples, runs, seed)
        row: dict[str, float] = {"ratio": ratio}
        for place in (0, 1):
            row[f"cycle, site {place + 1}"] = drawn.useful(drawn.cycle)[place]
            row[f"fedavg, site {place + 1}"] = drawn.useful(drawn.fedavg)[place]
            row[f"deviation, site {place + 1}"] = float(drawn.cycle[:, place].std())
        rows.append(row)
    return pd.DataFrame(rows)


def draw(
    table: pd.DataFrame, over: str, columns: Sequence[str], title: str, up: str = "P(no farther than alone)"
) -> Figure:
    """Lines of the ``columns`` of a table over another, bounds dashed; ``title`` and ``up`` are of the axes."""
    with style.context(STYLE):
        figure = Figure(figsize=(6.4, 4.0), dpi=160, layout="constrained")
        panel = figure.subplots()
        for number, name in enumerate(columns):
            colour = METHOD_COLOURS[number % len(METHOD_COLOURS)]
            bound = name.startswith("at ")
            panel.plot(table[over], table[name], color=colour, linestyle="--" if bound else "-", label=name)
        panel.set_xlabel(title)
        panel.set_ylabel(up)
        panel.legend()
    return figure
