"""Four methods written against the contract alone: what it has to carry beside the methods there are."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.capabilities.local_training import LocalResult, Penalty, TrainingView, TrainsLocally
from fedmerit.core import About, Layout, Method, Outcome, Reports
from fedmerit.methods.fedavg import FedAvg, FedAvgState
from fedmerit.methods.registry import METHODS
from fedmerit.parameters import parameter
from fedmerit.vectors import aggregate, share


def towards(point: Tensor, strength: float) -> Penalty:
    """strength/2 ‖w - point‖²; ``point`` (d,)."""
    return lambda w: strength / 2 * (w - point.to(w)).square().sum()


@dataclass(frozen=True)
class GlobalMethod(Method):
    """FedAvg's server half."""

    about: ClassVar[About] = FedAvg.about

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedAvgState:
        return FedAvgState(model)

    def round(self, state: FedAvgState, updates: Tensor, reports: Reports) -> tuple[FedAvgState, Outcome]:
        return FedAvg().round(state, updates, reports)


@dataclass(frozen=True)
class SiloBN(GlobalMethod):
    """Andreux et al. 2020: one global model, BatchNorm statistics of each site's own."""

    def round(self, state: FedAvgState, updates: Tensor, reports: Reports) -> tuple[FedAvgState, Outcome]:
        state, outcome = super().round(state, updates, reports)
        return state, replace(outcome, statistics="own")


@dataclass(frozen=True)
class FedProx(GlobalMethod, TrainsLocally):
    """Li et al., MLSys 2020: the local loss and μ/2 ‖w - w_t‖²."""

    mu: float = parameter(1e-3, "of the term that holds a site's model near the one received", low=0)

    def train(self, view: TrainingView) -> LocalResult:
        return LocalResult(view.train(view.received, penalty=towards(view.received, self.mu)))


@dataclass(frozen=True)
class SCAFFOLDState:
    model: Tensor  # (d,)
    control: Tensor  # (d,) c


@dataclass(frozen=True)
class SCAFFOLD(Method, TrainsLocally):
    """Karimireddy et al., ICML 2020, option II: gradients g - c_i + c."""

    eta_g: float = parameter(1.0, "the server's step", above=0)

    about: ClassVar[About] = FedAvg.about
    vectors: ClassVar[tuple[str, ...]] = ("control",)  # c to the sites, c_i⁺ - c_i from them
    optimizers: ClassVar[tuple[str, ...]] = ("sgd",)

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> SCAFFOLDState:
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
        """c_i⁺ = c_i - c + (w_t - w_i) / (K η_l)."""
        zero = torch.zeros_like(view.received)
        c, c_i = view.vectors.get("control", zero), view.kept.get("control", zero)
        trained = view.train(view.received, shift=c - c_i)
        change = (view.received - trained.parameters) / (trained.steps * trained.learning_rate) - c
        return LocalResult(trained, vectors={"control": change}, kept={"control": c_i + change})


@dataclass(frozen=True)
class Ditto(GlobalMethod, TrainsLocally):
    """Li et al., ICML 2021: FedAvg, and a model of each site's own, held near the global one by λ/2 ‖v_i - w_t‖²."""

    lambda_: float = parameter(0.1, "of the term that holds a site's own model near the one received", low=0)

    keeps_own_model: ClassVar[bool] = True

    def train(self, view: TrainingView) -> LocalResult:
        trained = view.train(view.received)
        start, statistics = view.own or (view.received, view.buffers)
        return LocalResult(trained, own=view.train(start, statistics, penalty=towards(view.received, self.lambda_)))


CONTRACT_METHODS = {"silobn": SiloBN, "fedprox": FedProx, "scaffold": SCAFFOLD, "ditto": Ditto}


def register() -> None:
    """Make them known in this process, by the names above."""
    METHODS.update(CONTRACT_METHODS)
