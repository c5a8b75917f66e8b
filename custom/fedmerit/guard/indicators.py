"""Indicators of a free rider, of kinds that are independent of each other; docs/guard.md has the rules in words.

All compare a site with the others of the round; none is seen if the others have too little in common to compare with.
Only a zero update shows two kinds by one fact, length and direction: otherwise a free rider from round 0 on would not
be detected.

Response: how an update changes with what the other sites made of the model. Minimising a loss asks for less of what
was given already. Of two rounds s < t, the change Δ_t - Δ_s of a site's update points against the way that the others'
updates moved the model in between, for any loss that is convex on it, wherever its minimum is:
(Δ_t - Δ_s) · (w_t - w_s) < 0. Reversed updates point along. Noise and half-reversed updates point neither way, but so
did an honest hospital for some rounds: not to respond is no indicator. The site's own update is left out of the way,
since it holds the noise of its own training.

Profile: in which parts of the network updates are long. Training moves some layers more than others, at every site
alike and whatever the images, since all train one network with one optimiser; reversed updates have the profile of
honest ones. An untrained update has none, unless an attacker shaped it. Late in training Adam moves all entries alike
if gradients are noise: an honest hospital had a flat profile then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmerit.guard.bounds import median_of_others
from fedmerit.vectors import ratio

SHORT = 0.05  # of the others' median norm
NOTHING = 0.001  # likewise: below it there is no direction
STALE = 0.5  # least cosine to the step before, and
STEP_DISTANCE_FACTOR = 0.5  # at most this part of the others' distance from it
REPLAY_COSINE = 0.99  # cosine to the site's own last update
DIRECTION_FACTOR = 0.25  # of the others' median cosine
NEW = 0.1  # least part of an update, without the step before, that shows a direction
MIN_COSINE = 0.02  # median cosine of the others that is enough to compare with: chance gives some 1/√d
MIN_OWN_COSINE = 0.05  # likewise, to the updates before, which are compared by sketches

KINDS = ("length", "staleness", "direction", "claim", "response", "profile")


@dataclass(frozen=True)
class Measurements:
    """What the guard measures on a round's updates beside their Gram matrix; (n,) float64 each, NaN: not known."""

    size: int  # d, of an update
    to_own: Tensor  # cosine to the site's last update
    inner: Tensor  # inner product of the update, as it came, and the model's last step
    squared: float  # of that step's norm; 0: there is none
    own_direction: Tensor  # `residual_own_cosines`, of sites that continue from their own model
    response: Tensor  # `Responses.cosines`
    likeness: Tensor  # `likeness`


def has_reference(values: Tensor, present: Tensor) -> Tensor:
    """(n,) bool: whether the others have a median to compare ``values`` (n,) with; NaN: not known."""
    return median_of_others(values, present & values.isfinite()).isfinite()


def is_too_short(lengths: Tensor, present: Tensor, part: float = SHORT) -> Tensor:
    """(n,) bool; ``lengths`` (n,) are norms of the updates, ``part`` the least share of the others' median."""
    return present & (lengths < part * median_of_others(lengths, present))


def is_stale(to_step: Tensor, to_own: Tensor, own_mean: Tensor, present: Tensor) -> Tensor:
    """(n,) bool: the update repeats an earlier one, or has nothing in common with it.

    Args:
        to_step: (n,) cosine to the step that the model took last; NaN: there is none.
        to_own: (n,) cosine to the site's own last update, likewise.
        own_mean: (n,) the mean of that over rounds, likewise.
        present: (n,) bool.
    """
    others = median_of_others(to_step, present & to_step.isfinite())
    step = (to_step > STALE) & (1 - to_step < STEP_DISTANCE_FACTOR * (1 - others))
    usual = median_of_others(own_mean, present & own_mean.isfinite())
    nothing = (usual > MIN_OWN_COSINE) & (own_mean < DIRECTION_FACTOR * usual)
    return present & (step | (to_own > REPLAY_COSINE) | nothing)


def is_other_direction(direction: Tensor, present: Tensor, against: Tensor) -> Tensor:
    """(n,) bool; ``direction`` (n,) mean over rounds of the cosine to the others, NaN: not known.

    Sites that a verdict stands ``against`` (n,) need twice as much, so that chance lifts no verdict.
    """
    usual = median_of_others(direction, present & direction.isfinite())
    return is_direction_comparable(direction, present) & (
        direction < DIRECTION_FACTOR * usual * torch.where(against, 2, 1)
    )


