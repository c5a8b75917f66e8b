"""BatchNorm statistics that moved too far: brought back to three times the median way."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedmerit.guard.rule import Rule, shrinking

TIMES = 3.0
Statistics = Mapping[str, Tensor]

RULE = Rule(
    "statistics",
    f"BatchNorm statistics, trained or estimated, that moved over {TIMES:g} times as far from those sent out as the "
    "median of the others are brought back to that.",
    "invented statistics (a variance of 1e11), which everybody gets",
    "images of very other intensities move statistics less than they would; the default network has none",
)


def bounded_statistics(
    trained: Sequence[Statistics | None], received: Sequence[Statistics]
) -> tuple[list[Statistics | None], Tensor]:
    """The n sites' statistics, those that moved too far brought back, and (n,) the factors of their ways."""
    present = torch.tensor([one is not None for one in trained])
    ways = torch.tensor([_way(one, before) for one, before in zip(trained, received, strict=True)], dtype=torch.float64)
    factors = shrinking(ways, present, TIMES)
    bounded = [
        one if one is None or factor == 1 else _nearer(one, before, factor)
        for one, before, factor in zip(trained, received, factors.tolist(), strict=True)
    ]
    return bounded, factors


def _way(trained: Statistics | None, received: Statistics) -> float:
    """Euclidean, over all statistics that are no counters."""
    squares = (
        float((value.double() - received[name].double()).square().sum())
        for name, value in (trained or {}).items()
        if value.is_floating_point()
    )
    return math.sqrt(sum(squares))


def _nearer(trained: Statistics, received: Statistics, factor: float) -> Statistics:
    return {
        name: torch.lerp(received[name].double(), value.double(), factor).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in trained.items()
    }
