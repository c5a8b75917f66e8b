"""Signs of a site that earns without work, of kinds that are independent of each other; each is a rule.

A zero update alone shows two kinds of one fact, length and direction: else none that starts with the run would be told.

All compare a site with the others of the round, and none stands where these show too little to compare with.

How updates respond to what others made of the model: whoever minimises a loss asks for less of what it was given.

Of two rounds s < t, the change Δ_t - Δ_s of a site's update points against the way that the others' updates moved the
model in between, for any loss that is convex on it, wherever its minimum lies: (Δ_t - Δ_s) · (w_t - w_s) < 0. Reversed
signs point along. Noise and half the signs reversed point neither way, but so did an honest hospital for some rounds:
that a site does not respond is no sign. A site's own part of the way is left out, since it holds the noise of its own
updates.

Where in the network updates are long: training moves some layers more than others, at every site alike.

It does so whatever the images, since all train one network by one optimiser, and whichever way the update points:
reversed signs have the profile of honest ones. What was not trained has none, unless somebody shaped it. Late in
training Adam moves all entries alike, where gradients are noise: an honest hospital had a flat profile then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmerit.guard.rule import Rule, median_of_others

SHORT = 0.05  # of the others' median norm
NOTHING = 0.001  # likewise: below it there is no direction
STALE = 0.5  # least cosine to the step before, and
STEP_DISTANCE_FACTOR = 0.5  # at most this part of the others' distance from it
REPLAY_COSINE = 0.99  # cosine to the site's own last update
DIRECTION_FACTOR = 0.25  # of the others' median cosine
NEW = 0.1  # least part of an update that is not the step before, for a direction to be seen in it
MIN_COSINE = 0.02  # median cosine of the others that is enough to compare with: chance gives some 1/√d;
LASTING = 0.05  # of those to the updates before, which are from sketches

LENGTH = Rule(
    "sign: length",
    f"The update is shorter than {SHORT:g} times the median of the others.",
    "zero updates",
    "a sign alone does nothing; a site of very few steps may show this one",
)
STALENESS = Rule(
    "sign: staleness",
    "The update is the step that the model last took (half as far from it as the others), the site's own last one "
    f"(cosine over {REPLAY_COSINE:g}), or has nothing in common with its own last one where the others' have. Of a "
    f"site "
    "that made more than half of that step, only its own last one sent again counts.",
    "delta weights, with noise too; replays; noise",
    "a sign alone does nothing",
)
DIRECTION = Rule(
    "sign: direction",
    f"Without the step that the model last took, the cosine to the others is under {DIRECTION_FACTOR:g} times the "
    f"median of the "
    f"others, mean over rounds; {2 * DIRECTION_FACTOR:g} times, while a verdict stands. Where nothing is left without "
    f"that step, "
    "what was before does not count. Where the others have nothing in common any more, the sign stays as it was, but "
    f"for an update shorter than {NOTHING:g} times their median, which has no direction at all.",
    "noise, delta weights, zero updates, reversed signs",
    "an honest site of other images shows this sign, and no other: it is never judged by it",
)
CLAIM = Rule(
    "sign: claim",
    "A claim that the server can compute (FedCE's cosine) is wrong. What it computed counts, also where a claim is "
    "left out.",
    "claims that are invented",
    "a sign alone does nothing",
)
KINDS = ("length", "staleness", "direction", "claim", "response", "profile")


def has_reference(values: Tensor, present: Tensor) -> Tensor:
    """(n,) bool: whether there is a median of the others to hold ``values`` (n,) to, NaN: not known."""
    return median_of_others(values, present & values.isfinite()).isfinite()


def is_too_short(lengths: Tensor, present: Tensor, part: float = SHORT) -> Tensor:
    """(n,) bool; ``lengths`` (n,) norms of the updates, which should be ``part`` of the others' median."""
    return present & (lengths < part * median_of_others(lengths, present))


def is_stale(to_step: Tensor, to_own: Tensor, lasting: Tensor, present: Tensor) -> Tensor:
    """(n,) bool.

    Args:
        to_step: (n,) cosine to the step that the model took last; NaN: there is none.
        to_own: (n,) cosine to the site's own last update, likewise.
        lasting: (n,) the mean of that over rounds, likewise.
        present: (n,) bool.
    """
    others = median_of_others(to_step, present & to_step.isfinite())
    step = (to_step > STALE) & (1 - to_step < STEP_DISTANCE_FACTOR * (1 - others))
    usual = median_of_others(lasting, present & lasting.isfinite())
    nothing = (usual > LASTING) & (lasting < DIRECTION_FACTOR * usual)
    return present & (step | (to_own > REPLAY_COSINE) | nothing)


