"""Aggregation that a minority of faulty updates cannot control: trimmed mean, median, Krum and Multi-Krum.

Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018. As long as more than
half of the sites are honest, no other can move a parameter of the median beyond their updates.

Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017. The update that
is nearest to its neighbours is taken, or the mean of the m nearest: a site far from all others has no vote.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.method import GlobalModel, Layout, Method, MethodSummary, Needs, Outcome, Reports, inner_products
from fedmerit.contract.vectors import aggregate, share, trimmed_mean
from fedmerit.schema.rules import About, Count, Number


@dataclass(frozen=True)
class Trimmed(Method):
    """A trimmed mean: of every parameter, without ⌊βn⌋ updates at either end (Algorithm 1, option II, Yin et al. 2018).

    n are the sites present; below 1/β of them nothing is cut. Which sites are cut differs from parameter to parameter:
    the weights recorded, and the credit, are equal shares.
    """

    beta: Annotated[float, Number(0, below=0.5), About("β, fraction of the sites that is cut at either end")] = 0.25
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="none", weights="equal, except the extremes of each parameter", paper="Yin et al. 2018"
    )

    def round(self, state: GlobalModel, updates: Tensor, reports: Reports) -> tuple[GlobalModel, Outcome]:
        """Aggregate ``updates`` (n, d): w ← w + trimmed mean of Δ_i."""
        present = reports.present
        cut = math.floor(self.beta * int(present.sum()) + 1e-9)
        model = state.model + trimmed_mean(updates[present], cut)
        weights = share(present, present)
        return GlobalModel(model), Outcome.by_weights(weights, reports, model)


@dataclass(frozen=True)
class Median(Method):
    """The median of the present sites' updates, parameter by parameter (Algorithm 1, option I, Yin et al. 2018).

    Of an even number, the mean of the two in the middle. No site has a weight in a median: the weights recorded, and
    the credit, are equal shares, which say who had a voice and not whose update was taken.
    """

    about: ClassVar[MethodSummary] = MethodSummary(contribution="none", weights="none", paper="Yin et al. 2018")

    def round(self, state: GlobalModel, updates: Tensor, reports: Reports) -> tuple[GlobalModel, Outcome]:
        """Aggregate ``updates`` (n, d): w ← w + median Δ_i."""
        present = reports.present
        model = state.model + trimmed_mean(updates[present], (int(present.sum()) - 1) // 2)
        weights = share(present, present)
        return GlobalModel(model), Outcome.by_weights(weights, reports, model)


@dataclass(frozen=True)
class Krum(Method):
    """A method with scores from distances and weights from scores (Sec. 4, Blanchard et al. 2017).

    n are the sites present. Equal scores share the remaining weight, so the order of sites has no effect (the
    paper takes the first): of three sites, the two nearest to each other. The chosen sites' weights, which are the
    credit too, are 1/m.
    """

    f: Annotated[
        int | None,
        Count(),
        About("sites that may be malicious; n ≥ 2f + 3; None, or if too few are present: as many as that allows"),
    ] = None
    m: Annotated[int, Count(1), About("updates taken, those of the lowest scores; above 1: Multi-Krum")] = 1
    needs: ClassVar[Needs] = Needs(sites=3)  # of two, each is as near to the other
    sums_updates: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="whether its update is among the chosen",
        weights="equal among the chosen, those nearest to their neighbours",
        paper="Blanchard et al. 2017",
    )

    @property
    def reveals_updates(self) -> bool:
        """Whether a model is of one site's update, or of two, of which a site may know its own."""
        return self.m < 3

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> Any:
        """Return the state before round 0; ``model`` is (d,)."""
        if self.f is not None and num_sites < 2 * self.f + 3:
            raise ValueError(f"{num_sites} sites: krum with f={self.f} needs {2 * self.f + 3} or more; lower f")
        return super().start(model, num_sites, layout)

    def round(self, state: GlobalModel, updates: Tensor, reports: Reports) -> tuple[GlobalModel, Outcome]:
        """Aggregate ``updates`` (n, d): w ← w + mean of the m updates with the lowest scores."""
        present = reports.present
        chosen = self.chosen(inner_products(updates, reports)[present][:, present])
        weights = torch.zeros(len(updates), dtype=torch.float64).masked_scatter(present, chosen)
        model = aggregate(state.model, weights, updates)
        return GlobalModel(model), Outcome.by_weights(weights, reports, model)

    def chosen(self, products: Tensor) -> Tensor:
        """Return (k,) weights by s(i) = Σ ‖Δ_i - Δ_j‖² over its k - f - 2 nearest neighbours j.

        ``products``: (k, k) Gram matrix of the updates.
        """
        count, lengths = len(products), products.diagonal()
        most = max((count - 3) // 2, 0)
        f = most if self.f is None else min(self.f, most)
        squared = (lengths[:, None] + lengths - 2 * products).clamp(min=0)
        nearest = squared.sort(dim=1).values[:, 1 : 1 + max(count - f - 2, 1)]  # the first is its own, 0
        scores, m = nearest.sum(dim=1), min(self.m, count)
        last = scores.sort().values[m - 1]
        below, ties = (scores < last).double(), (scores == last).double()
        return (below + ties * (m - below.sum()) / ties.sum()) / m
