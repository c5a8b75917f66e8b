"""Shapley values from some of a game's coalitions, by weighted least squares, where all 2^n are too many."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedmerit.errors import BadInput
from fedmerit.games import coalitions_to_evaluate
from fedmerit_evaluation.ground_truth.semivalues import (
    EMPTY_COALITION,
    Coalition,
    FloatArray,
    Game,
    coefficients,
    combined,
    named,
    shapley_weights,
    sites_of,
)

ROUNDING = 1e-9  # of the largest eigenvalue: below, nothing that tells sites apart


def least_squares_values(game: Game, sites: Sequence[str] | None = None) -> FloatArray:
    """(n, ...) by site name: the additive game nearest to ``game``, which agrees with it on nobody and on all.

    KernelSHAP (Lundberg and Lee 2017): Σ_S k(|S|) (v(S) - v(∅) - Σ_{i∈S} φ_i)² is least, subject to
    Σ φ_i = v(N) - v(∅), with k(s) = (n - 1) / (C(n, s) s (n - s)). Of the sizes that are not complete, those that are
    there stand for all (`kernel_weights`). Whatever depends on a coalition's size alone is taken out first, size by
    size: it gives all sites alike, and where few coalitions are there it would drown what tells the sites apart. With
    all coalitions that changes nothing, and the values are the Shapley values, to rounding (Charnes et al. 1988).

    Args:
        game: utilities, of any one shape; nobody and all sites among the coalitions.
        sites: n names, where the game might not name all.

    Raises:
        BadInput: nobody or all sites are not there, or too few coalitions to tell the sites apart.
    """
    names = sorted(sites_of(game) if sites is None else sites)
    grand, n = frozenset(names), len(names)
    if lacking := [one for one in (EMPTY_COALITION, grand) if one not in game]:
        raise BadInput(f"{named(lacking)}: no utility; a regression over coalitions starts from these")
    start = np.asarray(game[EMPTY_COALITION], dtype=np.float64)
    gain = np.asarray(game[grand], dtype=np.float64) - start
    if n == 1:
        return np.asarray(gain[None])
    chosen = sorted((one for one in game if one not in (EMPTY_COALITION, grand)), key=sorted)
    members = np.array([[name in one for name in names] for one in chosen], dtype=np.float64).reshape(-1, n)
    weights = kernel_weights(members)
    utilities = np.stack([np.asarray(game[one], dtype=np.float64) for one in chosen]) if chosen else np.zeros((0,))
    sizes = members.sum(axis=1)
    apart, beyond = _without_size(members, sizes), _without_size(utilities, sizes)
    normal = apart.T @ (weights[:, None] * apart)
    # what is the same for all sites is 0 to rounding, in which it may be above the libraries' own tolerances
    if np.linalg.matrix_rank(normal, rtol=ROUNDING, hermitian=True) < n - 1:
        raise BadInput(
            f"{len(chosen)} coalitions between nobody and all {n} sites do not tell the sites apart; evaluate more"
        )
    right = np.tensordot(apart.T * weights, beyond, axes=1)  # (n, ...), of sum 0 over sites
    own = (np.linalg.pinv(normal, rtol=ROUNDING, hermitian=True) @ right.reshape(n, -1)).reshape(right.shape)
    return np.asarray(own + gain / n)


def _without_size(values: FloatArray, sizes: FloatArray) -> FloatArray:
    """(m, ...) less the mean over the coalitions of the same size."""
    result = values.copy()
    for size in np.unique(sizes):
        result[sizes == size] -= values[sizes == size].mean(axis=0)
    return result


def kernel_weights(members: FloatArray) -> FloatArray:
    """(m,) what each coalition of (m, n) ``members``, distinct ones, weighs.

    All coalitions of a size that is complete share what the Shapley kernel gives the size, (n - 1) / (s (n - s)); those
    of the other sizes, drawn by it, share alike what it gives to all of these.
    """
    n = members.shape[1]
    sizes = members.sum(axis=1).astype(int)
    there = np.bincount(sizes, minlength=n + 1)
    of_size = {size: (n - 1) / (size * (n - size)) for size in range(1, n)}
    whole = {size for size in of_size if there[size] == math.comb(n, size)}
    rest = sum(weight for size, weight in of_size.items() if size not in whole)
    drawn = sum(int(there[size]) for size in of_size if size not in whole)
    return np.array([of_size[size] / there[size] if size in whole else rest / drawn for size in sizes.tolist()])


def coalitions_to_train(sites: Sequence[str], most: int, seed: int) -> list[Coalition]:
    """At most ``most`` coalitions of the sites, all where they are no more, for `least_squares_values`; largest first.

    Raises:
        BadInput: they are too few for so many sites.
    """
    names = sorted(sites)
    fewest = min(2 ** len(names), 2 * len(names) + 2)
    if most < fewest:
        raise BadInput(f"{most} coalitions of {len(names)} sites: expected {fewest} or more, to tell the sites apart")
    rows = coalitions_to_evaluate(len(names), most, seed).tolist()
    chosen = [frozenset(name for name, there in zip(names, row, strict=True) if there) for row in rows]
    return sorted((one for one in chosen if one), key=lambda one: (-len(one), sorted(one)))


def shapley_or_regression(game: Mapping[Coalition, ArrayLike], sites: Sequence[str]) -> FloatArray:
    """(n, ...) exact Shapley values where all coalitions are there, else `least_squares_values`."""
    if len(game) >= 2 ** len(sites):
        return combined(game, coefficients(sites, shapley_weights))
    return least_squares_values(game, sites)
