"""What a site may do instead of its honest round, each by name: free riders, faulty data, false claims.

A attack is put around a `Site` from outside; neither the site's own code nor the server knows of it. It knows
what a real site in its place would: its own images, what it received, and what it remembers of the round before.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from fedmerit.errors import BadInput
from fedmerit.federation.site import Learned, Memory, Site
from fedmerit.files import write_atomically
from fedmerit.seeds import random_seed
from fedmerit.training.data import Case, SiteFolder, Slices
from fedmerit.wire.messages import Answer, PeerModel, Reply, Task, Work

Masks = NDArray[np.uint8]  # of one image: (labels, height, width) of 0 and 1
KEPT = "behaviour.pt"  # in the site's memory folder: what a attack remembers for longer than a round


@dataclass(frozen=True)
class AttackerView:
    """What a site that has to send an update knows."""

    task: Task
    received: Tensor  # (d,) w_t
    step: Tensor  # (d,) w_t - w_{t-1}: what became of the model since its last round
    kept: Mapping[str, Any]  # what `Attack.keep` gave in the first round of the attack
    train: Callable[[], Learned]  # the honest round
    random: Generator  # seeded by (seed, site, round)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The honest round, as what each attack changes a part of. All numbers are checked when one is made.

    Raises:
        ValueError: a parameter is out of its range.
    """

    start: int = 0  # "from" in a spec: the first round of it, honest before
    earliest: ClassVar[int] = 0  # the first round in which it can be done; honest before

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError(f"from={self.start}: expected a round, 0 or more")

    @property
    def first(self) -> int:
        """The first round that is not honest."""
        return max(self.start, self.earliest)

    def seeded_as(self, site: str) -> str:
        """By which site's name its training is seeded."""
        return site

    def training_cases(self, folder: SiteFolder, random: Generator) -> tuple[Case, ...]:
        """What it trains on; ``random`` is seeded by (seed, site), so that it is the same in all rounds."""
        return folder.cases("training")

    def keep(self, memory: Memory, received: Tensor) -> Mapping[str, Any]:
        """What it remembers of its last honest round, ``memory``, and the model (d,) it received after it."""
        return {}

    def update(self, view: AttackerView) -> Tensor | Learned:
        """What it sends: an update (d,) without having trained, or what training gave."""
        return view.train()

    def claim(self, reply: Reply) -> Reply:
        """The reply with what it says of itself."""
        return reply


# Free riders


@dataclass(frozen=True, kw_only=True)
class Repeat(Attack):
    """Trains on one of its images, as often as it has images (Section 4.3, Jiang et al. 2023).

    The image is drawn among those whose masks are not all empty. Augmentation still varies it.
    """

    def training_cases(self, folder: SiteFolder, random: Generator) -> tuple[Case, ...]:
        """One case of one slice, listed n times."""
        index = Slices(folder.cases("training")).index
        shown = [(case, place) for case, place in index if case.label[place].any()] or index
        case, place = shown[random.integers(len(shown))]
        return (replace(case, slices=(place,) * len(index)),)


@dataclass(frozen=True, kw_only=True)
class Zero(Attack):
    """Sends back the model it received: an update of zeros (the plain free rider of Fraboni et al. 2021)."""

    def update(self, view: AttackerView) -> Tensor:
        """(d,) zeros."""
        return torch.zeros_like(view.received)


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """Sends Gaussian noise of the norm that an honest update has (Fraboni et al. 2021, disguised).

    What it can know of that norm: it trains honestly once, and learns how many times as long its update is as the
    step that the model then takes. Afterwards its noise has that many times the norm of the last step.
    """

    times: float = 1.0  # of that norm
    earliest: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("times", self.times)

    def keep(self, memory: Memory, received: Tensor) -> Mapping[str, Any]:
        """The ratio of the norms of its honest update and of the step after it."""
        own, step = memory.trained - memory.received, received - memory.received
        length = float(step.double().norm())
        return {"ratio": float(own.double().norm()) / length if length else 0.0}

    def update(self, view: AttackerView) -> Tensor:
        """(d,) noise."""
        norm = self.times * view.kept["ratio"] * float(view.step.double().norm())
        return _noise(view.received, norm, view.random)


