"""What every rule of the guard says of itself, and what rules compare a site with: the other sites."""

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

    Values are (n,), or (n, n): those of the others beside the site of each row. A site has no part in what it is held
    to.
    """
    n = len(values)
    others = known.expand(n, n) & ~torch.eye(n, dtype=torch.bool)
    medians = values.double().expand(n, n).where(others, torch.nan).nanquantile(0.5, dim=1)
    return medians.where(others.sum(dim=1) >= 2, torch.nan)


def fill_unknown(median: Tensor, before: Tensor) -> Tensor:
    """(n,) ``median`` of others, as it was ``before`` where they are too few now; NaN: they always were."""
    return median.where(median.isfinite(), before)


def shrink_factors(amounts: Tensor, known: Tensor, times: float, before: float | Tensor = math.nan) -> Tensor:
    """(n,) by what to multiply ``amounts`` (n,) so that none is over ``times`` the median of the others; 1: nothing.

    Where the others are too few for a median, what it was ``before`` (n,) counts.
    """
    bound = times * fill_unknown(median_of_others(amounts, known), torch.as_tensor(before, dtype=torch.float64))
    over = known & (bound > 0) & (amounts > bound)
    return torch.where(over, bound / amounts.where(over, 1.0), 1.0)
