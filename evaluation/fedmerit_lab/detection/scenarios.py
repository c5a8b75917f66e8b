"""Scenarios of the arena: honest ones, in which nobody may be flagged, and attacks of the last sites.

Attacks are those of `fedmerit_lab.attacks.attack.ATTACKS`, which `fedmerit lab attacks` simulates on site folders; a
function of the small data changes the data of an attacker.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from fedmerit_lab.attacks.attack import Attack, parse_attack
from fedmerit_lab.detection.small_trainings import CLASSES, PIXELS, SiteData

Change = Callable[[SiteData, Generator], SiteData]


def unchanged(site: SiteData, random: Generator) -> SiteData:
    """Return the data as they are."""
    return site


@dataclass(frozen=True)
class Work:
    """A training of attackers of the arena instead of the honest one; their updates are as long as honest ones."""

    steps: int = 10  # of the 10
    batch_size: int = 16
    is_public: bool = False  # on images that anybody has, of all scanners, not on its own
    is_predicted: bool = False  # with the received model's predictions as labels
    length: float = 1.0  # in norms of an honest update


@dataclass(frozen=True)
class Scenario:
    """A federation with a known answer: what its honest sites have in common, what is odd about one, who attacks."""

    card: str  # in a sentence
    odd: Change = unchanged  # of the data of the first site
    all: Change = unchanged  # of the data of every site
    counts: tuple[int, ...] = (60, 80, 110)  # training images, in turn
    concentration: float = 1.0  # of the Dirichlet distribution of classes
    absent: float = 0.0  # probability that the first site misses a round
    away: float = 0.0  # probability that a site misses a round
    adam: bool = False
    lr: float = 0.05
    attack: Attack = field(default_factory=Attack)  # that the last sites follow
    attackers: int = 0
    data: tuple[Change, ...] = (unchanged,)  # of the data of each attacker, in turn
    claims: float = 1.0  # factor of the number of images that an attacker commits to
    work: Work | None = None  # of attackers, instead of the honest one
    joins: int = 0  # the first site's first round
    filter_noise: float = 0.0  # of the first site's own privacy filter, in norms of its update; it declares the filter
    twins: bool = False  # whether the first two sites have the same public images, and no others
    is_copy: bool = False  # whether all attackers have the images of the first


def _noisy(level: float) -> Change:
    """Return a change to images with ``level`` times as much white noise."""

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
    """Return the data with every pixel mixed with all others."""
    mixed = np.eye(PIXELS) + 0.3 * random.normal(size=(PIXELS, PIXELS))
    mix = np.linalg.qr(mixed)[0].astype(np.float32)
    return replace(site, images=site.images @ mix, validation=site.validation @ mix)


def _one_class(site: SiteData, random: Generator) -> SiteData:
    own = np.flatnonzero(site.labels == np.bincount(site.labels).argmax())
    return site.pick(own[random.integers(len(own), size=site.count)])


def _styles(site: SiteData, random: Generator) -> SiteData:
    """Return the data with every other class called by the next class's name."""

    def renamed(labels: "np.typing.NDArray[np.int64]") -> "np.typing.NDArray[np.int64]":
        return np.where(labels % 2 == 0, (labels + 1) % CLASSES, labels)

    return replace(site, labels=renamed(site.labels), validation_labels=renamed(site.validation_labels))


def _batches(size: int) -> Change:
    return lambda site, random: replace(site, batch_size=size)


def _wrong_labels(site: SiteData, random: Generator) -> SiteData:
    is_wrong = random.random(site.count) < 0.6
    return replace(site, labels=np.where(is_wrong, random.integers(CLASSES, size=site.count), site.labels))


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
    "wrong labels": Scenario("60 % of one site's labels are drawn", _wrong_labels),
    "joins in round 10": Scenario("one site joins when half of the rounds are over", joins=10),
    "own filter": Scenario("one site's privacy filter adds noise of the norm of its update", filter_noise=1.0),
    "own filter x8": Scenario("one site's privacy filter adds noise of 8 times that norm", filter_noise=8.0),
    "public twins": Scenario("two sites have the same public images only", twins=True),
}


def _few_images(number: int) -> Change:
    """Return a change to the first images, repeated as often as the site has images."""
    return lambda site, random: site.pick(np.arange(site.count) % number)


def _drawn_labels(site: SiteData, random: Generator) -> SiteData:
    return replace(site, labels=random.permutation(site.labels))


def _half(place: int) -> Change:
    return lambda site, random: site.pick(np.arange(place, site.count, 2))


def attacked(card: str, spec: str = "", attackers: int = 1, **more: Any) -> Scenario:
    """Return the usual scenario with attackers that follow a spec; raise `fedmerit.errors.BadInput` for none such."""
    attack = parse_attack(spec) if spec else Attack()
    return Scenario(card, attack=attack, attackers=attackers, **more)


