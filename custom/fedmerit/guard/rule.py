"""The description of a rule of the guard, and the median of the other sites that rules compare a site with."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rule:
    """A row of the table in docs/trust.md."""

    name: str
    does: str
    stops: str
    costs: str  # to honest sites


def median_of_others(values: Tensor, known: Tensor) -> Tensor:
    """(n,) the median of the ``known`` (n,) bool other sites' ``values``; NaN with fewer than two of them.

    Values are (n,), or (n, n): in each row those of the other sites. A site has no part in its own bound.
    """
    n = len(values)
    others = known.expand(n, n) & ~torch.eye(n, dtype=torch.bool)
    medians = values.double().expand(n, n).where(others, torch.nan).nanquantile(0.5, dim=1)
    return medians.where(others.sum(dim=1) >= 2, torch.nan)


def fill_unknown(median: Tensor, before: Tensor) -> Tensor:
    """(n,) ``median`` of others, or that of ``before`` if they are too few now; NaN: they always were."""
    return median.where(median.isfinite(), before)


def shrink_factors(amounts: Tensor, known: Tensor, times: float, before: float | Tensor = math.nan) -> Tensor:
    """(n,) factors, at most 1, that hold ``amounts`` (n,) to ``times`` the median of the others.

    If the others are too few for a median, the one of ``before`` (n,) counts.
    """
    bound = times * fill_unknown(median_of_others(amounts, known), torch.as_tensor(before, dtype=torch.float64))
    over = known & (bound > 0) & (amounts > bound)
    return torch.where(over, bound / amounts.where(over, 1.0), 1.0)