def is_direction_comparable(direction: Tensor, present: Tensor) -> Tensor:
    """(n,) bool: whether the others' directions have enough in common for `is_other_direction`.

    Late in training they have not: what was seen before is then neither confirmed nor refuted.
    """
    usual = median_of_others(direction, present & direction.isfinite())
    return present & (usual > MIN_COSINE)


def residual_cosines(products: Tensor, inner: Tensor | None, squared: float, count: Tensor) -> Tensor:
    """(n,) cosine of each update and the mean direction of the others, without the step before; 0: nothing is left.

    Args:
        products: (n, n) Gram matrix of the updates.
        inner: (n,) their inner products with that step; None: there is none.
        squared: of its norm.
        count: (n,) bool: the sites whose directions make the mean.
    """
    left = products if inner is None or not squared else products - torch.outer(inner, inner) / squared
    lengths = left.diagonal().clamp(min=0).sqrt()
    lengths = lengths.where(lengths > NEW * products.diagonal().clamp(min=0).sqrt(), 0.0)
    cosines = ratio(left, torch.outer(lengths, lengths)).fill_diagonal_(0.0)
    counted = count & (lengths > 0)
    others = counted.double().expand(len(count), -1).clone().fill_diagonal_(0.0)
    unit = cosines.clone().fill_diagonal_(1.0)
    norms = torch.einsum("ij,jk,ik->i", others, unit, others).clamp(min=0).sqrt()
    to_mean = (others * cosines).sum(dim=1)
    return ratio(to_mean, norms).clamp(-1, 1)


def residual_own_cosines(updates: Tensor, before: Tensor, others: Tensor) -> Tensor:
    """(n,) cosine of each update, without the site's own last one, and the mean direction of ``others``.

    ``updates``: (n, m) sketches; ``before``: (n, m) sketches of the round before; ``others``: (n,) bool.
    """
    now, last = updates.double(), before.double()
    squared = last.square().sum(dim=1).clamp(min=1e-300)
    new = now - ((now * last).sum(dim=1) / squared)[:, None] * last
    lengths = now.norm(dim=1, keepdim=True)
    units = ratio(now, lengths) * others[:, None]
    mean = units.sum(dim=0) - units
    scale = new.norm(dim=1) * mean.norm(dim=1)
    small = new.norm(dim=1) <= NEW * lengths.squeeze(1)
    return ratio((new * mean).sum(dim=1), scale).masked_fill(small, 0.0)


RESPONSE_FACTOR = -0.5  # of the others' median response
RESPONSE_EASING = 0.5  # times that, while a verdict stands
MIN_RESPONSE = 8.0  # times what chance gives: median response of the others that is enough to compare with
RESPONSE_MEMORY = 0.5  # weight of a round relative to the one after it
MAX_OWN_WEIGHT = 0.5  # weight in the aggregation above which the model's way is mostly the site's own


@dataclass(frozen=True)
class Responses:
    """Sums over rounds s of sketches of n sites, with fading weights; places are relative to the current model."""

    updates: Tensor  # (n, m) float64, Σ Δ_s
    places: Tensor  # (n, m) Σ w_s
    inner: Tensor  # (n,) Σ Δ_s · w_s
    lengths: Tensor  # (n,) Σ ‖Δ_s‖²
    ways: Tensor  # (n,) Σ ‖w_s‖²
    counts: Tensor  # (n,) Σ 1

    @classmethod
    def none(cls, sites: int, width: int) -> "Responses":
        """Before round 0."""
        vectors = torch.zeros(sites, width, dtype=torch.float64)
        return cls(vectors, vectors, *[torch.zeros(sites, dtype=torch.float64)] * 4)

    def cosines(self, updates: Tensor) -> Tensor:
        """(n,) -Σ (Δ - Δ_s) · (w - w_s), by the norms, of this round's ``updates`` Δ (n, m); NaN: nothing moved yet."""
        now = updates.double()
        along = (now * self.places).sum(dim=1) - self.inner  # w is 0
        changes = self.counts * now.square().sum(dim=1) - 2 * (now * self.updates).sum(dim=1) + self.lengths
        scale = (changes.clamp(min=0) * self.ways.clamp(min=0)).sqrt()
        return torch.where(scale > 0, along / scale.where(scale > 0, 1.0), torch.nan)

    def after(self, updates: Tensor, parts: Tensor, present: Tensor, separate: Tensor) -> "Responses":
        """After a round.

        Args:
            updates: (n, m) of it.
            parts: (n, m) what each added to the model of all.
            present: (n,) bool: the sites whose updates came.
            separate: (n,) bool: sites that continue from their own model: their way is that of their own updates.
        """
        now, moved = updates.double(), parts.double().sum(dim=0) - parts.double()
        own = separate[:, None]
        return self._moved(now.where(own, 0.0))._with(now, present)._moved(moved.where(~own, 0.0))

    def keep(self, sites: Tensor) -> "Responses":
        """Only of the ``sites`` (n,) bool; the others as before round 0."""
        kept: Mapping[str, Tensor] = vars(self)
        return Responses(**{name: _by_site(sites, value, torch.zeros_like(value)) for name, value in kept.items()})

    def _moved(self, by: Tensor) -> "Responses":
        return replace(
            self,
            places=self.places - self.counts[:, None] * by,
            inner=self.inner - (self.updates * by).sum(dim=1),
            ways=self.ways - 2 * (self.places * by).sum(dim=1) + self.counts * by.square().sum(dim=1),
        )

    def _with(self, updates: Tensor, present: Tensor) -> "Responses":
        """With a round whose place is the current model."""
        new = {"updates": updates, "lengths": updates.square().sum(dim=1), "counts": torch.ones_like(self.counts)}
        kept: Mapping[str, Tensor] = vars(self)
        return Responses(
            **{
                name: _by_site(present, RESPONSE_MEMORY * value + new.get(name, 0.0), value)
                for name, value in kept.items()
            }
        )


