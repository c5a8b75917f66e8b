"""The guard as a detector: its signs and verdicts on what it sees, whatever the run does with them."""

from dataclasses import dataclass, field, replace

from evaluation.freeriders.watched import Said, WatchedRound
from fedmerit.core import Outcome, Reports
from fedmerit.guard.guard import Answers, Enrolled, Guard
from fedmerit.guard.history import History
from fedmerit.guard.settings import Guarding
from fedmerit.guard.verdicts import KINDS_NEEDED, ROUNDS


@dataclass
class WatchingGuard:
    """Flagged: a verdict stands. Suspicion: for how many rounds as many kinds of signs stand as a verdict needs.

    It knows no method's weights: who made the model's last step it reckons by images, so that under Krum it accuses
    where the guard of the run does not.

    Source: docs/trust.md.
    """

    name: str = "guard"
    history: History | None = field(default=None, repr=False)

    def see(self, round: WatchedRound) -> Said:
        """What its rules make of the round."""
        n = len(round.updates)
        guard = Guard(Guarding("on", "show"), Enrolled.nothing(n))
        history = replace(self.history or History.empty(n), claimed=round.wrong, alone=round.alone)
        answers = Answers(round.updates, Reports(round.images, round.present), round.last_step)
        history, ruling = guard.rule(history, answers)
        weights = ruling.reports.data_share  # a watcher knows no method's
        shared = round.received[~round.alone]
        one = len(shared) > 0 and bool((shared == shared[0]).all())
        made = Outcome(weights, weights, weights, shared[0] if one else round.received)
        self.history = guard.after(history, replace(ruling, withheld=round.alone & round.present), made)
        verdicts = self.history.verdicts
        rounds = verdicts.rounds.topk(KINDS_NEEDED, dim=0).values[-1].clamp(max=ROUNDS)
        suspicion = rounds.double() + ROUNDS * verdicts.against
        return Said(suspicion, verdicts.against)
