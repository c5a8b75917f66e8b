"""Fairness by losses: AFL and TERM, which weigh a site the more, the more the received model errs on its images.

AFL: Mohri, Sivek and Suresh, Agnostic Federated Learning, ICML 2019. TERM: Li, Beirami, Sanjabi and Smith, Tilted
Empirical Risk Minimization, ICLR 2021. Both make sites equally well served; what they contribute is no part of it.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.method import GlobalModel, Layout, MethodSummary, Outcome, Reports
from fedmerit.contract.vectors import aggregate, reshare, share
from fedmerit.methods.qfedavg import AsksLosses, mean_where_unknown
from fedmerit.schema.rules import About, Number


@dataclass(frozen=True)
class WeighsLosses(AsksLosses):
    """A base of both methods, whose weights follow from the losses F_i."""

    sums_updates: ClassVar[bool] = True

    def weigh(self, model: Tensor, weights: Tensor, updates: Tensor, reports: Reports) -> Outcome:
        """Return the outcome of ``model`` (d,) plus Σ weights Δ of ``updates`` (n, d)."""
        losses = reports.values["loss"].where(reports.present, torch.nan)
        return Outcome.by_weights(weights, reports, aggregate(model, weights, updates), quantities={"loss": losses})


@dataclass(frozen=True)
class AFLState:
    """A state of AFL."""

    model: Tensor  # (d,)
    mixture: Tensor  # (n,) λ; 0 before a site's first round


@dataclass(frozen=True)
class AFL(WeighsLosses):
    """A method with weights λ on the simplex that ascend the losses: min over w of max over λ of Σ λ_i F_i(w).

    λ begins equal. Each round moves it among the sites present; absent ones keep theirs.
    """

    rate: Annotated[float, Number(above=0), About("length of a step of the weights, per unit of loss")] = 0.1
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="its weight",
        weights="ascended by training loss, on the simplex",
        site_work="training, losses of training images",
        paper="Mohri et al. 2019",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> AFLState:
        """Return the state before round 0; ``model`` is (d,)."""
        return AFLState(model, torch.zeros(num_sites, dtype=torch.float64))

    def round(self, state: AFLState, updates: Tensor, reports: Reports) -> tuple[AFLState, Outcome]:
        """Return w + Σ λ Δ of ``updates`` (n, d), and λ ← Π(λ + γ_λ F) for the next round (Algorithm 1)."""
        present = reports.present
        weights = share(state.mixture, present)
        ascended = torch.zeros_like(weights)
        losses = mean_where_unknown(reports.values["loss"], present)
        ascended[present] = project_to_simplex((weights + self.rate * losses)[present])
        outcome = self.weigh(state.model, weights, updates, reports)
        return AFLState(outcome.models, reshare(state.mixture, ascended, present)), outcome


def project_to_simplex(point: Tensor) -> Tensor:
    """Return the nearest (k,) vector to ``point`` (k,) with entries from 0 that sum to 1 (Duchi et al., ICML 2008)."""
    descending = point.sort(descending=True).values
    thresholds = (descending.cumsum(0) - 1) / torch.arange(1, len(point) + 1)
    return (point - thresholds[int((descending > thresholds).sum()) - 1]).clamp(min=0)


@dataclass(frozen=True)
class TERM(WeighsLosses):
    """A method that minimises the tilted loss 1/t log Σ p_i e^(t F_i), p_i the shares of training images.

    Its gradient weighs that of a site by p_i e^(t F_i) (Eq. 4 with groups as sites, no tilt within them). FedAvg is
    t = 0; negative t weighs sites less whose losses are large.
    """

    t: Annotated[float, Number(), About("tilt; 0: FedAvg, large: the worst-served site")] = 1.0
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="its weight",
        weights="share of training images, tilted by training loss",
        site_work="training, losses of training images",
        paper="Li et al. 2021, TERM",
    )

    def round(self, state: GlobalModel, updates: Tensor, reports: Reports) -> tuple[Any, Outcome]:
        """Return w + Σ p e^(t F) Δ / Σ p e^(t F) of ``updates`` (n, d)."""
        present = reports.present
        tilted = self.t * mean_where_unknown(reports.values["loss"], present)
        logs = (tilted + reports.data_share.log()).where(present, -torch.inf)
        outcome = self.weigh(state.model, share((logs - logs.max()).exp(), present), updates, reports)
        return GlobalModel(outcome.models), outcome
