"""Leave-one-outs of an aggregation, as a site computes them: pure functions, all vectors (d,)."""

import torch
from torch import Tensor

from fedmerit.contract.vectors import BLOCK


def average_others(mean: Tensor, own: Tensor, weight: float) -> Tensor:
    """(mean - ρ_i own) / (1 - ρ_i): the weighted mean of the others, float64; ``weight`` ρ_i in [0, 1)."""
    return (mean.double() - weight * own.double()) / (1 - weight)


def minus_model(received: Tensor, own_previous: Tensor, weight: float) -> Tensor:
    """w_t without site i (Eq. 3): ``received`` w_t, ``own_previous`` w_{t-1,i}, ``weight`` ρ_i in w_t."""
    result = torch.empty_like(received)
    blocks = (torch.split(vector, BLOCK) for vector in (result, received, own_previous))
    for part, now, mine in zip(*blocks, strict=True):
        part.copy_(average_others(now, mine, weight))
    return result


def cosine_to_others_mean(received: Tensor, previous: Tensor, own_previous: Tensor, weight: float) -> float:
    """The cosine of Eq. 2, -1 to 1; 0 if a vector is zero.

    Args:
        received: w_t.
        previous: w_{t-1}, from which the site trained ``own_previous``.
        own_previous: w_{t-1,i}.
        weight: ρ_i of the aggregation that made w_t, below 1.
    """
    products = torch.zeros(2, 2, dtype=torch.float64, device=received.device)
    blocks = (torch.split(vector, BLOCK) for vector in (received, previous, own_previous))
    for now, before, mine in zip(*blocks, strict=True):
        start = before.double()
        own = mine.double() - start
        pair = torch.stack([own, average_others(now.double() - start, own, weight)])
        products += pair @ pair.T
    norm = products[0, 0].sqrt() * products[1, 1].sqrt()
    return float((products[0, 1] / norm).clamp(-1, 1)) if norm > 0 else 0.0