def is_other_direction(direction: Tensor, present: Tensor, against: Tensor) -> Tensor:
    """(n,) bool; ``direction`` (n,) mean over rounds of the cosine to the others, NaN: not known.

    Of sites that a verdict stands ``against`` (n,) twice as much is asked, so that chance lifts none.
    """
    usual = median_of_others(direction, present & direction.isfinite())
    return is_direction_comparable(direction, present) & (
        direction < DIRECTION_FACTOR * usual * torch.where(against, 2, 1)
    )


def is_direction_comparable(direction: Tensor, present: Tensor) -> Tensor:
    """(n,) bool: whether the others' directions have enough in common to be compared with, as of `elsewhere`.

    Towards the end of training they have not: what was seen before is then neither confirmed nor refuted.
    """
    usual = median_of_others(direction, present & direction.isfinite())
    return present & (usual > MIN_COSINE)


def residual_cosines(products: Tensor, inner: Tensor | None, squared: float, count: Tensor) -> Tensor:
    """(n,) cosine of each update and the mean direction of the others, the step before taken out of all.

    0 where nothing else is left.

    Args:
        products: (n, n) Gram matrix of the updates.
        inner: (n,) their inner products with that step; None: there is none.
        squared: of its norm.
        count: (n,) bool: whose directions make the mean.
    """
    left = products if inner is None or not squared else products - torch.outer(inner, inner) / squared
    lengths = left.diagonal().clamp(min=0).sqrt()
    lengths = lengths.where(lengths > NEW * products.diagonal().clamp(min=0).sqrt(), 0.0)
    scale = torch.outer(lengths, lengths)
    cosines = torch.where(scale > 0, left / scale.where(scale > 0, 1.0), 0.0).fill_diagonal_(0.0)
    counted = count & (lengths > 0)
    others = counted.double().expand(len(count), -1).clone().fill_diagonal_(0.0)
    unit = cosines.clone().fill_diagonal_(1.0)
    norms = torch.einsum("ij,jk,ik->i", others, unit, others).clamp(min=0).sqrt()
    to_mean = (others * cosines).sum(dim=1)
    return torch.where(norms > 0, to_mean / norms.where(norms > 0, 1.0), 0.0).clamp(-1, 1)


def residual_own_cosines(updates: Tensor, before: Tensor, others: Tensor) -> Tensor:
    """(n,) cosine of what is new in each update since the site's own last one, and the mean direction of ``others``.

    Args:
        updates: (n, m) sketches of them.
        before: (n, m) of those of the round before.
        others: (n,) bool.
    """
    now, last = updates.double(), before.double()
    squared = last.square().sum(dim=1).clamp(min=1e-300)
    new = now - ((now * last).sum(dim=1) / squared)[:, None] * last
    lengths = now.norm(dim=1, keepdim=True)
    units = torch.where(lengths > 0, now / lengths.where(lengths > 0, 1.0), 0.0) * others[:, None]
    mean = units.sum(dim=0) - units
    scale = new.norm(dim=1) * mean.norm(dim=1)
    small = new.norm(dim=1) <= NEW * lengths.squeeze(1)
    return torch.where((scale > 0) & ~small, (new * mean).sum(dim=1) / scale.where(scale > 0, 1.0), 0.0)


RESPONSE_FACTOR = -0.5  # of the others' median response
RESPONSE_EASING = 0.5  # times that, while a verdict stands
MIN_RESPONSE = 8.0  # times what chance gives: median response of the others that is enough to compare with
RESPONSE_MEMORY = 0.5  # weight of a round beside the one after it
MAX_OWN_WEIGHT = 0.5  # weight in the aggregation above which a site makes its own way: nothing is known of it then

RESPONSE_RULE = Rule(
    "sign: response",
    "Where all have one model, the update asks for more of what others gave the model: the cosine of that way and of "
    f"how the update changed on it, reversed and mean over rounds, is under {RESPONSE_FACTOR:g} times the median of "
    f"the others; "
    f"{RESPONSE_EASING * RESPONSE_FACTOR:g} times, while a verdict stands. Where that median is under "
    f"{MIN_RESPONSE:g} times what chance gives, as "
    "late in training, the sign stays as it was.",
    "reversed signs",
    "a sign alone does nothing; an honest outlier asks for less, or for nothing",
)


