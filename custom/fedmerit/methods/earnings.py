"""What rewards go by: the reputations that a method finds, or contributions that are known beforehand.

FedSAC's paper (Wang et al., KDD 2024, Sec. 5.1) compares methods by what they make of the contributions of training
alone: each distributes by these, in the place of its own reputations.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedmerit.parameters import parameter
from fedmerit.vectors import share


def contributions_parameter() -> Any:
    """The parameter."""
    return parameter((), "of each site, in the order of names: rewards go by them, not by reputation", low=0, high=1)


def require_one_each(contributions: Sequence[float], num_sites: int) -> None:
    """ValueError: some are given, and not one per site."""
    if contributions and len(contributions) != num_sites:
        raise ValueError(f"contributions: {len(contributions)} of them for {num_sites} sites")


def deserved(contributions: Sequence[float], reputation: Tensor, present: Tensor) -> Tensor:
    """(n,) the shares of the present sites in what is given; ``reputation`` (n,) as it is where nothing is."""
    return share(torch.tensor(contributions, dtype=torch.float64), present) if contributions else reputation
