"""Detectors that monitor updates: FLTrust's root of trust, challenge images, the guard; and the list of all."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedmerit.contract.method import Reports
from fedmerit.guard.guard import Enrolled, Guard
from fedmerit.guard.history import History
from fedmerit.plugins import Catalogue
from fedmerit.schema.configuration.settings import GuardSettings
from fedmerit_lab.detection.detector import Detection, MonitoredRound, RoundDetector
from fedmerit_lab.detection.published_detectors import EvolvingWeights, PredictedUpdates, StdDagmm


@dataclass
class TrustedRoot:
    """A detector by minus the cosine to the trusted site's update; flagged at 0 and above (FLTrust's weight 0).

    Source: Cao, Fang, Liu and Gong, FLTrust, NDSS 2021: trust is ReLU of the cosine to the update that the server
    trains on a clean root set of its own. Here a site known to be honest replaces that set, and is not judged.
    """

    site: int
    name: str = "trusted root"

    def see(self, round: MonitoredRound) -> Detection[Tensor]:
        """Return cosines of the round."""
        n = len(round.updates)
        if not round.present[self.site]:
            return Detection.unknown(n)
        root = round.updates[self.site].double()
        lengths = torch.stack([row.double().norm() for row in round.updates]) * root.norm()
        inner = torch.stack([row.double() @ root for row in round.updates])
        cosines = torch.where(lengths > 0, inner / lengths.where(lengths > 0, 1.0), 0.0)
        judged = round.present & (torch.arange(n) != self.site)
        return Detection((-cosines).where(judged, torch.nan), judged & (cosines <= 0))


@dataclass
class ChallengeImages:
    """A detector by the loss of a site's model on its challenge images, minus the mean of the others' models on them.

    A site that trained on its images lowers their loss more than others do, so an honest site is below 0. Flagged at
    0 and above.

    Source: Recasens et al. 2024 (FRIDA, arXiv 2410.05020), who detect free riders by membership inference; by the
    loss, as Yeom et al. 2018. Challenge images are a few of the training images that a site enrolled: it has to show
    them to the server, which a hospital may not do. The threshold is ours.
    """

    name: str = "challenge images"

    def see(self, round: MonitoredRound) -> Detection[Tensor]:
        """Return losses of the round."""
        if round.challenge is None:
            return Detection.unknown(len(round.updates))
        others = round.present[:, None] & ~torch.eye(len(round.updates), dtype=torch.bool)
        mean = round.challenge.where(others, torch.nan).nanmean(dim=0)
        above = (round.challenge.diagonal() - mean).where(round.present, torch.nan)
        return Detection(above, above >= 0)


@dataclass
class GuardDetector:
    """The guard's evidence and verdicts on the monitored rounds, whatever the run itself does with them.

    Flagged: there is a verdict. Suspicion: the evidence, log odds that the site does not work.

    Args:
        rounds: of the federation.

    Source: docs/guard.md.
    """

    rounds: int = 100
    name: str = "guard"
    history: History | None = field(default=None, repr=False)

    def see(self, round: MonitoredRound) -> Detection[Tensor]:
        """Apply the guard's rules to the round."""
        n = len(round.updates)
        guard = Guard(GuardSettings("on", "show"), Enrolled.nothing(n), rounds=self.rounds)
        reports = Reports(round.images, round.present)
        self.history, _ = guard.admit(self.history or History.empty(n), round.updates, reports, round.last_step)
        evidence = self.history.evidence
        return Detection(evidence.log_odds, evidence.against)


DETECTORS: Catalogue[Callable[[], RoundDetector]] = Catalogue(
    "detectors", {}, callable, "a function or class that makes a fedmerit_lab.detection.detector.RoundDetector"
)


def others_detectors() -> dict[str, RoundDetector]:
    """Return new detectors of other packages, by name."""
    return {name: make() for name, make in DETECTORS.items()}


def all_detectors(trusted: int) -> list[RoundDetector]:
    """Return new detectors for one federation; ``trusted`` is the row of a site that is known to be honest."""
    return [
        GuardDetector(), StdDagmm(), TrustedRoot(trusted), EvolvingWeights(), PredictedUpdates(), ChallengeImages(),
        *others_detectors().values(),
    ]  # fmt: skip
