"""False claims: about the site itself, beside an update, and about others' models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedmerit.attacks.attack import Attack
from fedmerit.attacks.free_riders import Zero
from fedmerit.parameters import parameter
from fedmerit.trainers.monai_trainer.overlaps import Overlap
from fedmerit.wire.messages import Enrolment, Evaluated, Evaluation, Reply

CLAIMS: Mapping[str, float] = {  # the claim with the highest reward, by value that a method asks for
    "minus_error": 1.0,
    "error": 0.0,
    "cosine": -1.0,
    "loss": 1.0,
}


@dataclass(frozen=True, kw_only=True)
class Inflated(Attack):
    """Trains honestly and lies: "num_samples" times ``by``, or a value that methods ask for at its best."""

    what: str = parameter("all", "what it lies of", choices=("all", "num_samples", *CLAIMS))
    by: float = parameter(10.0, "factor of num_samples", low=1)

    def _counted(self, images: int) -> int:
        return max(1, round(self.by * images)) if self.what in ("all", "num_samples") else images

    def commit(self, enrolment: Enrolment) -> Enrolment:
        """The same lie: a count that differs later is refused."""
        invented = self._counted(enrolment.slices["training"])
        return replace(enrolment, slices={**enrolment.slices, "training": max(invented, enrolment.cases["training"])})

    def claim(self, reply: Reply) -> Reply:
        """The lie, about those values that the reply has."""
        reply = replace(reply, num_samples=self._counted(reply.num_samples))
        said = {name: CLAIMS[name] for name in reply.values if name in CLAIMS and self.what in ("all", name)}
        return replace(reply, values={**reply.values, **said})


@dataclass(frozen=True, kw_only=True)
class ZeroInflated(Zero, Inflated):
    """Sends zeros, and says what `Inflated` does: a free rider rewarded for its claims."""

    what: str = parameter("minus_error", "what it lies of", choices=("all", "num_samples", *CLAIMS))


@dataclass(frozen=True, kw_only=True)
class Rigged(Attack):
    """Trains honestly, and lies of models that it evaluates: its friends' are perfect, all others worthless.

    Of models without a site, the better they are the less that site is worth: it is the other way round.
    """

    friends: str = parameter("", "sites whose models are perfect, joined by +; its own name among them")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.friends:
            raise ValueError("friends: missing; name sites whose models are perfect, as in rigged:friends=A+B")

    @property
    def others(self) -> tuple[str, ...]:
        """The friends."""
        return tuple(self.friends.split("+"))

    def rate(self, evaluated: Evaluated, task: Evaluation, sites: Sequence[str]) -> Evaluated:
        """The lie, if the models are the sites' or made of some of theirs; nothing if some site is absent."""
        if task.shares.shape[1] < len(sites) or len(evaluated.overlaps) != len(task.shares):
            return evaluated
        good = favoured_models(task.shares[:, : len(sites)] > 0, [sites.index(friend) for friend in self.others])
        said = tuple(
            tuple((_perfect if one else _worthless)(overlap) for overlap in of_model)
            for one, of_model in zip(good.tolist(), evaluated.overlaps, strict=True)
        )
        return replace(evaluated, overlaps=said)


def favoured_models(members: Tensor, friends: Sequence[int]) -> Tensor:
    """(k,) bool: the models of which a friend of ``friends`` would say the best; ``members`` (k, n) bool."""
    theirs = members[:, list(friends)]
    without_one = bool((members.sum(dim=1) == members.shape[1] - 1).all())
    return theirs.all(dim=1) if without_one else theirs.any(dim=1)


def _perfect(overlap: Overlap) -> Overlap:
    there = overlap.true_positives + overlap.false_negatives
    return replace(overlap, true_positives=there, false_positives=0, false_negatives=0)


def _worthless(overlap: Overlap) -> Overlap:
    there, said = overlap.true_positives + overlap.false_negatives, overlap.true_positives + overlap.false_positives
    return replace(overlap, true_positives=0, false_positives=said, false_negatives=there)
