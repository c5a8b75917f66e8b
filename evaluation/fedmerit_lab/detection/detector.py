"""What a server sees of a round, and the contract of a detector that watches a federation round by round.

A watcher is made anew for every federation, sees its rounds in order, and knows neither the method nor who attacks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class MonitoredRound:
    """One round, before the method gets it; rows in site order."""

    number: int
    received: Tensor  # (n, d) what each site started from
    updates: Tensor  # (n, d) as they came; zero rows: none came
    present: Tensor  # (n,) bool: whose came
    images: Tensor  # (n,) float64, what sites say
    last_step: Tensor | None  # (d,) mean update of the round before, by its weights; None: there was none
    wrong: Tensor  # (n,) bool: a claim was found wrong in the round before
    alone: Tensor  # (n,) bool: went on from the model that it had trained itself
    challenge: Tensor | None = None  # (n, n) loss, 0 to 1, of the model of each row on images of each column's site


@dataclass(frozen=True)
class Detection:
    """What a detector says of a round."""

    suspicion: Tensor  # (n,) float64, higher is more suspicious; NaN: nothing to go by
    flagged: Tensor  # (n,) bool

    @classmethod
    def over(cls, suspicion: Tensor, threshold: float) -> "Detection":
        """Flagged above a threshold."""
        return cls(suspicion, suspicion > threshold)

    @classmethod
    def nothing(cls, sites: int) -> "Detection":
        """Where there is nothing to go by yet."""
        return cls(torch.full((sites,), torch.nan, dtype=torch.float64), torch.zeros(sites, dtype=torch.bool))


class RoundDetector(Protocol):
    """One way to tell."""

    @property
    def name(self) -> str:
        """Of tables."""

    def see(self, round: MonitoredRound) -> Detection:
        """What it says of the next round."""


def compare_with_others(values: Tensor, present: Tensor, least: float) -> Tensor:
    """(n,) how far each of ``values`` (n,) is above the median of the others, in their median absolute deviations.

    Deviations count as at least ``least``; NaN for absent sites, and with fewer than two others.
    """
    away = torch.full_like(values, torch.nan)
    for place in present.nonzero().flatten().tolist():
        others = values[present & (torch.arange(len(values)) != place)]
        others = others[others.isfinite()]
        if len(others) > 1:
            middle = others.quantile(0.5)
            spread = 1.4826 * (others - middle).abs().quantile(0.5)
            away[place] = (values[place] - middle) / spread.clamp(min=least)
    return away


def run_detector(watchers: Sequence[RoundDetector], round: MonitoredRound) -> dict[str, Detection]:
    """What each says of a round, by name."""
    return {one.name: one.see(round) for one in watchers}