@dataclass(frozen=True, kw_only=True)
class Delta(Attack):
    """Sends the last global step back (delta weights, Lin et al. 2019); with noise of ``noise`` times its norm."""

    noise: float = 0.0
    earliest: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.noise < float("inf"):
            raise ValueError(f"noise={self.noise:g}: expected 0 or more")

    def update(self, view: AttackerView) -> Tensor:
        """(d,) the step, and noise."""
        if not self.noise:
            return view.step
        norm = self.noise * float(view.step.double().norm())
        return view.step + _noise(view.received, norm, view.random)


@dataclass(frozen=True, kw_only=True)
class DeltaNoise(Delta):
    """Sends the last global step back with noise of half its norm: a cosine of 0.894 to it (Lin et al. 2019)."""

    noise: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Replay(Attack):
    """Sends the update of its last honest round again and again (a stale update)."""

    earliest: ClassVar[int] = 1

    def keep(self, memory: Memory, received: Tensor) -> Mapping[str, Any]:
        """That update, and the statistics with it."""
        return {"update": memory.trained - memory.received, "buffers": dict(memory.buffers)}

    def update(self, view: AttackerView) -> Learned:
        """The update kept."""
        update: Tensor = view.kept["update"]
        return Learned(update, view.received + update, view.kept["buffers"], float("nan"))


# Faulty updates


@dataclass(frozen=True, kw_only=True)
class Scaled(Attack):
    """Sends its honest update times ``by`` (model boosting, Bagdasaryan et al. 2020)."""

    by: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("by", abs(self.by))

    def update(self, view: AttackerView) -> Learned:
        """The scaled update, and the statistics of the honest one."""
        honest = view.train()
        update = self.by * honest.update
        return replace(honest, update=update, trained=view.received + update)


@dataclass(frozen=True, kw_only=True)
class SignFlip(Scaled):
    """Sends its honest update with the sign reversed (the sign-flipping adversary of Xu and Lyu 2021)."""

    by: float = -1.0


@dataclass(frozen=True, kw_only=True)
class Twin(Attack):
    """Trains with the random numbers of site ``of``: on a copy of its images, the very same updates (a sybil)."""

    of: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.of:
            raise ValueError("of: missing; name the site whose images it has a copy of, as in twin:of=SITE")

    def seeded_as(self, site: str) -> str:
        """By the other's."""
        return self.of


# Faulty masks


@dataclass(frozen=True, kw_only=True)
class FaultyMasks(Attack):
    """Trains on masks of which a share is wrong, the same ones in every round. Validation and test are left as is."""

    share: float = 1.0  # of its training images

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share:g}: expected more than 0, up to 1")

    def training_cases(self, folder: SiteFolder, random: Generator) -> tuple[Case, ...]:
        """Its cases with the masks of round(share * n) images spoiled."""
        cases = folder.cases("training")
        index = Slices(cases).index
        chosen = random.permutation(len(index))[: round(self.share * len(index))]
        masks = {case.name: np.array(case.label) for case in cases}
        for number in sorted(chosen):
            case, place = index[number]
            masks[case.name][place] = self.spoil(case.label[place], random)
        return tuple(_Remasked(**_fields_of(case), masks=masks[case.name]) for case in cases)

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """The masks of one image, wrong."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Shifted(FaultyMasks):
    """Masks moved down and right by ``by`` of their height and width; what leaves the image is lost."""

    by: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.by < 1:
            raise ValueError(f"by={self.by:g}: expected more than 0, less than 1")

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """Shifted, background in the place of what is not known."""
        down, right = (max(1, round(self.by * side)) for side in masks.shape[1:])
        shifted = np.zeros_like(masks)
        shifted[:, down:, right:] = masks[:, :-down, :-right]
        return shifted


@dataclass(frozen=True, kw_only=True)
class Inverted(FaultyMasks):
    """Foreground and background exchanged, of every label."""

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """The complement."""
        return 1 - masks


@dataclass(frozen=True, kw_only=True)
class Swapped(FaultyMasks):
    """Each label's mask given to the next label (label flipping); of one label alone, `Inverted`."""

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """The planes moved on by one."""
        return np.roll(masks, 1, axis=0) if len(masks) > 1 else 1 - masks


