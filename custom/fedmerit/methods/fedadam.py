"""FedAdam: Reddi et al., Adaptive Federated Optimization, ICLR 2021.

The mean of the updates is a gradient to the server, which follows it as Adam does.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.core import About, Layout, Method, Outcome, Reports
from fedmerit.parameters import parameter
from fedmerit.vectors import aggregate


@dataclass(frozen=True)
class FedAdamState:
    """What FedAdam remembers."""

    model: Tensor  # (d,)
    m: Tensor  # (d,) first moment of the mean updates
    v: Tensor  # (d,) float64, second moment


@dataclass(frozen=True)
class FedAdam(Method):
    """Algorithm 2 of Reddi et al. 2021 (FedOpt), with Adam at the server: no bias correction, v starts at τ²."""

    beta1: float = parameter(0.9, "β1, weight of the past in the first moment", low=0, below=1)
    beta2: float = parameter(0.99, "β2, weight of the past in the second moment", low=0, below=1)
    eta: float = parameter(1e-2, "η, the server's step", above=0)
    tau: float = parameter(1e-3, "τ, added to the root of the second moment: the larger, the less adaptive", above=0)

    about: ClassVar[About] = About(paper="Reddi et al. 2021")

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedAdamState:
        """The state before round 0; ``model`` is (d,)."""
        return FedAdamState(model, torch.zeros_like(model), torch.full_like(model, self.tau**2, dtype=torch.float64))

    def round(self, state: FedAdamState, updates: Tensor, reports: Reports) -> tuple[FedAdamState, Outcome]:
        """``updates`` (n, d): Δ = Σ p_i Δ_i, m ← β1 m + (1-β1) Δ, v ← β2 v + (1-β2) Δ², w ← w + η m / (√v + τ)."""
        weights = reports.data_share
        mean = aggregate(torch.zeros_like(state.model), weights, updates)
        m = self.beta1 * state.m + (1 - self.beta1) * mean
        v = self.beta2 * state.v + (1 - self.beta2) * mean.double().square()
        model = state.model + (self.eta * m / (v.sqrt() + self.tau)).to(m.dtype)
        return FedAdamState(model, m, v), Outcome.by_weights(weights, reports, model)
