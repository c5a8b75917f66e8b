"""FedAvgM: Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
2019; as in Reddi et al., Adaptive Federated Optimization, ICLR 2021.

The mean of the updates is a gradient to the server, which follows it with momentum.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.core import About, Layout, Method, Outcome, Reports
from fedmerit.parameters import parameter
from fedmerit.vectors import aggregate


@dataclass(frozen=True)
class FedAvgMState:
    """What FedAvgM remembers."""

    model: Tensor  # (d,)
    momentum: Tensor  # (d,) m


@dataclass(frozen=True)
class FedAvgM(Method):
    """FedAvg with momentum at the server. With β = 0 and η = 1 it is FedAvg."""

    beta: float = parameter(0.9, "β, weight of the past in the momentum", low=0, below=1)
    eta: float = parameter(1.0, "η, the server's step", above=0)

    about: ClassVar[About] = About(paper="Hsu et al. 2019; Reddi et al. 2021")

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedAvgMState:
        """The state before round 0; ``model`` is (d,)."""
        return FedAvgMState(model, torch.zeros_like(model))

    def round(self, state: FedAvgMState, updates: Tensor, reports: Reports) -> tuple[FedAvgMState, Outcome]:
        """``updates`` (n, d): m ← β m + Σ p_i Δ_i, w ← w + η m."""
        weights = reports.data_share
        momentum = aggregate(self.beta * state.momentum, weights, updates)
        model = state.model + self.eta * momentum
        return FedAvgMState(model, momentum), Outcome.by_weights(weights, reports, model)