@dataclass(frozen=True, kw_only=True)
class LabelNoise(FaultyMasks):
    """Every pixel of a mask flipped with probability ``level``: symmetric label noise (Natarajan et al. 2013)."""

    level: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.level <= 1:
            raise ValueError(f"level={self.level:g}: expected more than 0, up to 1")

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """Flipped pixel by pixel, each label on its own."""
        return masks ^ (random.random(masks.shape) < self.level).astype(np.uint8)


# False claims

CLAIMS: Mapping[str, float] = {"minus_error": 1.0, "cosine": -1.0, "loss": 1.0}  # what pays most, of what may be said


@dataclass(frozen=True, kw_only=True)
class Inflated(Attack):
    """Trains honestly and lies of itself: "num_samples" times ``by``, or a value that methods ask for at its best."""

    what: str = "all"  # "num_samples", one of `CLAIMS`, or "all" of them
    by: float = 10.0  # of num_samples

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("by", self.by)
        if self.what not in (choices := ("all", "num_samples", *CLAIMS)):
            raise ValueError(f"what={self.what!r}: expected one of {', '.join(choices)}")

    def claim(self, reply: Reply) -> Reply:
        """The lie, about what is said anyway."""
        if self.what in ("all", "num_samples"):
            reply = replace(reply, num_samples=max(1, round(self.by * reply.num_samples)))
        said = {name: CLAIMS[name] for name in reply.values if name in CLAIMS and self.what in ("all", name)}
        return replace(reply, values={**reply.values, **said})


_SPOKEN = {"start": "from"}  # "from" is a word of Python's
KINDS: Mapping[str, type[Attack]] = {
    "repeat": Repeat,
    "zero": Zero,
    "noise": Noise,
    "delta": Delta,
    "delta-noise": DeltaNoise,
    "replay": Replay,
    "sign-flip": SignFlip,
    "scaled": Scaled,
    "shifted": Shifted,
    "inverted": Inverted,
    "swapped": Swapped,
    "label-noise": LabelNoise,
    "inflated": Inflated,
    "twin": Twin,
}


def parse(spec: str) -> Attack:
    """The attack of a spec such as ``noise`` or ``shifted:from=3:share=0.5``.

    Raises:
        BadInput: the kind or a parameter is unknown, or a value is none for it.
    """
    kind, *parts = spec.split(":")
    if kind not in KINDS:
        raise BadInput(f"behaviour {kind!r}: unknown; expected one of {', '.join(KINDS)}")
    known = {_SPOKEN.get(part.name, part.name): part for part in fields(KINDS[kind])}
    values: dict[str, Any] = {}
    for part in parts:
        name, equals, text = part.partition("=")
        if not equals or name not in known or known[name].name in values:
            raise BadInput(
                f"behaviour {spec!r}: {part!r}: expected NAME=VALUE, each once, of {', '.join(known)}; "
                f"for example {kind}:from=3"
            )
        try:
            values[known[name].name] = type(getattr(KINDS[kind], known[name].name))(text)  # the type of its default
        except ValueError:
            raise BadInput(f"behaviour {spec!r}: {name}={text!r} is no number of its kind") from None
    try:
        return KINDS[kind](**values)
    except ValueError as error:
        raise BadInput(f"behaviour {spec!r}: {error}") from None


def text_of(attack: Attack) -> str:
    """The spec of a attack, complete with its defaults; `parse` gives the attack back."""
    kind = next(name for name, known in KINDS.items() if known is type(attack))
    return ":".join([kind, *(f"{_SPOKEN.get(name, name)}={value}" for name, value in vars(attack).items())])


