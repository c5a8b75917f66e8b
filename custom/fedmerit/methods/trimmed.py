"""Coordinate-wise trimmed mean and median: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates, ICML 2018.

The trimmed mean ignores the largest and smallest entries of every parameter's updates. As long as more than half of the
sites are honest, no other can move a parameter of the median beyond their updates.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedmerit.core import About, GlobalModel, Method, Outcome, Reports
from fedmerit.parameters import parameter
from fedmerit.vectors import share, trimmed_mean


@dataclass(frozen=True)
class Trimmed(Method):
    """Of every parameter, the mean of the updates without ⌊βn⌋ at either end (Algorithm 1, option II, Yin et al. 2018).

    n are the sites present; below 1/β of them nothing is cut. Which sites are cut differs from parameter to parameter:
    the weights recorded, and the credit, are equal shares.
    """

    beta: float = parameter(0.25, "β, fraction of the sites that is cut at either end", low=0, below=0.5)

    about: ClassVar[About] = About(
        contribution="none", weights="equal, except the extremes of each parameter", paper="Yin et al. 2018"
    )

    def round(self, state: GlobalModel, updates: Tensor, reports: Reports) -> tuple[GlobalModel, Outcome]:
        """``updates`` (n, d): w ← w + trimmed mean of Δ_i."""
        present = reports.present
        cut = math.floor(self.beta * int(present.sum()) + 1e-9)
        model = state.model + trimmed_mean(updates[present], cut)
        weights = share(present, present)
        return GlobalModel(model), Outcome.by_weights(weights, reports, model)


@dataclass(frozen=True)
class Median(Method):
    """Of every parameter, the median of the present sites' updates (Algorithm 1, option I, Yin et al. 2018).

    Of an even number, the mean of the two in the middle. No site has a weight in a median: the weights recorded, and
    the credit, are equal shares, which say who had a voice and not whose update was taken.
    """

    about: ClassVar[About] = About(contribution="none", weights="none", paper="Yin et al. 2018")

    def round(self, state: GlobalModel, updates: Tensor, reports: Reports) -> tuple[GlobalModel, Outcome]:
        """``updates`` (n, d): w ← w + median Δ_i."""
        present = reports.present
        model = state.model + trimmed_mean(updates[present], (int(present.sum()) - 1) // 2)
        weights = share(present, present)
        return GlobalModel(model), Outcome.by_weights(weights, reports, model)
