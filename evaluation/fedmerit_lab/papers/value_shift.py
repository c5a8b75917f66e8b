"""Theorem 3.2 of FedCE (Jiang et al., CVPR 2023, Appendix A) in numbers: what a shift of the others does to a value.

A client is a point of the plane, where it would take a model from 0. The value of z is ν(z) = E Γ(S, z) over N others
S, each drawn from D. The theorem says that |ν_s(z) - ν_t(z)| is at most 2 N B W_1(D_s, D_t) where Γ is B-Lipschitz.
Its assumption (Eq. 8) is of Γ's change where z is another client; its proof (Eq. 11) takes it as that where one of S is
another. Both constants are computed here, and everything else, exactly: D_s and D_t are of a few points each.
"""

from collections.abc import Callable, Mapping
from itertools import combinations_with_replacement, product

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Points = NDArray[np.float64]  # (..., 2)
Gamma = Callable[[Points, Points], NDArray[np.float64]]  # of the mean of the others and the client
OTHERS = 3  # N
POINTS = 5  # that each distribution is of
TURNS = (0.1, 0.5, 1.5)  # radians, from D_s to D_t


def _cosine(others: Points, client: Points) -> NDArray[np.float64]:
    """Eq. 2 of the mean update of the others."""
    norms = np.linalg.norm(others, axis=-1) * np.linalg.norm(client, axis=-1)
    return np.asarray(1 - (others * client).sum(axis=-1) / norms)


def _error(others: Points, client: Points) -> NDArray[np.float64]:
    """Eq. 3, 0 to 1 on the unit disc: a quarter of the squared distance of the others' model to the client's."""
    return np.asarray(((others - client) ** 2).sum(axis=-1) / 4)


GAMMAS: Mapping[str, Gamma] = {
    "cosine (Eq. 2)": _cosine,
    "error (Eq. 3)": _error,
    "times (Eq. 4)": lambda others, client: _cosine(others, client) * _error(others, client),
    "plus (Eq. 4)": lambda others, client: _cosine(others, client) + _error(others, client),
    "of the others alone": lambda others, client: (1 + others[..., 1] + 0 * client[..., 1]) / 2,
}


def supports(turn: float) -> tuple[Points, Points]:
    """(POINTS, 2) the points of D_s, equally likely, on an arc; and those of D_t, the same turned by ``turn``."""
    angles = np.linspace(-0.8, 0.8, POINTS)
    radii = np.linspace(0.6, 1.0, POINTS)
    first, second = (np.stack([radii * np.cos(angles + by), radii * np.sin(angles + by)], axis=1) for by in (0.0, turn))
    return first, second


def wasserstein(first: Points, second: Points) -> float:
    """W_1 (Eq. 7) of two sets of as many points, equally likely each: that of the best pairs."""
    costs = np.linalg.norm(first[:, None] - second, axis=-1)
    return float(costs[linear_sum_assignment(costs)].mean())


def value(gamma: Gamma, support: Points, clients: Points) -> NDArray[np.float64]:
    """(clients,) ν of Eq. 1 of each of the ``clients`` (clients, 2): mean of Γ over all draws from ``support``."""
    means = np.array([np.mean(drawn, axis=0) for drawn in product(support, repeat=OTHERS)])
    return np.asarray(gamma(means[None], clients[:, None]).mean(axis=1))


def lipschitz(gamma: Gamma, space: Points) -> tuple[float, float]:
    """The least B of Eq. 8 on ``space`` (m, 2), where the client is another; and where one of the others is."""
    fixed = np.array([np.sum(drawn, axis=0) for drawn in combinations_with_replacement(space, OTHERS - 1)])
    means = (fixed[:, None] + space) / OTHERS  # (sets, m, 2): one of the others in turn every point
    table = gamma(means[:, :, None], space)  # (sets, m others, m clients)
    distances = np.linalg.norm(space[:, None] - space, axis=-1)
    apart = distances > 0
    client = np.abs(table[..., :, None] - table[..., None, :]).max(axis=(0, 1))
    other = np.abs(table[:, :, None] - table[:, None]).max(axis=(0, 3))
    return float((client[apart] / distances[apart]).max()), float((other[apart] / distances[apart]).max())


def table() -> pd.DataFrame:
    """By Γ and turn: the largest difference of a value; the bound, with B as printed and as the proof needs it."""
    rows = []
    for name, gamma in GAMMAS.items():
        for turn in TURNS:
            first, second = supports(turn)
            space = np.concatenate([first, second])
            difference = float(np.abs(value(gamma, first, space) - value(gamma, second, space)).max())
            shift = wasserstein(first, second)
            printed, needed = (2 * OTHERS * constant * shift for constant in lipschitz(gamma, space))
            rows.append(
                {
                    "Contribution": name,
                    "Turned by": turn,
                    "Wasserstein": shift,
                    "Difference, largest": difference,
                    "As printed: at most": printed,
                    "As proved: at most": needed,
                    "Within it, as printed": "yes" if difference <= printed + 1e-12 else "no",
                    "Within it, as proved": "yes" if difference <= needed + 1e-12 else "no",
                }
            )
    return pd.DataFrame(rows)
