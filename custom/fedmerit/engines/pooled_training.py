"""The sites of one machine, trained as one: what centralised training would give."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock

from torch import Tensor

from fedmerit.federation.local_round import Learned, Memory
from fedmerit.federation.site import Site
from fedmerit.trainers.monai_trainer.data import Samples
from fedmerit.trainers.monai_trainer.patches import build_samples
from fedmerit.wire.messages import Task

RANDOM_STREAM = "pooled"  # part of the seeds, in the place of a site's name


def pool_sites(sites: Sequence[Site]) -> list[Site]:
    """The same sites, each of which trains on the training images of all; they share one training a round."""
    cases = [case for site in sites for case in site.folder.cases("training")]
    everything = build_samples(cases, sites[0].config.network.patch)
    training = _SharedTraining()
    return [PooledSite(site, everything, training, len(sites)) for site in sites]


class _SharedTraining:
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

    def __init__(self, own: Site, everything: Samples, training: _SharedTraining, number: int):
        vars(self).update(vars(own))
        settings = self.config.training
        self.config = replace(self.config, training=replace(settings, steps=settings.steps * number))
        self._own, self.samples, self._training = own, everything, training
        self.training_seed_site = RANDOM_STREAM

    @property
    def num_samples(self) -> int:
        """Its own."""
        return self._own.num_samples

    def learn(self, task: Task, received: Tensor, memory: Memory | None) -> Learned:
        """What the one training gives."""
        return self._training.of(task.round, lambda: super(PooledSite, self).learn(task, received, memory))