def _by_site(sites: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(sites.view(-1, *[1] * (one.ndim - 1)), one, other)


def is_response_comparable(responses: Tensor, present: Tensor, size: int) -> Tensor:
    """(n,) bool: whether ``responses`` (n,), NaN: not known, of vectors of ``size`` compare with the others'."""
    known = present & responses.isfinite()
    shown: float = MIN_RESPONSE / size**0.5
    return known & (median_of_others(responses, known) > shown)


def is_opposed(responses: Tensor, present: Tensor, size: int, against: Tensor) -> Tensor:
    """(n,) bool: updates that point along; less is enough for sites that a verdict stands ``against`` (n,)."""
    usual = median_of_others(responses, present & responses.isfinite())
    return is_response_comparable(responses, present, size) & (
        responses < RESPONSE_FACTOR * usual * torch.where(against, RESPONSE_EASING, 1.0)
    )


PROFILE_BLOCK = 256  # consecutive entries whose length is one number of a profile
PROFILE_FACTOR = 0.25  # of the others' median likeness
PROFILE_EASING = 2.0  # times that, while a verdict stands
MIN_PROFILE_LIKENESS = 0.4  # median likeness of the others that is enough to compare with, and
CHANCE = 4.0  # times what chance gives


def likeness(updates: Tensor, present: Tensor) -> Tensor:
    """(n,) correlation of the profiles of ``updates`` (n, d) with those of the others, median over them.

    NaN: the site is not ``present`` (n,) bool, or fewer than two others are. 0: the profile is flat.
    """
    n, d = updates.shape
    whole = d // PROFILE_BLOCK * PROFILE_BLOCK
    lengths = torch.linalg.vector_norm(updates[:, :whole].view(n, -1, PROFILE_BLOCK), dim=2).double()
    centred = lengths - lengths.mean(dim=1, keepdim=True)
    scale = centred.norm(dim=1, keepdim=True)
    units = torch.where(scale > 1e-9 * lengths.norm(dim=1, keepdim=True), centred / scale, 0.0)
    return median_of_others(units @ units.T, present).where(present, torch.nan)


def is_profile_comparable(likeness: Tensor, present: Tensor, size: int) -> Tensor:
    """(n,) bool: whether the others' ``likeness`` (n,) of updates of ``size`` entries is enough to compare with."""
    shown: float = max(MIN_PROFILE_LIKENESS, CHANCE / max(size // PROFILE_BLOCK, 1) ** 0.5)
    return present & (median_of_others(likeness, present & likeness.isfinite()) > shown)


def is_unlike(likeness: Tensor, present: Tensor, size: int, against: Tensor) -> Tensor:
    """(n,) bool: profiles unlike the others'; less is enough for sites that a verdict stands ``against`` (n,)."""
    usual = median_of_others(likeness, present & likeness.isfinite())
    return is_profile_comparable(likeness, present, size) & (
        likeness < PROFILE_FACTOR * usual * torch.where(against, PROFILE_EASING, 1.0)
    )
