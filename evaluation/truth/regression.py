"""Shapley values from some of a game's coalitions, by weighted least squares, where all 2^n are too many."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from evaluation.truth.semivalues import (
    NOBODY,
    Coalition,
    FloatArray,
    Game,
    coefficients,
    combined,
    named,
    shapley_weights,
    sites_of,
)
from fedmerit.errors import BadInput
from fedmerit.games import coalitions_to_evaluate


def least_squares_values(game: Game, sites: Sequence[str] | None = None) -> FloatArray:
    """(n, ...) by site name: the additive game nearest to ``game``, which agrees with it on nobody and on all.

    KernelSHAP (Lundberg and Lee 2017): Σ_S k(|S|) (v(S) - v(∅) - Σ_{i∈S} φ_i)² is least, subject to
    Σ φ_i = v(N) - v(∅), with k(s) = (n - 1) / (C(n, s) s (n - s)). Where only some coalitions of a size are there, they
    stand for all of it. With all of them the values are the Shapley values, to rounding (Charnes et al. 1988).

    Args:
        game: utilities, of any one shape; nobody and all sites among the coalitions.
        sites: n names, where the game might not name all.

    Raises:
        BadInput: nobody or all sites are not there, or too few coalitions to tell the sites apart.
    """
    names = sorted(sites_of(game) if sites is None else sites)
    grand, n = frozenset(names), len(names)
    if lacking := [one for one in (NOBODY, grand) if one not in game]:
        raise BadInput(f"{named(lacking)}: no utility; a regression over coalitions starts from these")
    start = np.asarray(game[NOBODY], dtype=np.float64)
    gain = np.asarray(game[grand], dtype=np.float64) - start
    if n == 1:
        return np.asarray(gain[None])
    chosen = sorted((one for one in game if one not in (NOBODY, grand)), key=sorted)
    members = np.array([[name in one for name in names] for one in chosen], dtype=np.float64).reshape(-1, n)
    weights = kernel_weights(members)
    normal = members.T @ (weights[:, None] * members)
    if np.linalg.matrix_rank(normal) < n:
        raise BadInput(
            f"{len(chosen)} coalitions between nobody and all {n} sites do not tell the sites apart; evaluate more"
        )
    utilities = np.stack([np.asarray(game[one], dtype=np.float64) for one in chosen]) - start
    right = np.tensordot(members.T * weights, utilities, axes=1)  # (n, ...)
    free, ones = np.linalg.solve(normal, right.reshape(n, -1)), np.linalg.solve(normal, np.ones(n))
    surplus = (free.sum(axis=0) - gain.reshape(-1)) / ones.sum()
    return np.asarray((free - ones[:, None] * surplus).reshape(right.shape))


def kernel_weights(members: FloatArray) -> FloatArray:
    """(m,) the Shapley kernel of each coalition of (m, n) ``members``, those of a size sharing what all of it weigh."""
    n = members.shape[1]
    sizes = members.sum(axis=1).astype(int)
    there = np.bincount(sizes, minlength=n + 1)
    return np.array([(n - 1) / (size * (n - size) * there[size]) for size in sizes])


def coalitions_to_train(sites: Sequence[str], most: int, seed: int) -> list[Coalition]:
    """At most ``most`` coalitions of the sites, all where they are no more, for `least_squares_values`; largest first.

    Raises:
        BadInput: they are too few for so many sites.
    """
    names = sorted(sites)
    if most < min(2 ** len(names), 2 * len(names) + 2):
        raise BadInput(
            f"{most} coalitions of {len(names)} sites: expected {2 * len(names) + 2} or more, to tell the sites apart"
        )
    rows = coalitions_to_evaluate(len(names), most, seed).tolist()
    chosen = [frozenset(name for name, there in zip(names, row, strict=True) if there) for row in rows]
    return sorted((one for one in chosen if one), key=lambda one: (-len(one), sorted(one)))


def shapley_or_regression(game: Mapping[Coalition, ArrayLike], sites: Sequence[str]) -> FloatArray:
    """(n, ...) exact Shapley values where all coalitions are there, else `least_squares_values`."""
    if len(game) >= 2 ** len(sites):
        return combined(game, coefficients(sites, shapley_weights))
    return least_squares_values(game, sites)
