"""FLTrust's root of trust: which updates point where that of a site points that is trusted.

Membership of challenge images: whether a site's model knows images that the site says it trained on.

The guard as a detector: its signs and verdicts on what it sees, whatever the run does with them.

Every detector that watches updates: the guard's rules, and those of other papers.
"""

from dataclasses import dataclass, field, replace

import torch

from fedmerit.core import Outcome, Reports
from fedmerit.guard.guard import Enrolled, Guard
from fedmerit.guard.history import KINDS_NEEDED, ROUNDS, History
from fedmerit.guard.settings import GuardSettings
from fedmerit_lab.detection.detector import Detection, MonitoredRound, RoundDetector
from fedmerit_lab.detection.evolving_weights import EvolvingWeights
from fedmerit_lab.detection.predicted_updates import PredictedUpdates
from fedmerit_lab.detection.std_dagmm import StdDagmm


@dataclass
class TrustedRoot:
    """Suspicion: minus the cosine to the trusted site's update; flagged at 0 and above, where FLTrust gives no weight.

    Source: Cao, Fang, Liu and Gong, FLTrust, NDSS 2021: trust is ReLU of the cosine to the update that the server
    trains on a clean root set of its own. Here a site known to be honest stands for that set, and is not judged.
    """

    site: int
    name: str = "trusted root"

    def see(self, round: MonitoredRound) -> Detection:
        """Cosines of the round."""
        n = len(round.updates)
        if not round.present[self.site]:
            return Detection.nothing(n)
        root = round.updates[self.site].double()
        lengths = torch.stack([row.double().norm() for row in round.updates]) * root.norm()
        inner = torch.stack([row.double() @ root for row in round.updates])
        cosines = torch.where(lengths > 0, inner / lengths.where(lengths > 0, 1.0), 0.0)
        judged = round.present & (torch.arange(n) != self.site)
        return Detection((-cosines).where(judged, torch.nan), judged & (cosines <= 0))


@dataclass
class ChallengeImages:
    """Suspicion: the loss of a site's model on its own challenge images, above the mean of the others' models on them.

    A site that trained on its images lowers their loss more than others do: below 0. Flagged at 0 and above.

    Source: Recasens et al. 2024 (FRIDA, arXiv 2410.05020), who tell riders by membership inference; by the loss, as
    Yeom et al. 2018. Challenge images are a few of the training images that a site enrolled: it has to show them to
    whoever asks, which a hospital may not do. The threshold is ours.
    """

    name: str = "challenge images"

    def see(self, round: MonitoredRound) -> Detection:
        """Losses of the round."""
        if round.challenge is None:
            return Detection.nothing(len(round.updates))
        others = round.present[:, None] & ~torch.eye(len(round.updates), dtype=torch.bool)
        of_others = round.challenge.where(others, torch.nan).nanmean(dim=0)
        above = (round.challenge.diagonal() - of_others).where(round.present, torch.nan)
        return Detection(above, above >= 0)


@dataclass
class GuardDetector:
    """Flagged: a verdict stands. Suspicion: for how many rounds as many kinds of signs stand as a verdict needs.

    It knows no method's weights: who made the model's last step it reckons by images, so that under Krum it accuses
    where the guard of the run does not.

    Source: docs/trust.md.
    """

    name: str = "guard"
    history: History | None = field(default=None, repr=False)

    def see(self, round: MonitoredRound) -> Detection:
        """What its rules make of the round."""
        n = len(round.updates)
        guard = Guard(GuardSettings("on", "show"), Enrolled.nothing(n))
        history = replace(self.history or History.empty(n), claim_was_wrong=round.wrong, keeps_own_model=round.alone)
        reports = Reports(round.images, round.present)
        history, ruling = guard.admit(history, round.updates, reports, round.last_step)
        weights = ruling.reports.data_share  # a watcher knows no method's
        shared = round.received[~round.alone]
        one = len(shared) > 0 and bool((shared == shared[0]).all())
        made = Outcome(weights, weights, weights, shared[0] if one else round.received)
        self.history = guard.after(history, replace(ruling, withheld=round.alone & round.present), made)
        verdicts = self.history.verdicts
        rounds = verdicts.rounds.topk(KINDS_NEEDED, dim=0).values[-1].clamp(max=ROUNDS)
        suspicion = rounds.double() + ROUNDS * verdicts.against
        return Detection(suspicion, verdicts.against)


def all_detectors(trusted: int) -> list[RoundDetector]:
    """New ones, for one federation; ``trusted`` is the place of a site that is known to be honest."""
    return [
        GuardDetector(), StdDagmm(), TrustedRoot(trusted), EvolvingWeights(), PredictedUpdates(), ChallengeImages(),
    ]  # fmt: skip
