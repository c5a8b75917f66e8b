"""Shapley values without all 2^n coalitions: by regression over some coalitions (KernelSHAP)."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedmerit.contract import semivalues
from fedmerit.contract.semivalues import EMPTY_COALITION, Coalition, FloatArray, Game, format_coalitions
from fedmerit.errors import BadInput

ROUNDING = 1e-9  # of the largest eigenvalue: smaller ones are 0


def least_squares_values(game: Game, sites: Sequence[str] | None = None) -> FloatArray:
    """Return (n, ...) by site name: the additive game nearest to ``game``, equal to it for nobody and for all.

    KernelSHAP (Lundberg and Lee 2017): Σ_S k(|S|) (v(S) - v(∅) - Σ_{i∈S} φ_i)² is least, subject to
    Σ φ_i = v(N) - v(∅), with k(s) = (n - 1) / (C(n, s) s (n - s)). Sizes that are not complete
    are represented by the coalitions that there are (`kernel_weights`). The mean of each size is removed first: it is
    the same for all sites, and with few coalitions it would hide their differences. With all coalitions this changes
    nothing, and the values are the Shapley values, to rounding (Charnes et al. 1988).

    Args:
        game: utilities, of any one shape; with the empty and the grand coalition.
        sites: n names, if the game might not name all.

    Raises:
        BadInput: the empty or the grand coalition is missing, or there are too few coalitions to identify n values.
    """
    names = sorted(semivalues.list_sites(game) if sites is None else sites)
    grand, n = frozenset(names), len(names)
    if lacking := [one for one in (EMPTY_COALITION, grand) if one not in game]:
        raise BadInput(f"{format_coalitions(lacking)}: no utility; a regression over coalitions starts from these")
    start = np.asarray(game[EMPTY_COALITION], dtype=np.float64)
    gain = np.asarray(game[grand], dtype=np.float64) - start
    if n == 1:
        return np.asarray(gain[None])
    chosen = sorted((one for one in game if one not in (EMPTY_COALITION, grand)), key=sorted)
    members = np.array([[name in one for name in names] for one in chosen], dtype=np.float64).reshape(-1, n)
    weights = kernel_weights(members)
    utilities = np.stack([np.asarray(game[one], dtype=np.float64) for one in chosen]) if chosen else np.zeros((0,))
    sizes = members.sum(axis=1)
    centred, beyond = _without_size(members, sizes), _without_size(utilities, sizes)
    normal = centred.T @ (weights[:, None] * centred)
    # the part common to all sites is 0 up to rounding, which may exceed the libraries' own tolerances
    if np.linalg.matrix_rank(normal, rtol=ROUNDING, hermitian=True) < n - 1:
        raise BadInput(
            f"{len(chosen)} coalitions of 1 to {n - 1} sites do not determine the values of {n} sites; evaluate more"
        )
    right = np.tensordot(centred.T * weights, beyond, axes=1)  # (n, ...), of sum 0 over sites
    own = (np.linalg.pinv(normal, rtol=ROUNDING, hermitian=True) @ right.reshape(n, -1)).reshape(right.shape)
    return np.asarray(own + gain / n)


def _without_size(values: FloatArray, sizes: FloatArray) -> FloatArray:
    """Return (m, ...) less the mean over the coalitions of the same size."""
    result = values.copy()
    for size in np.unique(sizes):
        result[sizes == size] -= values[sizes == size].mean(axis=0)
    return result


def kernel_weights(members: FloatArray) -> FloatArray:
    """Return (m,) weights of the coalitions (m, n) ``members``, all different.

    Coalitions of a complete size share the Shapley kernel's weight of the size, (n - 1) / (s (n - s)); those of the
    other sizes, drawn by the kernel, share the weight of all these sizes equally.
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
    """Return at most ``most`` coalitions of the sites for `least_squares_values`; largest first.

    Raises:
        BadInput: they are too few for so many sites.
    """
    names = sorted(sites)
    fewest = min(2 ** len(names), 2 * len(names) + 2)
    if most < fewest:
        raise BadInput(f"{most} coalitions of {len(names)} sites: expected {fewest} or more to determine their values")
    from fedmerit.contract.games import coalitions_to_evaluate  # it takes a second to import torch

    rows = coalitions_to_evaluate(len(names), most, seed).tolist()
    chosen = [frozenset(name for name, there in zip(names, row, strict=True) if there) for row in rows]
    return sorted((one for one in chosen if one), key=lambda one: (-len(one), sorted(one)))


def shapley_or_regression(game: Mapping[Coalition, ArrayLike], sites: Sequence[str]) -> FloatArray:
    """Return (n, ...) exact Shapley values if all coalitions are there, else `least_squares_values`."""
    if len(game) >= 2 ** len(sites):
        return semivalues.combine(game, semivalues.coefficients(sites, semivalues.shapley_weights))
    return least_squares_values(game, sites)
