"""Standalone: every site trains alone, on its own images. What every fairness figure compares with."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.core import Layout, Method, Outcome, Reports


@dataclass(frozen=True)
class StandaloneState:
    """One model per site."""

    models: Tensor  # (n, d)


@dataclass(frozen=True)
class Standalone(Method):
    """Nothing is shared: each site's next model is its own trained one, BatchNorm statistics included.

    An absent site keeps what it has.
    """

    needs_others: ClassVar[bool] = False

    @property
    def shares_buffers(self) -> bool:
        """No: everything stays at its site."""
        return False

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> StandaloneState:
        """All sites start from one model (d,)."""
        return StandaloneState(model.repeat(num_sites, 1))

    def round(self, state: StandaloneState, updates: Tensor, reports: Reports) -> tuple[StandaloneState, Outcome]:
        """``updates`` (n, d): w_i ← w_i + Δ_i. Nobody contributes to anybody; weights are sample shares."""
        models = state.models + updates
        nothing = torch.zeros(len(updates), dtype=torch.float64)
        contribution = nothing.where(reports.present, torch.nan)
        return StandaloneState(models), Outcome(contribution, nothing, reports.data_share, models)
