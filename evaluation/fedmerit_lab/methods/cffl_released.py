"""CFFL as its authors' released code computes it: a fading reputation, a growing α, other weights, own updates kept."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedmerit.contract.method import Reports
from fedmerit.contract.rewards import Reward
from fedmerit.contract.vectors import aggregate, share
from fedmerit.methods.cffl import CFFL, CFFLState
from fedmerit.schema.rules import About, Choice, Count, Switch

FADE = 0.8  # of the old reputation


@dataclass(frozen=True)
class CFFLReleased(CFFL):
    """A method, CFFL with each of the released readings as a parameter.

    Raises:
        ValueError: a parameter does not follow its rule.
    """

    reward: Annotated[str, Choice(("sparse",)), About("the largest entries by reputation")] = "sparse"
    alpha_growth: Annotated[int, Count(), About("T of alpha (1 + t/T), t up to T; 0: constant")] = 0
    reputation: Annotated[
        str, Choice(("released", "sinh_first")), About("c ∝ sinh(a(.8c + .2 share)); sinh_first: c/2 + sinh(a share)/2")
    ] = "released"
    aggregation: Annotated[
        str, Choice(("mean", "sum", "share")), About("weights n_i over those of all; sum: 1; share: over those of R")
    ] = "mean"
    keep_own: Annotated[bool, Switch(), About("own update kept, own upload taken off the download")] = True

    def strength(self, state: CFFLState, reports: Reports) -> float:
        """Return α of the round."""
        growth = 1 + min(float(state.round) / self.alpha_growth, 1.0) if self.alpha_growth else 1.0
        return super().strength(state, reports) * growth

    def unnormalised_reputation(self, state: CFFLState, shares: Tensor, reports: Reports) -> Tensor:
        """Return (n,) c before it is normalised and sites are removed; ``shares`` (n,) of this round's utility."""
        if self.reputation == "sinh_first":
            return super().unnormalised_reputation(state, shares, reports)
        return torch.sinh(self.strength(state, reports) * (FADE * state.reputation + (1 - FADE) * shares))

    def rewarded(
        self, models: Tensor, clipped: Tensor, uploads: Tensor, quota: Tensor, remaining: Tensor, reports: Reports
    ) -> tuple[Tensor, Tensor]:
        """Return models and weights as `fedmerit.methods.cffl.CFFL.rewarded`, by the released rules."""
        present, ones = reports.present, remaining.double()
        images = share(reports.num_samples, remaining)
        amounts = {"share": images, "mean": reports.data_share * ones, "sum": ones}[self.aggregation]
        update = aggregate(torch.zeros_like(uploads[0]), amounts, uploads)
        models = Reward(update, quota).add_to(models)
        keeping = present if self.keep_own else present & ~remaining
        models[keeping] += clipped[keeping]
        if self.keep_own:  # κ; of "mean" n_i / max n, though n_i / Σ n is what was added
            taken_off = {"share": images, "mean": images / images.max(), "sum": ones}[self.aggregation]
            models -= taken_off.to(models.dtype)[:, None] * uploads
        return models, share(amounts, remaining)
