"""Attacks of the arena: each a class with a card. `ByProduct` makes one of an attack on sites."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from fedmerit.trainers.memory import Learned, Memory
from fedmerit_lab.attacks.attack import Attack, AttackerView, parse_attack
from fedmerit_lab.attacks.free_riders import scaled_noise
from fedmerit_lab.detection.small_trainings import SiteData

NO_BUFFERS: Mapping[str, Tensor] = {}


@dataclass
class AttackedRound:
    """A view of what an attacker of the arena knows when it has to send an update."""

    number: int
    received: Tensor  # (d,)
    honest: Tensor  # (d,) the update that training gave
    past: Sequence[Tensor]  # (d,) models that it received before, oldest first
    own: Sequence[Tensor]  # (d,) updates that training gave it before
    secret: Tensor  # (d,) a direction that colluding sites share
    random: Generator  # seeded by (seed, site, round)
    memory: dict[str, Any]  # its own, from round to round

    def noise(self, norm: Tensor | float) -> Tensor:
        """Return (d,) Gaussian noise of that norm."""
        return scaled_noise(self.received, float(norm), self.random)

    @property
    def length(self) -> float:
        """The norm of an honest update."""
        return float(self.honest.norm())


@dataclass(frozen=True)
class ArenaAttack:
    """The honest round, with hooks of which each attack replaces some."""

    card: str  # in a sentence
    sites: int = 1  # that follow it
    first: int = 0  # the first round that is not honest
    counts: float = 1.0  # factor of the count that it commits to
    is_copy: bool = False  # whether the second site is a copy of the first
    idles: bool = True  # whether it saves work: a free rider

    def data(self, site: SiteData, place: int, random: Generator) -> SiteData:
        """Return what it trains on; ``place``: of the attackers."""
        return site

    def update(self, view: AttackedRound) -> Tensor:
        """Return (d,) what it sends."""
        return view.honest


@dataclass(frozen=True)
class ByProduct(ArenaAttack):
    """An attack of `fedmerit_lab.attacks.attack.ATTACKS` by its spec, as far as it changes updates."""

    spec: str = field(kw_only=True)

    def __post_init__(self) -> None:
        parse_attack(self.spec)  # before anything is played

    def update(self, view: AttackedRound) -> Tensor:
        """Return by that attack, from its first round on."""
        attack: Attack = view.memory.setdefault("attack", parse_attack(self.spec))
        if view.number < attack.first:
            return view.honest
        before, step = view.received, torch.zeros_like(view.received)
        if view.past:
            before = view.past[-1]
            step = view.received - before
        if view.number == attack.first and view.past:
            memory = Memory(before, before + view.own[-1], NO_BUFFERS)
            view.memory["kept"] = dict(attack.keep(memory, view.received))
        learned = Learned(view.honest, view.received + view.honest, NO_BUFFERS, 0.0)
        task = cast(Any, SimpleNamespace(round=view.number))
        kept = view.memory.setdefault("kept", {})
        sent = attack.update(AttackerView(task, view.received, step, kept, lambda: learned, view.random))
        return sent.update if isinstance(sent, Learned) else sent


@dataclass(frozen=True)
class OldSteps(ArenaAttack):
    """An attack that sends a mixture of steps that the model took before, at an honest length, with noise."""

    noise: float = 0.3
    first: int = 2

    def update(self, view: AttackedRound) -> Tensor:
        """Return random sums of the last eight steps but one."""
        models = [*view.past, view.received]
        steps = [after - before for before, after in pairwise(models)][-9:-1]
        if not steps:
            return view.honest
        mixed = torch.stack(steps).T @ torch.from_numpy(view.random.random(len(steps))).float()
        return mixed * (view.length / float(mixed.norm())) + view.noise(self.noise * view.length)


@dataclass(frozen=True)
class Parasite(ArenaAttack):
    """An attack that trains one round in ``every``; in the others it sends its last update of training, with noise."""

    every: int = 5
    noise: float = 0.3
    first: int = 1

    def update(self, view: AttackedRound) -> Tensor:
        """Return honest, or the last honest one."""
        if view.number % self.every == 0 or "kept" not in view.memory:
            view.memory["kept"] = view.honest
            return view.honest
        return cast(Tensor, view.memory["kept"]) + view.noise(self.noise * view.length)


@dataclass(frozen=True)
class SecretDirection(ArenaAttack):
    """An attack of several sites that send one secret vector of each round, with noise of their own."""

    sites: int = 2
    noise: float = 0.5
    first: int = 1

    def update(self, view: AttackedRound) -> Tensor:
        """Return the vector at an honest length, and noise."""
        return view.secret * (view.length / float(view.secret.norm())) + view.noise(self.noise * view.length)


@dataclass(frozen=True)
class RatedOnly(ArenaAttack):
    """An attack that trains only in the rounds after which it is rated, every fifth; noise in the others."""

    every: int = 5
    first: int = 1

    def update(self, view: AttackedRound) -> Tensor:
        """Return honest, or noise."""
        return view.honest if view.number % self.every == 0 else view.noise(view.length)


@dataclass(frozen=True)
class Drift(ArenaAttack):
    """An attack that turns slowly from its honest update to the reversed one."""

    rounds: int = 10
    idles: bool = False

    def update(self, view: AttackedRound) -> Tensor:
        """Return a factor from 1 to -1."""
        return view.honest * (1 - 2 * min(view.number / self.rounds, 1.0))


@dataclass(frozen=True)
class WorksWhenJudged(ArenaAttack):
    """An attack that sends zeros for three rounds, then trains for three: lets verdicts be lifted."""

    def update(self, view: AttackedRound) -> Tensor:
        """Return zeros or the honest one."""
        return view.honest if view.number // 3 % 2 else torch.zeros_like(view.honest)


@dataclass(frozen=True)
class FewImages(ArenaAttack):
    """An attack that trains on a few of its images and claims all."""

    images: int = 1

    def data(self, site: SiteData, place: int, random: Generator) -> SiteData:
        """Return the first ones, as often as it has images."""
        return site.pick(np.arange(site.count) % self.images)


@dataclass(frozen=True)
class WrongLabels(ArenaAttack):
    """An attack that trains on labels that are drawn."""

    idles: bool = False

    def data(self, site: SiteData, place: int, random: Generator) -> SiteData:
        """Return labels in another order."""
        return replace(site, labels=random.permutation(site.labels))


@dataclass(frozen=True)
class Split(ArenaAttack):
    """A site under two names, each with half of its images."""

    sites: int = 2
    idles: bool = False
    is_copy: bool = True

    def data(self, site: SiteData, place: int, random: Generator) -> SiteData:
        """Return one half."""
        return site.pick(np.arange(place, site.count, 2))


@dataclass(frozen=True)
class NearCopies(ArenaAttack):
    """A site under two names, each adds noise of its own."""

    sites: int = 2
    is_copy: bool = True
    idles: bool = False
    noise: float = 0.55

    def update(self, view: AttackedRound) -> Tensor:
        """Return the honest update under noise."""
        return view.honest + view.noise(self.noise * view.length)


def _by_product(card: str, spec: str, first: int = 1, idles: bool = True, **more: Any) -> ArenaAttack:
    return ByProduct(card, first=first, idles=idles, spec=spec, **more)


ATTACKS: Mapping[str, ArenaAttack] = {
    "zero update": _by_product("sends back the model", "zero", 0),
    "zero update, every other round": _by_product("rests every other round", "rests:every=2"),
    "zero update, one round of three": _by_product("rests in one round of three", "rests:works=2", 2),
    "zeros, then work": WorksWhenJudged("zeros for three rounds, work for three"),
    "noise of an honest norm": _by_product("noise of an honest norm", "noise"),
    "last step": _by_product("the step that the model took last", "delta"),
    "last step and noise, cosine .83": _by_product("that step under noise", "delta:noise=0.67"),
    "replay": _by_product("its first update again and again", "replay"),
    "knows the rules": _by_product("its first update again, under noise of 3/4 of its length", "adaptive"),
    "old steps": OldSteps("a mixture of old steps of the model, under noise"),
    "trains one round in five": Parasite("trains one round in five, else its last update under noise"),
    "trains one round in two": Parasite("trains every other round, else its last update under noise", every=2),
    "works when rated": RatedOnly("noise except in rounds in which it is rated"),
    "two share a direction": SecretDirection("two send one secret vector of each round, under noise"),
    "one image, repeated": FewImages("trains on one image"),
    "a tenth of the images": FewImages("trains on eight images", images=8),
    "drawn labels": WrongLabels("trains on labels in another order"),
    "11 % of the honest update": _by_product("a ninth of its update", "scaled:by=0.11", idles=False),
    "10,000 times the honest update": _by_product("a huge update", "scaled:by=10000", 0, False),
    "signs reversed": _by_product("its update reversed", "sign-flip", 0, False),
    "half the signs reversed": _by_product("every other entry reversed", "half-flip", 0, False),
    "slow drift to reversed": Drift("from its update to the reversed one in ten rounds"),
    "claims 1,000 times its images": ArenaAttack("commits to a thousand times its images", counts=1000, idles=False),
    "two claim three times their images": ArenaAttack("two that commit to three times theirs", 2, 0, 3, idles=False),
    "two exact copies": _by_product("one site under two names", "scaled:by=1", 0, False, sites=2, is_copy=True),
    "two copies, cosine .77": NearCopies("one site under two names, each under noise", noise=0.55),
    "a site split in two": Split("two names, half of the images each"),
}
