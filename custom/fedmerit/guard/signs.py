"""Signs of a site that earns without work, of kinds that are independent of each other; each is a rule.

A zero update alone shows two kinds of one fact, length and direction: else none that starts with the run would be told.

All compare a site with the others of the round, and none stands where these show too little to compare with.
"""

import torch
from torch import Tensor

from fedmerit.guard.rule import Rule, median_of_others

SHORT = 0.05  # of the others' median norm
NOTHING = 0.001  # likewise: below it there is no direction
STALE = 0.5  # least cosine to the step before, and
TWICE = 0.5  # at most this part of the others' distance from it
REPLAYED = 0.99  # cosine to the site's own last update
PART = 0.25  # of the others' median cosine
NEW = 0.1  # least part of an update that is not the step before, for a direction to be seen in it
SHOWN = 0.02  # median cosine of the others that is enough to compare with: chance gives some 1/√d;
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
    f"(cosine over {REPLAYED:g}), or has nothing in common with its own last one where the others' have. Of a site "
    "that made more than half of that step, only its own last one sent again counts.",
    "delta weights, with noise too; replays; noise",
    "a sign alone does nothing",
)
DIRECTION = Rule(
    "sign: direction",
    f"Without the step that the model last took, the cosine to the others is under {PART:g} times the median of the "
    f"others, mean over rounds; {2 * PART:g} times, while a verdict stands. Where nothing is left without that step, "
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


def measured(values: Tensor, present: Tensor) -> Tensor:
    """(n,) bool: whether there is a median of the others to hold ``values`` (n,) to, NaN: not known."""
    return median_of_others(values, present & values.isfinite()).isfinite()


def too_short(lengths: Tensor, present: Tensor, part: float = SHORT) -> Tensor:
    """(n,) bool; ``lengths`` (n,) norms of the updates, which should be ``part`` of the others' median."""
    return present & (lengths < part * median_of_others(lengths, present))


def stale(to_step: Tensor, to_own: Tensor, lasting: Tensor, present: Tensor) -> Tensor:
    """(n,) bool.

    Args:
        to_step: (n,) cosine to the step that the model took last; NaN: there is none.
        to_own: (n,) cosine to the site's own last update, likewise.
        lasting: (n,) the mean of that over rounds, likewise.
        present: (n,) bool.
    """
    others = median_of_others(to_step, present & to_step.isfinite())
    step = (to_step > STALE) & (1 - to_step < TWICE * (1 - others))
    usual = median_of_others(lasting, present & lasting.isfinite())
    nothing = (usual > LASTING) & (lasting < PART * usual)
    return present & (step | (to_own > REPLAYED) | nothing)


def elsewhere(direction: Tensor, present: Tensor, against: Tensor) -> Tensor:
    """(n,) bool; ``direction`` (n,) mean over rounds of the cosine to the others, NaN: not known.

    Of sites that a verdict stands ``against`` (n,) twice as much is asked, so that chance lifts none.
    """
    usual = median_of_others(direction, present & direction.isfinite())
    return compared(direction, present) & (direction < PART * usual * torch.where(against, 2, 1))


def compared(direction: Tensor, present: Tensor) -> Tensor:
    """(n,) bool: whether the others' directions have enough in common to be compared with, as of `elsewhere`.

    Towards the end of training they have not: what was seen before is then neither confirmed nor refuted.
    """
    usual = median_of_others(direction, present & direction.isfinite())
    return present & (usual > SHOWN)


def new_directions(products: Tensor, inner: Tensor | None, squared: float, count: Tensor) -> Tensor:
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


def beside_own_step(updates: Tensor, before: Tensor, others: Tensor) -> Tensor:
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
