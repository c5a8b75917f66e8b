"""Bounds on what a site sends: its update's norm, BatchNorm statistics, image count, and what it claims of itself.

Each is held to the median of the other sites, or a multiple of it, or to the largest of theirs.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedmerit.schema.configuration.settings import COUNT_FACTOR, NORM_FACTOR, STATISTICS_FACTOR


def median_of_others(values: Tensor, known: Tensor) -> Tensor:
    """Return (n,) the median of the ``known`` (n,) bool other sites' ``values``; NaN with fewer than two of them.

    Values are (n,), or (n, n): in each row those of the other sites. A site has no part in its own bound.
    """
    n = len(values)
    others = _others(known)
    medians = values.double().expand(n, n).where(others, torch.nan).nanquantile(0.5, dim=1)
    return medians.where(others.sum(dim=1) >= 2, torch.nan)


def fill_unknown(median: Tensor, before: Tensor) -> Tensor:
    """Return (n,) ``median`` of others, or that of ``before`` if they are too few now; NaN: they always were."""
    return median.where(median.isfinite(), before)


def shrink_factors(amounts: Tensor, known: Tensor, times: float | Tensor, before: float | Tensor = math.nan) -> Tensor:
    """Return (n,) factors, at most 1, that hold ``amounts`` (n,) to ``times`` the median of the others.

    If the others are too few for a median, the one of ``before`` (n,) counts.
    """
    bound = times * fill_unknown(median_of_others(amounts, known), torch.as_tensor(before, dtype=torch.float64))
    over = known & (bound > 0) & (amounts > bound)
    return torch.where(over, bound / amounts.where(over, 1.0), 1.0)


def clip_norms(lengths: Tensor, present: Tensor, before: Tensor) -> Tensor:
    """Return (n,) factors in (0, 1] for updates of these norms ``lengths`` (n,).

    ``before`` (n,) is the last known median.
    """
    return shrink_factors(lengths, present, NORM_FACTOR, before)


Statistics = Mapping[str, Tensor]


def bound_statistics(
    trained: Sequence[Statistics | None], received: Sequence[Statistics]
) -> tuple[list[Statistics | None], Tensor]:
    """Return the n sites' statistics, moved back if they moved too far, and (n,) the factors of their distances."""
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
    """Return the Euclidean distance over all statistics except counters."""
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


def shown_factors(shared: Tensor, known: Tensor) -> Tensor:
    """Return (n,) by how much a site's ``shared`` (n,) exceeds the median of the others', 1 to `COUNT_FACTOR`."""
    shared = shared.clamp(min=0)
    return (shared / median_of_others(shared, known)).nan_to_num(1.0).clamp(1.0, COUNT_FACTOR)


def bound_counts(
    counts: Tensor,
    first: Tensor,
    parts: Tensor,
    copies: Tensor,
    times: float | Tensor = COUNT_FACTOR,
    held: Tensor | None = None,
) -> Tensor:
    """Return (n,) how many images of each site count, float64.

    Args:
        counts: (n,) as enrolled, each image once among all sites; 0: not known.
        first: (n,) row of the first site of each site's reward group.
        parts: (n,) share of each site in its group.
        copies: (n,) bool: the group's sites are copies of each other, whose images count once.
        times: the median of the others is the most, by group in the row of its first site.
        held: (n,) images, counted in full at each site; None: ``counts``.
    """
    total = torch.zeros_like(counts).index_add_(0, first, counts)
    full = counts if held is None else torch.where(counts > 0, held.maximum(counts), 0.0)
    largest = torch.zeros_like(counts).scatter_reduce_(0, first, full, "amax").minimum(total)  # the union at most
    of_group = torch.where(copies[first], largest[first], total[first])
    is_first = first == torch.arange(len(counts))
    bounded = of_group * shrink_factors(of_group, is_first & (total > 0), times)[first]
    return (bounded * parts).where(counts > 0, 0.0)


CLAIMS = {"minus_error": 1, "error": -1, "cosine": -1}  # what a site measures of itself; -1: a lower one pays


def bound_claims(
    values: Mapping[str, Tensor], present: Tensor, measured: Tensor | None, unseen: bool = False
) -> dict[str, Tensor]:
    """Return the sites' ``values``, (n,) each, as far as they count.

    Args:
        values: by name, as a method asks for them.
        present: (n,) bool.
        measured: (n,) replaces "minus_error"; NaN: not known; None: no site could measure it.
        unseen: updates are encrypted: the server has no cosine of its own.
    """
    bounded = dict(values)
    for name, sign in CLAIMS.items():
        if name in bounded and (name != "cosine" or unseen):
            bounded[name] = sign * _hold_to_others(sign * bounded[name], present)
    if measured is not None and "minus_error" in bounded:
        bounded["minus_error"] = measured
        bounded |= {"error": torch.ones_like(measured)} if "error" in bounded else {}  # by the others: equal for all
    if "loss" in bounded:
        bound = median_of_others(bounded["loss"], present & bounded["loss"].isfinite())
        bounded["loss"] = bounded["loss"].minimum(bound).where(bound.isfinite(), bounded["loss"])
    return bounded


def _hold_to_others(claims: Tensor, present: Tensor) -> Tensor:
    """Return (n,) ``claims`` (n,), each at most the largest of the others'.

    With fewer than two others the claims stay unchanged.
    """
    known = present & claims.isfinite()
    others = _others(known)
    largest = claims.expand(len(claims), -1).where(others, -math.inf).amax(dim=1)
    return claims.minimum(largest).where(known & (others.sum(dim=1) >= 2), claims)


def _others(known: Tensor) -> Tensor:
    """Return (n, n) bool: in each row the ``known`` (n,) sites without its own."""
    return known.expand(len(known), -1) & ~torch.eye(len(known), dtype=torch.bool)
