"""Shapley values without all 2^n coalitions: from sampled permutations, or by regression over some coalitions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from fedmerit.contract import semivalues
from fedmerit.contract.semivalues import EMPTY_COALITION, Coalition, FloatArray, Game, format_coalitions
from fedmerit.errors import BadInput


@dataclass(frozen=True)
class Estimate:
    """The state of a sampling of Shapley values."""

    values: FloatArray  # (n, ...) by site name, means over permutations; NaN before the first batch is complete
    standard_errors: FloatArray  # (n, ...) of these means
    permutations: int  # in the means
    needed: tuple[Coalition, ...]  # to train next; none: it is finished
    ended: str  # why it is finished, or ""


MOST = 10_000  # permutations: more show in no third digit


@dataclass(frozen=True)
class Sampling:
    """Truncated permutation sampling of Shapley values (Algorithm 1, Ghorbani and Zou 2019).

    Sites join in a random order; the marginal of each is one sample of its value. Once the utility is within
    ``truncation`` of the grand coalition's, the rest of the order counts as marginals of 0, untrained: the sum of
    the values then misses at most ``truncation``. It continues batch by batch until, after ``fewest`` permutations, no
    standard error (sample standard deviation over sqrt(permutations)) exceeds ``precision``, or to ``most``.

    Everything follows from the fields and the known utilities: train `Estimate.needed` in any order, in parallel or on
    another day, call again, and the result is the same.
    """

    sites: tuple[str, ...]
    seed: int = 0
    truncation: float = 0.01  # in units of utility; this is GTG-Shapley's, Liu et al. 2022
    precision: float = 0.005  # in units of utility
    fewest: int = 20
    most: int = 1000
    batch: int = 10  # permutations in progress: their next coalitions can be trained in parallel

    def __post_init__(self) -> None:
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise BadInput(f"sites {', '.join(self.sites) or 'none'}: expected at least one, each once")
        if not (self.truncation >= 0 and self.precision >= 0):
            raise BadInput(f"truncation {self.truncation}, precision {self.precision}: expected 0 or more")
        if not (2 <= self.fewest <= self.most <= MOST and 1 <= self.batch <= MOST):
            raise BadInput(
                f"fewest {self.fewest}, most {self.most}, batch {self.batch}: expected 2 <= fewest <= most <= {MOST}, "
                f"batch in 1 to {MOST}"
            )

    def order(self, number: int) -> list[str]:
        """The permutation of that number, from 0; it does not depend on those drawn before."""
        names = sorted(self.sites)
        return [names[place] for place in np.random.default_rng([self.seed, number]).permutation(len(names))]

    def estimate(self, game: Game) -> Estimate:
        """The estimate from the known utilities, and the coalitions that it needs next.

        Raises:
            BadInput: a utility is not finite, or that of the empty coalition is missing: it is stated, not trained.
        """
        if EMPTY_COALITION not in game:
            raise BadInput("coalition nobody: no utility; state it, for instance 0")
        for one, utility in game.items():
            if not np.isfinite(utility).all():
                raise BadInput(
                    f"{format_coalitions([one])}: its utility is {np.asarray(utility)}, not finite; train it again"
                )
        grand = frozenset(self.sites)
        if grand not in game:
            unknown = np.full((len(self.sites), *np.shape(game[EMPTY_COALITION])), np.nan)
            return Estimate(unknown, unknown, 0, (grand,), "")
        whole: list[FloatArray] = []
        needed: dict[Coalition, None] = {}
        while not needed and not (ended := self._ended(whole)):
            walks = [self._walk(game, number) for number in range(len(whole), min(len(whole) + self.batch, self.most))]
            needed = dict.fromkeys(walk[-1] for walk in walks if walk[-1] not in game)
            if not needed:
                whole += [self._marginals(game, walk) for walk in walks]
        values, errors = self._means(whole, np.shape(game[grand]))
        return Estimate(values, errors, len(whole), tuple(needed), "" if needed else ended)

    def coefficients(self, game: Game) -> dict[Coalition, FloatArray]:
        """(n,) coefficients of each coalition's utility in the estimate: sums over its permutations."""
        names = sorted(self.sites)
        found = {EMPTY_COALITION: np.zeros(len(names))}
        count = self.estimate(game).permutations
        for number in range(count):
            for before, joined in pairwise(self._walk(game, number)):
                (name,) = joined - before
                for one, sign in ((joined, 1.0), (before, -1.0)):
                    found.setdefault(one, np.zeros(len(names)))[names.index(name)] += sign / count
        return found

    def _walk(self, game: Game, number: int) -> list[Coalition]:
        """The growing coalitions of one permutation from the empty one, up to the truncation.

        If the last one is not in the game, it has to be trained next.
        """
        end, walk = np.asarray(game[frozenset(self.sites)], dtype=np.float64), [EMPTY_COALITION]
        for name in self.order(number):
            if np.abs(end - np.asarray(game[walk[-1]])).max() <= self.truncation:
                break
            walk.append(walk[-1] | {name})
            if walk[-1] not in game:
                break
        return walk

    def _marginals(self, game: Game, walk: Sequence[Coalition]) -> FloatArray:
        """(n, ...) marginals of the sites in a permutation, by site name."""
        names = sorted(self.sites)
        marginals = np.zeros((len(names), *np.shape(game[EMPTY_COALITION])))
        for before, joined in pairwise(walk):
            (name,) = joined - before
            marginals[names.index(name)] = np.asarray(game[joined]) - np.asarray(game[before])
        return marginals

    def _means(self, whole: Sequence[FloatArray], shape: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
        unknown = np.full((len(self.sites), *shape), np.nan)
        if len(whole) < 2:
            return (whole[0] if whole else unknown), unknown
        samples = np.stack(whole)
        return samples.mean(axis=0), samples.std(axis=0, ddof=1) / math.sqrt(len(whole))

    def _ended(self, whole: Sequence[FloatArray]) -> str:
        count = len(whole)
        if count >= self.fewest:
            largest = self._means(whole, whole[0].shape[1:])[1].max()
            if largest <= self.precision:
                return f"{count} permutations: no standard error above {self.precision:g}"
            if count >= self.most:
                return f"{count} permutations, the most allowed: standard errors up to {largest:.2g}"
        return ""


ROUNDING = 1e-9  # of the largest eigenvalue: smaller ones are 0


def least_squares_values(game: Game, sites: Sequence[str] | None = None) -> FloatArray:
    """(n, ...) by site name: the additive game nearest to ``game``, equal to it for the empty and the grand coalition.

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
    """(m, ...) less the mean over the coalitions of the same size."""
    result = values.copy()
    for size in np.unique(sizes):
        result[sizes == size] -= values[sizes == size].mean(axis=0)
    return result


def kernel_weights(members: FloatArray) -> FloatArray:
    """(m,) weights of the coalitions (m, n) ``members``, all different.

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
    """At most ``most`` coalitions of the sites for `least_squares_values`; largest first.

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
    """(n, ...) exact Shapley values if all coalitions are there, else `least_squares_values`."""
    if len(game) >= 2 ** len(sites):
        return semivalues.combine(game, semivalues.coefficients(sites, semivalues.shapley_weights))
    return least_squares_values(game, sites)
