"""Long updates: shortened to three times the median norm.

BatchNorm statistics that moved too far: brought back to three times the median way.

Counts of images: what a site committed to before round 0, held to three times the median.

What a site says of itself: it may lower what it earns, and no more.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedmerit.guard.rule import Rule, median_of_others, shrink_factors

NORM_FACTOR = 3.0  # Sun et al. 2019 bound norms likewise; honest ones of one round differ by less

NORM_RULE = Rule(
    "norms",
    f"An update longer than {NORM_FACTOR:g} times the median of the others is shortened to that; recorded as "
    f"`clipped`. "
    "Where fewer than two others answered, the last median counts.",
    "a huge update (1e6 in every entry) that kills the model, and model boosting",
    "none was shortened in honest runs; a site that trains very many more steps would be",
)


def clip_norms(lengths: Tensor, present: Tensor, before: Tensor) -> Tensor:
    """(n,) factors in (0, 1] for updates of these norms ``lengths`` (n,); ``before`` (n,) is the last known median."""
    return shrink_factors(lengths, present, NORM_FACTOR, before)


STATISTICS_FACTOR = 3.0
Statistics = Mapping[str, Tensor]

STATISTICS_RULE = Rule(
    "statistics",
    f"BatchNorm statistics, trained or estimated, that moved over {STATISTICS_FACTOR:g} times as far from those sent "
    f"out as the "
    "median of the others are brought back to that.",
    "invented statistics (a variance of 1e11), which everybody gets",
    "images of very other intensities move statistics less than they would; the default network has none",
)


def bound_statistics(
    trained: Sequence[Statistics | None], received: Sequence[Statistics]
) -> tuple[list[Statistics | None], Tensor]:
    """The n sites' statistics, those that moved too far brought back, and (n,) the factors of their ways."""
    present = torch.tensor([one is not None for one in trained])
    ways = torch.tensor(
        [_distance_moved(one, before) for one, before in zip(trained, received, strict=True)], dtype=torch.float64
    )
    factors = shrink_factors(ways, present, STATISTICS_FACTOR)
    bounded = [
        one if one is None or factor == 1 else _shrink(one, before, factor)
        for one, before, factor in zip(trained, received, factors.tolist(), strict=True)
    ]
    return bounded, factors


def _distance_moved(trained: Statistics | None, received: Statistics) -> float:
    """Euclidean, over all statistics that are no counters."""
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
    "A site commits to its counts before round 0, and every later claim has to be the same; an earner counts at most "
    f"{COUNT_FACTOR:g} times the median of the others.",
    "invented images: weights, rewards and statistics of a site that claims 1e9",
    "a site with more than three times the median is weighed as if it had three times",
)


def bound_counts(counts: Tensor, earner: Tensor, parts: Tensor, copies: Tensor) -> Tensor:
    """(n,) what each site's images count, float64.

    Args:
        counts: (n,) as enrolled; 0: not known.
        earner: (n,) the first of the sites that earn as one.
        parts: (n,) of each site in what these earn.
        copies: (n,) bool: of whom the images of the others are copies, which count once.
    """
    total = torch.zeros_like(counts).index_add_(0, earner, counts)
    largest = torch.zeros_like(counts).scatter_reduce_(0, earner, counts, "amax")
    of_earner = torch.where(copies[earner], largest[earner], total[earner])
    first = earner == torch.arange(len(counts))
    bounded = of_earner * shrink_factors(of_earner, first & (total > 0), COUNT_FACTOR)[earner]
    return (bounded * parts).where(counts > 0, 0.0)


CLAIM_RULE = Rule(
    "claims",
    "Of what a site says of itself, FedCE's error is replaced by what others measured, q-FedAvg's loss counts at most "
    "the median of the others, and FedAVE's histogram of losses is not asked for. SCAFFOLD's control variate counts as "
    "far as it follows from the update, at most 3 times the median length.",
    "a claimed error of 1 with the cosine left out, an invented loss or histogram, a control variate that ends the run",
    "FedCE's error is no longer that on the site's own images, so that `error=relative` is as `absolute`; q-FedAvg "
    "lowers those below the median alone; FedAVE pays for Dice alone; SCAFFOLD's variates follow from updates as "
    "privacy filters leave them",
)


def bound_claims(values: Mapping[str, Tensor], present: Tensor, measured: Tensor | None) -> dict[str, Tensor]:
    """The claims ``values``, (n,) each, as far as they count.

    Args:
        values: by name, as in `fedmerit.core.Reports.values`.
        present: (n,) bool.
        measured: (n,) in the place of "minus_error", NaN where it is not known; None: nobody could measure it.
    """
    held = dict(values)
    if measured is not None and "minus_error" in held:
        held["minus_error"] = measured
        held |= {"error": torch.ones_like(measured)} if "error" in held else {}  # of the others, the same for all
    if "loss" in held:
        bound = median_of_others(held["loss"], present & held["loss"].isfinite())
        held["loss"] = held["loss"].minimum(bound).where(bound.isfinite(), held["loss"])
    return held
