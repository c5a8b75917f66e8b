"""What a server sees of a round, and the contract of a detector that monitors a federation round by round.

Every federation gets a new detector. It sees the rounds in order and knows neither the method nor the attackers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from fedmerit.plugins import Catalogue

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
    keeps_own_model: Tensor  # (n,) bool: the site started from the model that it had trained itself


@dataclass(frozen=True)
class Detection(Generic[Judged]):
    """A detector's result in a round."""

    suspicion: Judged  # by site, higher is more suspicious; NaN: unknown
    flagged: Judged  # by site, bool


class Detector(Protocol[Evidence, Judged]):
    """A detector. Evidence is a round, of which it may remember earlier ones, or the results of finished runs."""

    @property
    def name(self) -> str:
        """The name in tables."""

    def see(self, evidence: Evidence, /) -> Detection[Judged]:
        """Judge the next evidence."""


RoundDetector = Detector[MonitoredRound, Tensor]


DETECTORS: Catalogue[Callable[[], RoundDetector]] = Catalogue(
    "detectors", {}, callable, "a function or class that makes a fedmerit_lab.detection.detector.RoundDetector"
)