def require_possible(specs: Mapping[str, str], sites: Sequence[str]) -> dict[str, str]:
    """The specs by site, complete; `BadInput` where a site is none of ``sites``, or a spec none that it can follow."""
    complete = {}
    for site, spec in specs.items():
        attack = parse(str(spec))
        named = [site, attack.seeded_as(site)]
        if unknown := [name for name in named if name not in sites]:
            raise BadInput(f"behaviour {site}={spec}: no site {unknown[0]}; there are {', '.join(sites)}")
        complete[site] = text_of(attack)
    return complete


def _positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={value:g}: expected more than 0")


def _noise(like: Tensor, norm: float, random: Generator) -> Tensor:
    """(d,) Gaussian noise of a given norm."""
    noise: Tensor = torch.from_numpy(random.standard_normal(len(like)))
    return noise.mul_(norm / float(noise.norm())).to(like.dtype)


def _fields_of(case: Case) -> dict[str, Any]:
    return {part.name: getattr(case, part.name) for part in fields(case)}


@dataclass(frozen=True)
class _Remasked(Case):
    """A case with other masks than its file's."""

    masks: NDArray[np.uint8] = field(kw_only=True)

    @cached_property
    def label(self) -> NDArray[np.uint8]:
        return self.masks


def attacking(site: Site, spec: str | None) -> "Site | AttackingSite":
    """The site as it is, or following the attack of a spec."""
    return site if spec is None else AttackingSite(site, parse(spec))


class AttackingSite:
    """A site that is honest up to some round and follows a attack from then on; to engines it is a `Site`.

    Args:
        site: the honest one.
        attack: what it does instead.
    """

    def __init__(self, site: Site, attack: Attack):
        self._honest, self._acting, self._first = site, _Acting(site, attack), attack.first

    def answer(self, task: Work) -> Answer:
        """Whatever the server asks for."""
        return (self._acting if task.round >= self._first else self._honest).answer(task)

    def lend(self, receiver: str, round: int) -> PeerModel | None:
        """Its model for a peer, whatever it made of it."""
        return self._honest.lend(receiver, round)

    def sent(self, task: Task, update: Tensor) -> None:
        """As `Site.sent`."""
        self._honest.sent(task, update)


class _Acting(Site):
    """A site that does what its attack says, with the memory of the honest one."""

    def __init__(self, site: Site, attack: Attack):
        folder = copy(site.folder)
        random = np.random.default_rng(random_seed(site.config.seed, site.folder.name, "behaviour"))
        folder.splits = {**folder.splits, "training": attack.training_cases(site.folder, random)}
        folder.name = attack.seeded_as(folder.name)  # the seed of a round is made of it
        super().__init__(folder, site.config, site.memory, str(site.device), site.ask_peer, site.key)
        self.attack, self.name = attack, site.folder.name

    def train(self, task: Task) -> Reply:
        return self.attack.claim(super().train(task))

    def learn(self, task: Task, received: Tensor, memory: Memory | None) -> Learned:
        def train() -> Learned:
            return super(_Acting, self).learn(task, received, memory)

        if memory is None:
            if self.attack.earliest:  # it lost what it would cheat with
                return train()
            memory = Memory(received, received, task.buffers)
        random = np.random.default_rng(random_seed(self.config.seed, self.name, task.round, "behaviour"))
        step = received - memory.received
        sent = self.attack.update(AttackerView(task, received, step, self._kept(task, memory, received), train, random))
        return sent if isinstance(sent, Learned) else Learned(sent, received + sent, task.buffers, float("nan"))

    def _kept(self, task: Task, memory: Memory, received: Tensor) -> Mapping[str, Any]:
        """What the attack remembers: made in its first round, and again wherever that is repeated."""
        file = self.memory / KEPT
        if task.round > self.attack.first and file.exists():
            kept: dict[str, Any] = torch.load(file, weights_only=True)
            return kept
        kept = dict(self.attack.keep(memory, received))
        if kept:
            write_atomically(file, lambda stream: torch.save(kept, stream))
        return kept