ATTACKS: Mapping[str, Scenario] = {
    "zero update": attacked("sends back the model", "zero"),
    "zero update, every other round": attacked("rests every other round", "rests:every=2:from=1"),
    "zero update, one round of three": attacked("rests in one round of three", "rests:works=2:from=2"),
    "zeros, then work": attacked("zeros for three rounds, work for three", "rests:every=6:works=3:after=3"),
    "noise of an honest norm": attacked("noise of an honest norm", "noise"),
    "last step": attacked("the step that the model took last", "delta"),
    "last step and noise, cosine .83": attacked("that step under noise", "delta:noise=0.67"),
    "replay": attacked("its first update again and again", "replay"),
    "knows the rules": attacked("its first update again, under noise of 3/4 of its length", "adaptive"),
    "old steps": attacked("a mixture of old steps of the model, under noise", "delta:old=8:noise=0.3:from=2"),
    "trains one round in five": attacked(
        "trains one round in five, else its last update under noise", "rests:every=5:sends=last:from=1"
    ),
    "trains one round in two": attacked(
        "trains every other round, else its last update under noise", "rests:every=2:sends=last:from=1"
    ),
    "works when rated": attacked("noise except in rounds in which it is rated", "rests:every=5:sends=noise:from=1"),
    "two share a direction": attacked("two send one secret vector of each round, under noise", "noise:shared=0.8", 2),
    "one image, repeated": attacked("trains on one image", data=(_few_images(1),)),
    "a tenth of the images": attacked("trains on eight images", data=(_few_images(8),)),
    "drawn labels": attacked("trains on labels in another order", data=(_drawn_labels,)),
    "11 % of the honest update": attacked("a ninth of its update", "scaled:by=0.11:from=1"),
    "10,000 times the honest update": attacked("a huge update", "scaled:by=10000"),
    "signs reversed": attacked("its update reversed", "sign-flip"),
    "half the signs reversed": attacked("every other entry reversed", "half-flip"),
    "slow drift to reversed": attacked("from its update to the reversed one in ten rounds", "drift"),
    "claims 1,000 times its images": attacked("commits to a thousand times its images", claims=1000),
    "two claim three times their images": attacked("two that commit to three times theirs", attackers=2, claims=3),
    "two exact copies": attacked("one site under two names", attackers=2, is_copy=True),
    "two copies, cosine .77": attacked(
        "one site under two names, each under noise", "near-twin:of=the-other", 2, is_copy=True
    ),
    "last step, blocks times factors": attacked("that step, its blocks times fixed factors", "reweighted"),
    "last step, blocks of 24 times factors": attacked("likewise, of small blocks", "reweighted:block=24"),
    "last step, entries times factors": attacked("likewise, of every entry", "reweighted:block=1"),
    "forecast by block": attacked("each block's regression on its last steps", "forecast"),
    "forecast by block of 24": attacked("likewise, of small blocks", "forecast:block=24"),
    "forecast under noise": attacked("the forecast, under noise of .3 of its length", "forecast:noise=0.3"),
    "low-rank mean of steps": attacked("the mean of the last steps, of low rank", "low-rank"),
    "extrapolated steps": attacked("each entry's geometric series continued", "extrapolated"),
    "last step and rescaled weights": attacked("what leaves ReLU layers unchanged, on the last step", "rescaled"),
    "15 % of its update on the last step": attacked("a small part of honest work", "dose"),
    "honest once, then forecast": attacked("trains in round 0 only", "forecast:from=1"),
    "honest once, then that by blocks": attacked(
        "trains in round 0 only, then sends that update, its blocks times factors", "reweighted:of=own:from=1"
    ),
    "honest once, then reversed": attacked(
        "trains in round 0, then keeps later rounds from gaining", "sign-flip:from=1"
    ),
    "honest 8 rounds, then forecast": attacked("trains in 8 rounds only", "forecast:from=8"),
    "2.9 times the length": attacked("a long update", "scaled:by=2.9"),
    "one step of ten": attacked("one step in place of ten, as long", work=Work(steps=1)),
    "one step on two images": attacked("one step on two images", work=Work(1, 2)),
    "public images": attacked("trains on public images only", work=Work(is_public=True)),
    "public images, 2.9 times the length": attacked("likewise, a long update", work=Work(is_public=True, length=2.9)),
    "one step on public images": attacked("likewise, one step in place of ten", work=Work(1, is_public=True)),
    "predicted labels": attacked("trains with the model's predictions as labels", work=Work(is_predicted=True)),
    "a site split in two": attacked(
        "two names, half of the images each", attackers=2, is_copy=True, data=(_half(0), _half(1))
    ),
}
