"""q-FedAvg: Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020.

A site weighs as much as the model it received errs on its training images, to the power of q. It makes sites equally
well served; what they contribute is no part of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.method import (
    GlobalModel,
    Method,
    MethodSummary,
    Outcome,
    Range,
    Reports,
    SiteView,
    inner_products,
)
from fedmerit.contract.vectors import aggregate, share
from fedmerit.schema.rules import About, Number

EPSILON = 1e-10  # added to every loss


@dataclass(frozen=True)
class AsksLosses(Method):
    """A base of methods whose sites report the loss F_i of the received model on their training images."""

    ranges: ClassVar[Mapping[str, Range]] = {"loss": (0, 1)}

    def report(self, view: SiteView) -> dict[str, float]:
        """Return F_i, the mean soft Dice loss of the received model on the site's training images."""
        return {"loss": float(view.training_losses().double().mean())}


@dataclass(frozen=True)
class QFedAvg(AsksLosses):
    """A server half of q-FedAvg; F_i is the soft Dice loss at site i.

    Weights are shared among the sites present; nothing is remembered of any.

    With ``L`` it divides by Σ h_i, whose term q F^(q-1) ‖LΔ‖² is that of SGD with step 1/L. After Adam on millions
    of parameters ‖Δ‖² is far from the squared step times a gradient's, and L = 1/lr would shrink a round's step some
    10⁵-fold; L is therefore a parameter of its own, and by default the term is dropped.
    """

    q: Annotated[float, Number(0), About("power of the loss; 0: every site alike")] = 1.0
    L: Annotated[
        float | None, Number(above=0), About("Lipschitz constant of Algorithm 2; None: w + Σ (F^q / Σ F^q) Δ")
    ] = None
    sums_updates: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="training loss to the power q",
        weights="training loss to the power q",
        site_work="training, losses of training images",
        paper="Li et al. 2020",
    )

    def round(self, state: GlobalModel, updates: Tensor, reports: Reports) -> tuple[GlobalModel, Outcome]:
        """Aggregate ``updates`` (n, d): w ← w + Σ F^q LΔ / Σ h, h = q F^(q-1) ‖LΔ‖² + L F^q (Algorithm 2)."""
        present = reports.present
        loss = mean_where_unknown(reports.values["loss"], present) + EPSILON
        weights = share((loss / loss.max()) ** self.q, present)  # the maximum: F^q underflows
        step = 1.0
        if self.L is not None:
            squared_norms = inner_products(updates, reports).diagonal()
            step = 1 / float(1 + (weights * self.q * self.L * squared_norms / loss).sum())  # Σ L F^q / Σ h
        model = aggregate(state.model, weights * step, updates)
        outcome = Outcome(
            contribution=weights.where(present, torch.nan),
            reputation=weights,
            weights=weights,
            models=model,
            quantities={"loss": reports.values["loss"].where(present, torch.nan)},
        )
        return GlobalModel(model), outcome


def mean_where_unknown(losses: Tensor, present: Tensor) -> Tensor:
    """Return (n,) the present sites' ``losses``, the mean of the finite ones instead of any other.

    0 for absent sites.
    """
    known = present & losses.isfinite()
    mean = losses[known].mean() if known.any() else losses.new_tensor(1.0)
    return losses.where(known, mean) * present
