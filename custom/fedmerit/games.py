"""Games of sites: Shapley values, and those whose utility is a validation Dice."""

import math

import torch
from torch import Tensor

from fedmerit.capabilities.candidates import Candidates
from fedmerit.core import Reports
from fedmerit.vectors import to_sites, trained_models


def shapley(utilities: Tensor) -> Tensor:
    """(n,) exact Shapley values of a game given by all its coalitions, in O(n 2^n).

    Args:
        utilities: (2^n,) float64; entry S is the utility of the sites whose bits are set in S, entry 0 of nobody.
    """
    n = len(utilities).bit_length() - 1
    sizes = torch.zeros(1, dtype=torch.long)
    for _ in range(n - 1):  # sizes of the coalitions of the other n - 1 sites
        sizes = torch.cat([sizes, sizes + 1])
    factors = torch.tensor([1 / (n * math.comb(n - 1, size)) for size in range(n)], dtype=torch.float64)[sizes]
    values = torch.empty(n, dtype=torch.float64)
    for i in range(n):
        pairs = utilities.view(-1, 2, 2**i)  # without and with site i; the other sites' order is kept
        values[i] = (factors.view(-1, 2**i) * (pairs[:, 1] - pairs[:, 0])).sum()
    return values


MOST_COALITION_SITES = 12  # 4096 evaluations a round


def require_coalitions(num_sites: int) -> None:
    """Raise ValueError where a round would need more than 2^12 evaluations."""
    if num_sites > MOST_COALITION_SITES:
        raise ValueError(
            f"{num_sites} sites: exact Shapley values take all 2^n coalitions a round, for at most "
            f"{MOST_COALITION_SITES} sites; merge sites, or take a method that needs no coalitions"
        )


def coalition_candidates(model: Tensor, updates: Tensor, reports: Reports) -> Candidates:
    """All 2^k coalitions of the k present sites: ``model`` (d,) plus the mean of its members' updates by images.

    Row S holds the sites whose bits are set in S, the first present site being bit 0; row 0 is the model itself.
    """
    present = reports.present
    count = int(present.sum())
    members = (torch.arange(2**count)[:, None] >> torch.arange(count)) & 1  # (2^k, k)
    images = members * reports.data_share[present]
    totals = images.sum(dim=1, keepdim=True)
    weights = images / totals.where(totals > 0, torch.ones_like(totals))
    shares = torch.zeros(2**count, len(present), dtype=torch.float64)
    shares[:, present] = weights
    models = torch.cat([trained_models(model, updates, present), model[None]])
    return Candidates(models, torch.cat([weights, (totals == 0).double()], dim=1), shares)


def coalition_values(reports: Reports, truncation: float) -> Tensor:
    """(n,) exact Shapley values of the candidates of `coalition_trials`, NaN for absent sites.

    All are 0 where the grand coalition's utility and that of nobody differ by ``truncation`` or less.
    """
    assert reports.candidates is not None
    utilities = reports.candidates.dice
    values = shapley(utilities)
    if abs(float(utilities[-1] - utilities[0])) <= truncation:
        values = torch.zeros_like(values)
    return to_sites(values, reports.present)
