"""Standalone: every site trains alone, on its own images. What every fairness figure compares with."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.core import About, Layout, Method, Needs, Outcome, Reports


@dataclass(frozen=True)
class StandaloneState:
    """One model per site."""

    models: Tensor  # (n, d)


@dataclass(frozen=True)
class Standalone(Method):
    """Nothing is shared: each site's next model is its own trained one, BatchNorm statistics included.

    An absent site keeps what it has.
    """

    needs: ClassVar[Needs] = Needs(
        sites=1, unfiltered="no site gets anything of another's update, so that a filter would only spoil its own"
    )
    has_site_models: ClassVar[bool] = True
    about: ClassVar[About] = About(
        contribution="none",
        weights="none",
        download="own model",
        site_work="training",
        paper="baseline",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> StandaloneState:
        """All sites start from one model (d,)."""
        return StandaloneState(model.repeat(num_sites, 1))

    def round(self, state: StandaloneState, updates: Tensor, reports: Reports) -> tuple[StandaloneState, Outcome]:
        """``updates`` (n, d): w_i ← w_i + Δ_i. Nobody contributes to anybody; weights are sample shares."""
        models = state.models + updates
        nothing = torch.zeros(len(updates), dtype=torch.float64)
        contribution = nothing.where(reports.present, torch.nan)
        return StandaloneState(models), Outcome(contribution, nothing, reports.data_share, models)
