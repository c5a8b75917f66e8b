"""Faults: wrong masks to train on, updates that are changed or another site's, and false claims."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from fedmerit.schema.messages import Enrolment, Evaluated, Evaluation, Reply
from fedmerit.schema.rules import About, Choice, Count, Number, Text
from fedmerit.schema.scores import Overlap
from fedmerit.schema.site_folder import Case, SiteFolder
from fedmerit.trainers.memory import Learned
from fedmerit.trainers.monai.samples import Slices
from fedmerit_lab.attacks.attack import Attack, AttackerView
from fedmerit_lab.attacks.free_riders import Zero, scaled_noise

CLAIMS: Mapping[str, float] = {  # the claim with the highest reward, by value that a method asks for
    "minus_error": 1.0,
    "error": 0.0,
    "cosine": -1.0,
    "loss": 1.0,
}


@dataclass(frozen=True, kw_only=True)
class Inflated(Attack):
    """An attack that trains honestly and lies: "num_samples" times ``by``, or a value at its best."""

    what: Annotated[str, Choice(("all", "num_samples", *CLAIMS)), About("what it lies of")] = "all"
    by: Annotated[float, Number(1), About("factor of num_samples")] = 10.0

    def _counted(self, images: int) -> int:
        return max(1, round(self.by * images)) if self.what in ("all", "num_samples") else images

    def commit(self, enrolment: Enrolment) -> Enrolment:
        """Return the enrolment with the count that replies claim: the server refuses a count that differs later."""
        invented = self._counted(enrolment.slices["training"])
        return replace(enrolment, slices={**enrolment.slices, "training": max(invented, enrolment.cases["training"])})

    def claim(self, reply: Reply) -> Reply:
        """Return the reply with false values, of those that it has."""
        reply = replace(reply, num_samples=self._counted(reply.num_samples))
        said = {name: CLAIMS[name] for name in reply.values if name in CLAIMS and self.what in ("all", name)}
        return replace(reply, values={**reply.values, **said})


@dataclass(frozen=True, kw_only=True)
class ZeroInflated(Zero, Inflated):
    """An attack that sends zeros, and says what `Inflated` does: a free rider rewarded for its claims."""

    what: Annotated[str, Choice(("all", "num_samples", *CLAIMS)), About("what it lies of")] = "minus_error"


@dataclass(frozen=True, kw_only=True)
class Rigged(Attack):
    """An attack that trains honestly and lies about models: its friends' are perfect, all others worthless.

    Of models without a site, the better they are the less that site is worth: it is the other way round.
    """

    friends: Annotated[str, Text(), About("sites whose models are perfect, joined by +; its own name among them")] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.friends:
            raise ValueError("friends: missing; name sites whose models are perfect, as in rigged:friends=A+B")

    @property
    def others(self) -> tuple[str, ...]:
        """The sites whose models are rated perfect."""
        return tuple(self.friends.split("+"))

    def rate(self, evaluated: Evaluated, task: Evaluation, sites: Sequence[str]) -> Evaluated:
        """Return false overlaps of mixtures of the models of all sites; the honest ones if some site is absent."""
        if task.shares.shape[1] < len(sites) or len(evaluated.overlaps) != len(task.shares):
            return evaluated
        good = favoured_models(task.shares[:, : len(sites)] > 0, [sites.index(friend) for friend in self.others])
        said = tuple(
            tuple((_perfect if one else _worthless)(overlap) for overlap in of_model)
            for one, of_model in zip(good.tolist(), evaluated.overlaps, strict=True)
        )
        return replace(evaluated, overlaps=said)


def favoured_models(members: Tensor, friends: Sequence[int]) -> Tensor:
    """Return (k,) bool: the models of which a friend of ``friends`` would say the best; ``members`` (k, n) bool."""
    theirs = members[:, list(friends)]
    without_one = bool((members.sum(dim=1) == members.shape[1] - 1).all())
    return theirs.all(dim=1) if without_one else theirs.any(dim=1)


def _perfect(overlap: Overlap) -> Overlap:
    there = overlap.true_positives + overlap.false_negatives
    return replace(overlap, true_positives=there, false_positives=0, false_negatives=0)


def _worthless(overlap: Overlap) -> Overlap:
    there, said = overlap.true_positives + overlap.false_negatives, overlap.true_positives + overlap.false_positives
    return replace(overlap, true_positives=0, false_positives=said, false_negatives=there)


Masks = NDArray[np.uint8]  # of one image: (labels, height, width) of 0 and 1


@dataclass(frozen=True, kw_only=True)
class FaultyMasks(Attack):
    """An attack that trains on masks of which a share is wrong, the same in every round; evaluation masks are right."""

    share: Annotated[float, Number(high=1, above=0), About("of its training images that have wrong masks")] = 1.0

    def training_cases(self, folder: SiteFolder, random: Generator) -> tuple[Case, ...]:
        """Return the cases with the masks of round(share * n) images spoiled, of one at least."""
        cases = folder.cases("training")
        index = Slices(cases).index
        chosen = random.permutation(len(index))[: max(1, round(self.share * len(index)))]
        masks = {case.name: np.array(case.label) for case in cases}
        for number in sorted(chosen):
            case, place = index[number]
            masks[case.name][place] = self.spoil(case.label[place], random)
        return tuple(_Remasked(**asdict(case), masks=masks[case.name]) for case in cases)

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """Return the masks of one image, wrong."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Shifted(FaultyMasks):
    """An attack that moves masks down and right; what leaves the image is lost."""

    by: Annotated[float, Number(above=0, below=1), About("how far, as a share of height and of width")] = 0.25

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """Return the masks moved down and right by ``by`` of their size, with background where nothing is known."""
        down, right = (max(1, round(self.by * side)) for side in masks.shape[1:])
        shifted = np.zeros_like(masks)
        shifted[:, down:, right:] = masks[:, :-down, :-right]
        return shifted