@dataclass(frozen=True)
class Responses:
    """Sums over rounds s, of weights that fade, of sketches of n sites; places are relative to the model as it is."""

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

    def after(self, updates: Tensor, parts: Tensor, present: Tensor, alone: Tensor) -> "Responses":
        """After a round.

        Args:
            updates: (n, m) of it.
            parts: (n, m) what each added to the model of all.
            present: (n,) bool: whose updates came.
            alone: (n,) bool: who goes on from its own model: its way is its own updates', each before it is compared.
        """
        now, moved = updates.double(), parts.double().sum(dim=0) - parts.double()
        own = alone[:, None]
        return self._moved(now.where(own, 0.0))._with(now, present)._moved(moved.where(~own, 0.0))

    def of(self, sites: Tensor) -> "Responses":
        """Of the ``sites`` (n,) bool alone, the others as before round 0."""
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
        """With a round whose place is the model as it is."""
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
    """(n,) bool: whose ``responses`` (n,), NaN: not known, of vectors of ``size`` can be compared with the others'."""
    known = present & responses.isfinite()
    shown: float = MIN_RESPONSE / size**0.5
    return known & (median_of_others(responses, known) > shown)


def is_opposed(responses: Tensor, present: Tensor, size: int, against: Tensor) -> Tensor:
    """(n,) bool: whose updates point along; less is enough of those that a verdict stands ``against`` (n,)."""
    usual = median_of_others(responses, present & responses.isfinite())
    return is_response_comparable(responses, present, size) & (
        responses < RESPONSE_FACTOR * usual * torch.where(against, RESPONSE_EASING, 1.0)
    )


PROFILE_BLOCK = 256  # entries, one after the other, whose length is one number of a profile
PROFILE_FACTOR = 0.25  # of the others' median likeness
PROFILE_EASING = 2.0  # times that, while a verdict stands
MIN_PROFILE_LIKENESS = 0.4  # median likeness of the others that is enough to compare with, and
CHANCE = 4.0  # times what chance gives

PROFILE_RULE = Rule(
    "sign: profile",
    f"The update is not long where the others' are: the correlation of the lengths of its blocks of {PROFILE_BLOCK} "
    f"entries "
    f"with the others', median over them and mean over rounds, is under {PROFILE_FACTOR:g} times the median of the "
    f"others; "
    f"{PROFILE_EASING * PROFILE_FACTOR:g} times, while a verdict stands. Where that median is under "
    f"{MIN_PROFILE_LIKENESS:g}, as late in training, or "
    f"under {CHANCE:g} times what chance gives, the sign stays as it was.",
    "noise, zero updates",
    "a sign alone does nothing; an honest outlier trains the same network by the same optimiser",
)


def likeness(updates: Tensor, present: Tensor) -> Tensor:
    """(n,) correlation of the profiles of ``updates`` (n, d) with those of the others, median over them.

    NaN: of who is not ``present`` (n,) bool, or where fewer than two others are. 0: of a profile that is flat.
    """
    n, d = updates.shape
    whole = d // PROFILE_BLOCK * PROFILE_BLOCK
    lengths = torch.linalg.vector_norm(updates[:, :whole].view(n, -1, PROFILE_BLOCK), dim=2).double()
    centred = lengths - lengths.mean(dim=1, keepdim=True)
    scale = centred.norm(dim=1, keepdim=True)
    units = torch.where(scale > 1e-9 * lengths.norm(dim=1, keepdim=True), centred / scale, 0.0)
    return median_of_others(units @ units.T, present).where(present, torch.nan)


def is_profile_comparable(likeness: Tensor, present: Tensor, size: int) -> Tensor:
    """(n,) bool: whether the others' ``likeness`` (n,) is enough to compare with, of updates of ``size`` entries."""
    shown: float = max(MIN_PROFILE_LIKENESS, CHANCE / max(size // PROFILE_BLOCK, 1) ** 0.5)
    return present & (median_of_others(likeness, present & likeness.isfinite()) > shown)


def is_unlike(likeness: Tensor, present: Tensor, size: int, against: Tensor) -> Tensor:
    """(n,) bool: whose profile is not the others'; less is enough of those that a verdict stands ``against`` (n,)."""
    usual = median_of_others(likeness, present & likeness.isfinite())
    return is_profile_comparable(likeness, present, size) & (
        likeness < PROFILE_FACTOR * usual * torch.where(against, PROFILE_EASING, 1.0)
    )
