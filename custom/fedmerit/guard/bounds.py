"""Bounds on what a site sends: its update's norm, BatchNorm statistics, image count, and what it claims of itself.

Each is held to at most three times the median of the other sites.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedmerit.guard.rule import Rule, median_of_others, shrink_factors

NORM_FACTOR = 3.0  # Sun et al. 2019 bound norms likewise; honest ones of one round differ by less

NORM_RULE = Rule(
    "norms",
    f"An update longer than {NORM_FACTOR:g} times the median of the others is clipped to that; recorded as `clipped`. "
    "If fewer than two others answered, the last median counts.",
    "a huge update (1e6 in every entry) that kills the model, and model boosting",
    "none was clipped in honest runs; a site that trains very many more steps would be",
)


def clip_norms(lengths: Tensor, present: Tensor, before: Tensor) -> Tensor:
    """(n,) factors in (0, 1] for updates of these norms ``lengths`` (n,); ``before`` (n,) is the last known median."""
    return shrink_factors(lengths, present, NORM_FACTOR, before)


STATISTICS_FACTOR = 3.0
Statistics = Mapping[str, Tensor]

STATISTICS_RULE = Rule(
    "statistics",
    f"BatchNorm statistics, trained or estimated, that moved more than {STATISTICS_FACTOR:g} times as far from those "
    "sent out as the median of the others are moved back to that.",
    "invented statistics (a variance of 1e11), which every site gets",
    "images of very different intensities move statistics less than they would; the default network has none",
)


def bound_statistics(
    trained: Sequence[Statistics | None], received: Sequence[Statistics]
) -> tuple[list[Statistics | None], Tensor]:
    """The n sites' statistics, moved back if they moved too far, and (n,) the factors of their distances."""
    present = torch.tensor([one is not None for one in trained])
    moved = torch.tensor(
        [_distance_moved(one, before) for one, before in zip(trained, received, strict=True)], dtype=torch.float64
    )
    factors = shrink_factors(moved, present, STATISTICS_FACTOR)
    bounded = [
        one if one is None or factor == 1 else _shrink(one, before, factor)
        for one, before, factor in zip(trained, received, factors.tolist(), strict=True)
    ]
    return bounded, factors


def _distance_moved(trained: Statistics | None, received: Statistics) -> float:
    """Euclidean distance over all statistics except counters."""
    squares = (
        float((value.double() - received[name].double()).square().sum())
        for name, value in (trained or {}).items()
        if value.is_floating_point()
    )
    return math.sqrt(sum(squares))


def _shrink(trained: Statistics, received: Statistics, factor: float) -> Statistics:
    return {
        name: torch.lerp(received[name].double(), value.double(), factor).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in trained.items()
    }


COUNT_FACTOR = 3.0  # of the four prostate hospitals the largest has 2.4 times the median of the others

COUNT_RULE = Rule(
    "counts",
    "A site commits to its counts before round 0, and every later claim has to be the same; a reward group counts at "
    f"most {COUNT_FACTOR:g} times the median of the others.",
    "invented images: weights, rewards and statistics of a site that claims 1e9",
    "a site with more than three times the median is weighed as if it had three times",
)


def bound_counts(counts: Tensor, first: Tensor, parts: Tensor, copies: Tensor) -> Tensor:
    """(n,) how many images of each site count, float64.

    Args:
        counts: (n,) as enrolled; 0: not known.
        first: (n,) row of the first site of each site's reward group.
        parts: (n,) share of each site in its group.
        copies: (n,) bool: the group's sites are copies of each other, whose images count once.
    """
    total = torch.zeros_like(counts).index_add_(0, first, counts)
    largest = torch.zeros_like(counts).scatter_reduce_(0, first, counts, "amax")
    of_group = torch.where(copies[first], largest[first], total[first])
    is_first = first == torch.arange(len(counts))
    bounded = of_group * shrink_factors(of_group, is_first & (total > 0), COUNT_FACTOR)[first]
    return (bounded * parts).where(counts > 0, 0.0)


CLAIM_RULE = Rule(
    "claims",
    "Of a site's claims about itself, FedCE's error is replaced by what the others measured, q-FedAvg's loss counts at "
    "most the median of the others, and FedAVE's histogram of losses is not asked for. SCAFFOLD's control variate "
    "counts as far as it follows from the update, at most 3 times the median length.",
    "a claimed error of 1 with the cosine left out, an invented loss or histogram, a control variate that ends the run",
    "FedCE's error is no longer measured on the site's own images, so `error=relative` equals `absolute`; q-FedAvg "
    "lowers only sites below the median; FedAVE rewards only Dice; SCAFFOLD's variates follow from updates as privacy "
    "filters leave them",
)


def bound_claims(values: Mapping[str, Tensor], present: Tensor, measured: Tensor | None) -> dict[str, Tensor]:
    """The sites' ``values``, (n,) each, as far as they count.

    Args:
        values: by name, as a method asks for them.
        present: (n,) bool.
        measured: (n,) replaces "minus_error"; NaN: not known; None: no site could measure it.
    """
    bounded = dict(values)
    if measured is not None and "minus_error" in bounded:
        bounded["minus_error"] = measured
        bounded |= {"error": torch.ones_like(measured)} if "error" in bounded else {}  # by the others: equal for all
    if "loss" in bounded:
        bound = median_of_others(bounded["loss"], present & bounded["loss"].isfinite())
        bounded["loss"] = bounded["loss"].minimum(bound).where(bound.isfinite(), bounded["loss"])
    return bounded
