"""Honest scenarios of the arena, in which nobody may be flagged: each says what is odd about one site, or about all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from fedmerit_lab.detection.small_trainings import CLASSES, PIXELS, SiteData

Change = Callable[[SiteData, Generator], SiteData]


@dataclass(frozen=True)
class Scenario:
    """A scenario: what the honest sites of a federation have in common, and what is odd about one."""

    card: str  # in a sentence
    odd: Change = lambda site, random: site  # what is done to the data of the first site
    all: Change = lambda site, random: site  # likewise of every site
    counts: tuple[int, ...] = (60, 80, 110)  # training images, in turn
    concentration: float = 1.0  # of the Dirichlet distribution of classes
    absent: float = 0.0  # probability that the first site misses a round
    away: float = 0.0  # likewise of every site
    adam: bool = False
    lr: float = 0.05


def _noisy(level: float) -> Change:
    """Return white noise of ``level`` times that which images have."""

    def change(site: SiteData, random: Generator) -> SiteData:
        more = (level**2 - 1) ** 0.5
        images, validation = (
            (one + more * random.normal(size=one.shape)).astype(np.float32) for one in (site.images, site.validation)
        )
        return replace(site, images=images, validation=validation)

    return change


def _inverted(site: SiteData, random: Generator) -> SiteData:
    return replace(site, images=-site.images, validation=-site.validation)


def _scanner(site: SiteData, random: Generator) -> SiteData:
    """Return every pixel is mixed with all others."""
    mixed = np.eye(PIXELS) + 0.3 * random.normal(size=(PIXELS, PIXELS))
    mix = np.linalg.qr(mixed)[0].astype(np.float32)
    return replace(site, images=site.images @ mix, validation=site.validation @ mix)


def _one_class(site: SiteData, random: Generator) -> SiteData:
    own = np.flatnonzero(site.labels == np.bincount(site.labels).argmax())
    return site.pick(own[random.integers(len(own), size=site.count)])


def _styles(site: SiteData, random: Generator) -> SiteData:
    """Return every other class is called by the next one's name."""

    def renamed(labels: "np.typing.NDArray[np.int64]") -> "np.typing.NDArray[np.int64]":
        return np.where(labels % 2 == 0, (labels + 1) % CLASSES, labels)

    return replace(site, labels=renamed(site.labels), validation_labels=renamed(site.validation_labels))


def _batches(size: int) -> Change:
    return lambda site, random: replace(site, batch_size=size)


SCENARIOS: Mapping[str, Scenario] = {
    "usual": Scenario("sites of three sizes, other mixes of classes and scanner settings"),
    "noise x4": Scenario("one site's images are four times as noisy", _noisy(4)),
    "noise x6": Scenario("one site's images are six times as noisy", _noisy(6)),
    "shifted contrast": Scenario("one site's images are inverted", _inverted),
    "other scanner": Scenario("one site's pixels are mixed with each other", _scanner),
    "few cases": Scenario("one site has four images", lambda site, random: site.pick(np.arange(4))),
    "label styles": Scenario("one site calls every other class by another name", _styles),
    "one class": Scenario("one site has images of one class only", _one_class),
    "absent half the time": Scenario("one site misses half of the rounds", absent=0.5),
    "all absent a third": Scenario("every site misses a third of the rounds", away=1 / 3),
    "small batch": Scenario("one site's batches have two images", _batches(2)),
    "small batches": Scenario("all sites' batches have two images", all=_batches(2)),
    "heterogeneous": Scenario("every site has a few of the classes", concentration=0.2),
    "alike": Scenario("sites of one size with nearly the same mix of classes", counts=(80,), concentration=100.0),
    "Adam": Scenario("sites train with Adam", adam=True, lr=0.003),
}
