"""SCAFFOLD: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020.

Every gradient of a site is corrected by how its gradients differ from those of all: by control variates, the site's
c_i, which stays there, and the server's c.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.capabilities.local_training import LocalResult, TrainingView, TrainsLocally
from fedmerit.core import About, Layout, Method, Outcome, Reports
from fedmerit.parameters import parameter
from fedmerit.vectors import aggregate, share


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

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> SCAFFOLDState:
        """The state before round 0; ``model`` is (d,), and every control variate 0."""
        return SCAFFOLDState(model, torch.zeros_like(model))

    def round(self, state: SCAFFOLDState, updates: Tensor, reports: Reports) -> tuple[SCAFFOLDState, Outcome]:
        """w ← w + η_g mean Δ_i, c ← c + |S|/N mean (c_i⁺ - c_i), means over the sites S that are present."""
        present = reports.present
        weights = share(present, present)
        model = aggregate(state.model, self.eta_g * weights, updates)
        control = aggregate(state.control, present.double() / len(present), reports.vectors["control"])
        contribution = weights.where(present, torch.nan)
        outcome = Outcome(contribution, weights, weights, model, vectors={"control": control})
        return SCAFFOLDState(model, control), outcome

    def train(self, view: TrainingView) -> LocalResult:
        """K steps along g - c_i + c; then c_i⁺ = c_i - c + (w_t - w_i) / (K η_l)."""
        c = view.vectors["control"]
        c_i = view.kept.get("control", torch.zeros_like(c))
        trained = view.train(view.received, shift=c - c_i)
        change = (view.received - trained.parameters) / (trained.steps * trained.learning_rate) - c
        return LocalResult(trained, vectors={"control": change}, kept={"control": c_i + change})