@dataclass(frozen=True, kw_only=True)
class Inverted(FaultyMasks):
    """An attack that exchanges foreground and background of every label."""

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """Return the complement of every mask."""
        return 1 - masks


@dataclass(frozen=True, kw_only=True)
class Swapped(FaultyMasks):
    """An attack that gives each label's mask to the next label (label flipping); with one label, `Inverted`."""

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """Return the masks with every label's plane at the next label."""
        return np.roll(masks, 1, axis=0) if len(masks) > 1 else 1 - masks


@dataclass(frozen=True, kw_only=True)
class LabelNoise(FaultyMasks):
    """An attack that flips each pixel with probability ``level``: symmetric label noise (Natarajan et al. 2013)."""

    level: Annotated[float, Number(high=1, above=0), About("probability that a pixel is flipped")] = 0.2

    def spoil(self, masks: Masks, random: Generator) -> Masks:
        """Return the masks with pixels flipped independently, label by label."""
        return masks ^ (random.random(masks.shape) < self.level).astype(np.uint8)


@dataclass(frozen=True)
class _Remasked(Case):
    """A case with other masks than its file's."""

    masks: NDArray[np.uint8] = field(kw_only=True)  # (slices, labels, height, width)

    @cached_property
    def label(self) -> NDArray[np.uint8]:
        return self.masks


@dataclass(frozen=True, kw_only=True)
class ChangedUpdate(Attack):
    """A base of attacks that train honestly, and send the update changed with the statistics of the honest one."""

    def update(self, view: AttackerView) -> Learned:
        """Return the result of the honest round with another update."""
        honest = view.train()
        update = self.change(honest.update, view)
        return replace(honest, update=update, trained=view.received + update)

    def change(self, update: Tensor, view: AttackerView) -> Tensor:
        """Return (d,) what is sent instead of the honest ``update`` (d,)."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Scaled(ChangedUpdate):
    """An attack that sends its honest update times ``by`` (model boosting, Bagdasaryan et al. 2020)."""

    by: Annotated[float, Number(), About("factor, not 0")] = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.by:
            raise ValueError(f"by={self.by!r}: expected a finite number other than 0")

    def change(self, update: Tensor, view: AttackerView) -> Tensor:
        """Return the update times the factor."""
        return self.by * update


@dataclass(frozen=True, kw_only=True)
class SignFlip(Scaled):
    """An attack that sends its honest update with the sign reversed (sign flipping of Xu and Lyu 2021)."""

    by: Annotated[float, Number(), About("factor, not 0")] = -1.0


@dataclass(frozen=True, kw_only=True)
class Drift(ChangedUpdate):
    """An attack that turns slowly from its honest update to the reversed one."""

    rounds: Annotated[int, Count(1), About("rounds until the update is reversed")] = 10

    def change(self, update: Tensor, view: AttackerView) -> Tensor:
        """Return the update times a factor that falls from 1 to -1."""
        return update * (1 - 2 * min(view.task.round / self.rounds, 1.0))


@dataclass(frozen=True, kw_only=True)
class HalfFlip(ChangedUpdate):
    """An attack that reverses the sign of every other entry of its honest update, always of the same entries."""

    def change(self, update: Tensor, view: AttackerView) -> Tensor:
        """Return the update with the signs of entries 1, 3, 5 and so on reversed."""
        flipped = update.clone()
        flipped[1::2] *= -1
        return flipped


@dataclass(frozen=True, kw_only=True)
class Twin(Attack):
    """An attack that trains with the random numbers of site ``of``: on the same images, the same updates (a sybil)."""

    of: Annotated[str, Text(), About("the site whose images it has a copy of")] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.of:
            raise ValueError("of: missing; name the site whose images it has a copy of, as in twin:of=SITE")

    @property
    def others(self) -> tuple[str, ...]:
        """The site that is copied."""
        return (self.of,)

    def training_seed_site(self, site: str) -> str:
        """Return the name of the copied site: on its images, its random numbers give its updates."""
        return self.of


@dataclass(frozen=True, kw_only=True)
class NearTwin(ChangedUpdate, Twin):
    """A twin whose updates have noise added, and whose images differ by as little, so that no digest is another's."""

    noise: Annotated[float, Number(0), About("norm of the noise, in norms of the update")] = 0.55

    def change(self, update: Tensor, view: AttackerView) -> Tensor:
        """Return the update of site ``of`` under noise."""
        return update + scaled_noise(update, self.noise * float(update.double().norm()), view.random)

    def commit(self, enrolment: Enrolment) -> Enrolment:
        """Return the enrolment with digests that no other site has: those of the images, back to front."""
        return replace(enrolment, fingerprint=tuple(sorted(digest[::-1] for digest in enrolment.fingerprint)))
