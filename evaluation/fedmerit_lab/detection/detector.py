"""What a server sees of a round, and the contract of a detector that monitors a federation round by round.

Every federation gets a new detector. It sees the rounds in order and knows neither the method nor the attackers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

Evidence = TypeVar("Evidence", contravariant=True)
Judged = TypeVar("Judged")  # a tensor (n,), or a table of runs and rounds x sites


@dataclass(frozen=True)
class MonitoredRound:
    """A round before the method receives it; rows in site order."""

    number: int
    received: Tensor  # (n, d) where each site started
    updates: Tensor  # (n, d) as sent; zeros for absent sites
    present: Tensor  # (n,) bool: sites that sent an update
    images: Tensor  # (n,) float64, as claimed by the sites
    last_step: Tensor | None  # (d,) weighted mean update of the round before; None in round 0
    wrong_claim: Tensor  # (n,) bool: a claim of the round before was found wrong
    keeps_own_model: Tensor  # (n,) bool: the site started from the model that it had trained itself
    challenge: Tensor | None = None  # (n, n) loss, 0 to 1, of the model of each row on images of each column's site


@dataclass(frozen=True)
class Detection(Generic[Judged]):
    """A detector's result in a round."""

    suspicion: Judged  # by site, higher is more suspicious; NaN: unknown
    flagged: Judged  # by site, bool

    @staticmethod
    def above(suspicion: Tensor, threshold: float) -> "Detection[Tensor]":
        """Flag the sites above a threshold."""
        return Detection(suspicion, suspicion > threshold)

    @staticmethod
    def unknown(sites: int) -> "Detection[Tensor]":
        """Return no suspicion of any site: there are no data yet."""
        return Detection(torch.full((sites,), torch.nan, dtype=torch.float64), torch.zeros(sites, dtype=torch.bool))


class Detector(Protocol[Evidence, Judged]):
    """A detector. Evidence is a round, of which it may remember earlier ones, or the results of finished runs."""

    @property
    def name(self) -> str:
        """The name in tables."""

    def see(self, evidence: Evidence, /) -> Detection[Judged]:
        """Judge the next evidence."""


RoundDetector = Detector[MonitoredRound, Tensor]


def compare_with_others(values: Tensor, present: Tensor, least: float) -> Tensor:
    """Return (n,) distances of ``values`` (n,) above the others' median, in the others' median absolute deviations.

    A deviation counts as ``least`` at least. NaN for absent sites, and with fewer than two others.
    """
    distance = torch.full_like(values, torch.nan)
    for row in present.nonzero().flatten().tolist():
        others = values[present & (torch.arange(len(values)) != row)]
        others = others[others.isfinite()]
        if len(others) > 1:
            middle = others.quantile(0.5)
            spread = 1.4826 * (others - middle).abs().quantile(0.5)
            distance[row] = (values[row] - middle) / spread.clamp(min=least)
    return distance


def apply_detectors(detectors: Sequence[RoundDetector], round: MonitoredRound) -> dict[str, Detection[Tensor]]:
    """Return each detector's result of a round, by name."""
    return {detector.name: detector.see(round) for detector in detectors}
