"""SCAFFOLD: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020.

Every gradient of a site is corrected by how its gradients differ from those of all: by control variates, the site's
c_i, which stays there, and the server's c.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.capabilities.local_training import LocalResult, TrainingView, TrainsLocally
from fedmerit.core import About, Layout, Method, Outcome, Reports
from fedmerit.parameters import parameter
from fedmerit.vectors import aggregate, share

MOST = 3.0  # times the median length of a Δ_i, the mean gradient of a site
FEWEST = 3  # sites, for a median to bound
NEAR, ROUNDING = 1e-3, 1e-5  # of what follows, and of c in float32: by how much what was sent may be away


@dataclass(frozen=True)
class SCAFFOLDState:
    """What SCAFFOLD remembers."""

    model: Tensor  # (d,)
    control: Tensor  # (d,) c


@dataclass(frozen=True)
class SCAFFOLD(Method, TrainsLocally):
    """Algorithm 1 of Karimireddy et al. 2020, option II. All sites present count alike.

    It needs plain SGD: with Adam, K η_l is not the length of K steps.
    """

    eta_g: float = parameter(1.0, "η_g, the server's step", above=0)

    vectors: ClassVar[tuple[str, ...]] = ("control",)  # c to the sites, c_i⁺ - c_i from them
    optimizers: ClassVar[tuple[str, ...]] = ("sgd",)
    about: ClassVar[About] = About(
        contribution="none",
        weights="equal",
        download="global model, control variate",
        site_work="training with corrected gradients",
        paper="Karimireddy et al. 2020",
    )

    @property
    def without_claims(self) -> "SCAFFOLD":
        """With control variates that are no more than what the updates say."""
        return HeldSCAFFOLD(**vars(self))

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> SCAFFOLDState:
        """The state before round 0; ``model`` is (d,), and every control variate 0."""
        return SCAFFOLDState(model, torch.zeros_like(model))

    def round(self, state: SCAFFOLDState, updates: Tensor, reports: Reports) -> tuple[SCAFFOLDState, Outcome]:
        """w ← w + η_g mean Δ_i, c ← c + |S|/N mean (c_i⁺ - c_i), means over the sites S that are present."""
        present = reports.present
        weights = share(present, present)
        model = aggregate(state.model, self.eta_g * weights, updates)
        changes = self.changes(state.control, updates, reports)
        control = aggregate(state.control, present.double() / len(present), changes)
        outcome = Outcome.by_weights(weights, reports, model, vectors={"control": control})
        return SCAFFOLDState(model, control), outcome

    def changes(self, control: Tensor, updates: Tensor, reports: Reports) -> Tensor:
        """(n, d) c_i⁺ - c_i as the sites sent them; ``control`` (d,) c, ``updates`` (n, d)."""
        return reports.vectors["control"]

    def train(self, view: TrainingView) -> LocalResult:
        """K steps along g - c_i + c; then c_i⁺ = c_i - c + (w_t - w_i) / (K η_l)."""
        c = view.vectors["control"]
        c_i = view.kept.get("control", torch.zeros_like(c))
        trained = view.train(view.received, shift=c - c_i)
        change = (view.received - trained.parameters) / (trained.steps * trained.learning_rate) - c
        return LocalResult(trained, vectors={"control": change}, kept={"control": c_i + change})


class HeldSCAFFOLD(SCAFFOLD):
    """Of what a site sends beside its update Δ_i counts what follows from it: c_i⁺ - c_i = -a Δ_i - c, a = 1 / (K η_l).

    The guard bounds updates; a vector beside one could be anything, and would be in every site's gradients.
    """

    def changes(self, control: Tensor, updates: Tensor, reports: Reports) -> Tensor:
        """As sent, where it follows; else what is nearest to that, c_i⁺ - c_i + c up to `MOST` times the median."""
        sent, present = reports.vectors["control"], reports.present
        c, most, held = control.double(), math.inf, sent.clone()
        follows = [_along(row.double() + c, update.double()) for row, update in zip(sent, updates, strict=True)]
        if present.sum() >= FEWEST:
            most = MOST * float(torch.stack([row.norm() for row in follows])[present].quantile(0.5)) or math.inf
        for place in present.nonzero().flatten().tolist():
            length = float(follows[place].norm())
            change = follows[place] * (min(1.0, most / length) if length else 1.0) - c
            slack = NEAR * length + ROUNDING * float(c.norm())
            if not float((sent[place].double() - change).norm()) <= slack:
                held[place] = change.to(sent.dtype)
        return held


def _along(sent: Tensor, update: Tensor) -> Tensor:
    """(d,) of all -a times an ``update`` (d,), a at least 0, what is nearest to ``sent`` (d,); 0 of no update."""
    squared = float(update @ update)
    return update * min(0.0, float(sent @ update) / squared) if squared else torch.zeros_like(update)
