"""The sites of one machine, trained as one: what centralised training would give."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock

from torch import Tensor

from fedmerit.federation.memory import Learned, Memory
from fedmerit.federation.site import Site
from fedmerit.training.data import Samples
from fedmerit.training.patches import samples_of
from fedmerit.wire.messages import Task

DRAWN_FOR = "pooled"  # part of the seeds, in the place of a site's name


def pooled(sites: Sequence[Site]) -> list[Site]:
    """The same sites, each of which trains on the training images of all; they share one training a round."""
    cases = [case for site in sites for case in site.folder.cases("training")]
    everything = samples_of(cases, sites[0].config.network.patch)
    training = _OneTraining()
    return [PooledSite(site, everything, training, len(sites)) for site in sites]


class _OneTraining:
    """That of the last round, done by the site that comes first."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: tuple[int, Learned] | None = None

    def of(self, round: int, learn: Callable[[], Learned]) -> Learned:
        with self._lock:
            if self._last is None or self._last[0] != round:
                self._last = round, learn()
            return self._last[1]


class PooledSite(Site):
    """A site that validates and tests on its own images, and trains on those of all.

    Args:
        own: the site by itself.
        everything: all sites' training images.
        training: shared by all.
        number: of sites, whose steps of a round, where the run says how many, are taken one after the other.
    """

    def __init__(self, own: Site, everything: Samples, training: _OneTraining, number: int):
        vars(self).update(vars(own))
        settings = self.config.training
        self.config = replace(self.config, training=replace(settings, steps=settings.steps * number))
        self._own, self.samples, self._training = own, everything, training
        self.seeded_as = DRAWN_FOR

    @property
    def num_samples(self) -> int:
        """Its own."""
        return self._own.num_samples

    def learn(self, task: Task, received: Tensor, memory: Memory | None) -> Learned:
        """What the one training gives."""
        return self._training.of(task.round, lambda: super(PooledSite, self).learn(task, received, memory))
