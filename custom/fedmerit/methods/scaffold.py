"""SCAFFOLD: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020.

Every gradient of a site is corrected by how its gradients differ from those of all: by control variates, the site's
c_i, which stays there, and the server's c.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.contract.capabilities import HasGuardedForm, LocalResult, TrainingView, TrainsLocally
from fedmerit.contract.method import Layout, Method, MethodSummary, Outcome, Reports
from fedmerit.contract.vectors import aggregate, share

MOST = 3.0  # times the median length of a Δ_i, the mean gradient of a site
FEWEST = 3  # sites, for a median to bound
NEAR, ROUNDING = 1e-3, 1e-5  # tolerances: relative to what follows from the update, and to c in float32


@dataclass(frozen=True)
class SCAFFOLDState:
    """The state of SCAFFOLD."""

    model: Tensor  # (d,)
    controls: Tensor  # (n, d) c_i as each site last sent it; c is their mean


@dataclass(frozen=True)
class SCAFFOLD(Method, TrainsLocally, HasGuardedForm):
    """The Algorithm 1 of Karimireddy et al. 2020, option II, with η_g = 1. All sites present count alike.

    Sites send c_i⁺ itself, in the paper c_i⁺ - c_i: after a reply that did not count, the server would lack the
    difference for ever, and c would no longer be the mean of the c_i. It needs plain SGD: with Adam, K η_l is not
    the length of K steps.
    """

    vectors: ClassVar[tuple[str, ...]] = ("control",)  # c to the sites, c_i⁺ from them
    optimizers: ClassVar[tuple[str, ...]] = ("sgd",)
    sums_updates: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="none",
        weights="equal",
        download="global model, control variate",
        site_work="training with corrected gradients",
        paper="Karimireddy et al. 2020",
    )

    @property
    def guarded_form(self) -> "SCAFFOLD":
        """The form with control variates that follow from the updates."""
        return HeldSCAFFOLD()

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> SCAFFOLDState:
        """Return the state before round 0; ``model`` is (d,), and every control variate 0."""
        return SCAFFOLDState(model, model.new_zeros(num_sites, len(model)))

    def round(self, state: SCAFFOLDState, updates: Tensor, reports: Reports) -> tuple[SCAFFOLDState, Outcome]:
        """Aggregate: w ← w + mean Δ_i over the sites S that are present, c ← c + |S|/N mean (c_i⁺ - c_i).

        The mean of all.
        """
        present = reports.present
        weights = share(present, present)
        model = aggregate(state.model, weights, updates)
        controls = self.controls(state.controls, updates, reports).where(present[:, None], state.controls)
        outcome = Outcome.by_weights(weights, reports, model, vectors={"control": _mean(controls)})
        return SCAFFOLDState(model, controls), outcome

    def controls(self, before: Tensor, updates: Tensor, reports: Reports) -> Tensor:
        """Return (n, d) c_i⁺ as the sites sent them; ``before`` (n, d) c_i, ``updates`` (n, d)."""
        return reports.vectors["control"]

    def train(self, view: TrainingView) -> LocalResult:
        """Train K steps along g - c_i + c; then c_i⁺ = c_i - c + (w_t - w_i) / (K η_l)."""
        c = view.vectors["control"]
        c_i = view.kept.get("control", torch.zeros_like(c))
        trained = view.train(view.received, shift=c - c_i)
        control = c_i - c + (view.received - trained.parameters) / (trained.steps * trained.learning_rate)
        return LocalResult(trained, vectors={"control": control}, kept={"control": control})


class HeldSCAFFOLD(SCAFFOLD):
    """A guarded form: only that part of c_i⁺ counts which follows from Δ_i: c_i⁺ - c_i = -a Δ_i - c, a = 1 / (K η_l).

    The guard bounds updates; a vector beside one could be anything, and would be in every site's gradients.
    """

    def controls(self, before: Tensor, updates: Tensor, reports: Reports) -> Tensor:
        """Return the variates that follow from the updates; else the nearest, up to `MOST` times the median length."""
        sent, present = reports.vectors["control"], reports.present
        c, most, held = _mean(before).double(), math.inf, sent.clone()
        changes = sent.double() - before.double()
        follows = [_along(change + c, update.double()) for change, update in zip(changes, updates, strict=True)]
        if present.sum() >= FEWEST:
            most = MOST * float(torch.stack([row.norm() for row in follows])[present].quantile(0.5)) or math.inf
        for place in present.nonzero().flatten().tolist():
            length = float(follows[place].norm())
            change = follows[place] * (min(1.0, most / length) if length else 1.0) - c
            slack = NEAR * length + ROUNDING * float(c.norm())
            if not float((changes[place] - change).norm()) <= slack:
                held[place] = (before[place].double() + change).to(sent.dtype)
        return held


def _mean(controls: Tensor) -> Tensor:
    """Return (d,) c of (n, d) c_i."""
    n = len(controls)
    return aggregate(torch.zeros_like(controls[0]), torch.full((n,), 1 / n, dtype=torch.float64), controls)


def _along(sent: Tensor, update: Tensor) -> Tensor:
    """Return (d,) of all -a times an ``update`` (d,), a at least 0, what is nearest to ``sent`` (d,).

    0 of no update.
    """
    squared = float(update @ update)
    return update * min(0.0, float(sent @ update) / squared) if squared else torch.zeros_like(update)
