"""CFFL as its released code reads, one reading at a time: a fading reputation, a growing α, other weights."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.core import Reports
from fedmerit.methods.cffl import CFFL, CFFLState
from fedmerit.methods.unrewarded import instead
from fedmerit.vectors import aggregate, reward, share

FADE = 0.8  # of the old reputation


@dataclass(frozen=True)
class CFFLReleased(CFFL):
    """CFFL with the readings that ``alpha_growth``, ``reputation``, ``aggregation`` and ``keep_own`` name.

    Raises:
        ValueError: a parameter does not follow its rule, or belongs to another reward.
    """

    read_by_variant: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward == "global" and (self.keep_own or self.aggregation != "share"):
            raise ValueError("reward='global': keep_own and aggregation belong to reward='sparse'")
        if self.keep_own and self.unrewarded == "own":
            raise ValueError("keep_own=True: sites keep what they trained everywhere; leave unrewarded out")

    def strength(self, state: CFFLState, reports: Reports) -> float:
        """α of the round."""
        growth = 1 + min(float(state.round) / self.alpha_growth, 1.0) if self.alpha_growth else 1.0
        return super().strength(state, reports) * growth

    def unnormalised_reputation(self, state: CFFLState, shares: Tensor, reports: Reports) -> Tensor:
        """(n,) c before it is normalised and sites are removed; ``shares`` (n,) of this round's utility."""
        if self.reputation == "sinh_first":
            return super().unnormalised_reputation(state, shares, reports)
        return torch.sinh(self.strength(state, reports) * (FADE * state.reputation + (1 - FADE) * shares))

    def rewarded(
        self, models: Tensor, clipped: Tensor, uploads: Tensor, quota: Tensor, remaining: Tensor, reports: Reports
    ) -> tuple[Tensor, Tensor]:
        """As `CFFL.rewarded`."""
        present, ones = reports.present, remaining.double()
        images = share(reports.num_samples, remaining)
        amounts = {"share": images, "mean": reports.data_share * ones, "sum": ones}[self.aggregation]
        own = instead(self.unrewarded, clipped)
        models = reward(models, aggregate(torch.zeros_like(uploads[0]), amounts, uploads), quota, instead=own)
        if own is None:
            keeping = present if self.keep_own else present & ~remaining
            models[keeping] += clipped[keeping]
        if self.keep_own:  # κ; of "mean" n_i / max n, though n_i / Σ n is what was added
            taken_off = {"share": images, "mean": images / images.max(), "sum": ones}[self.aggregation]
            models -= taken_off.to(models.dtype)[:, None] * uploads
        return models, share(amounts, remaining)
