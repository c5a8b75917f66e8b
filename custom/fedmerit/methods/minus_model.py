"""Leave-one-outs of an aggregation, as a site makes them of what it holds: pure functions, all vectors (d,)."""

from torch import Tensor


def mean_of_others(mean: Tensor, own: Tensor, weight: float) -> Tensor:
    """(mean - ρ_i own) / (1 - ρ_i): the weighted mean of the others, float64; ``weight`` ρ_i in [0, 1)."""
    return (mean.double() - weight * own.double()) / (1 - weight)


def minus_model(received: Tensor, own_previous: Tensor, weight: float) -> Tensor:
    """w_t without site i (Eq. 3): ``received`` w_t, ``own_previous`` w_{t-1,i}, ``weight`` ρ_i in w_t."""
    return mean_of_others(received, own_previous, weight).to(received.dtype)


def cosine_to_mean_of_others(received: Tensor, previous: Tensor, own_previous: Tensor, weight: float) -> float:
    """The cosine of Eq. 2, -1 to 1; 0 where a vector is zero.

    Args:
        received: w_t.
        previous: w_{t-1}, from which the site trained ``own_previous``.
        own_previous: w_{t-1,i}.
        weight: ρ_i of the aggregation that made w_t, below 1.
    """
    own = own_previous.double() - previous.double()
    others = mean_of_others(received.double() - previous.double(), own, weight)
    norm = own.norm() * others.norm()
    return float((own @ others / norm).clamp(-1, 1)) if norm > 0 else 0.0
