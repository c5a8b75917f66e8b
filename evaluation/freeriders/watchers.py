"""Every detector that watches updates: the guard's rules, and those of other papers."""

from evaluation.freeriders.challenge_images import ChallengeImages
from evaluation.freeriders.evolving_weights import EvolvingWeights
from evaluation.freeriders.predicted_updates import PredictedUpdates
from evaluation.freeriders.std_dagmm import StdDagmm
from evaluation.freeriders.trusted_root import TrustedRoot
from evaluation.freeriders.watched import Watcher
from evaluation.freeriders.watching_guard import WatchingGuard


def watchers(trusted: int) -> list[Watcher]:
    """New ones, for one federation; ``trusted`` is the place of a site that is known to be honest."""
    return [
        WatchingGuard(), StdDagmm(), TrustedRoot(trusted), EvolvingWeights(), PredictedUpdates(), ChallengeImages(),
    ]  # fmt: skip
