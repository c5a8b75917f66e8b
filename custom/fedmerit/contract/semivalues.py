"""Semivalues of the players of a cooperative game: exact from a table of coalitions, or from sampled permutations.

Players are sites, the table maps coalitions (frozensets of site names) to their utility: a number or an array of any
one shape, such as (k,) for k labels. Values are signed and come in site-name order, (n, ...) float64.

A semivalue is the mean marginal of a site over the coalitions S of the others, weighted only by their size:
sum over S of w(|S|) (v(S + i) - v(S)), the weights of all S summing to 1 (Dubey, Neyman, Weber 1981).

The code is our own: shapiq needs Python 3.12 and pyDVL NumPy below 2, and both scikit-learn, for one sum here.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmerit.errors import BadInput

FloatArray = NDArray[np.float64]
Coalition = frozenset[str]
Game = Mapping[Coalition, ArrayLike]
Weights = Callable[[int], FloatArray]  # n to (n,): weight of a marginal to a coalition of 0 to n - 1 others

EMPTY_COALITION: Coalition = frozenset()
MAX_LISTED = 8  # coalitions that a message lists


def format_spec(coalition: Iterable[str]) -> str:
    """Return a coalition as column ``coalition`` of results.csv has it: names in order, joined by "+"."""
    return "+".join(sorted(coalition))


def parse_coalition(text: str) -> Coalition:
    """Return the sites in a text of `format_spec`."""
    return frozenset(text.split("+")) if text else EMPTY_COALITION


def list_sites(game: Game) -> list[str]:
    """Return the sites of a game, by name: all that are in any of its coalitions."""
    return sorted(frozenset[str]().union(*game))


def leave_one_out_weights(n: int) -> FloatArray:
    """Return weights that are all on the marginal to all others."""
    return np.asarray(np.eye(n)[-1])


def shapley_weights(n: int) -> FloatArray:
    """Return weights 1 / (n C(n - 1, s)): every size of coalition counts the same (Shapley 1953)."""
    return np.array([1 / (n * math.comb(n - 1, size)) for size in range(n)])


def banzhaf_weights(n: int) -> FloatArray:
    """Return weights 2^(1 - n): every coalition counts the same (Banzhaf 1965), which need not sum up."""
    return np.full(n, 0.5 ** (n - 1))


LEAVE_ONE_OUT, SHAPLEY = "leave-one-out", "Shapley"
EXACT: Mapping[str, Weights] = {LEAVE_ONE_OUT: leave_one_out_weights, SHAPLEY: shapley_weights}


def required_coalitions(sites: Iterable[str], weights: Weights) -> list[Coalition]:
    """Return the coalitions whose utility a semivalue needs, the largest first, the empty one last if needed."""
    names = sorted(sites)
    used = weights(len(names)) > 0
    sizes = [size for size in range(len(names), -1, -1) if used[max(size - 1, 0) : size + 1].any()]
    return [frozenset(members) for size in sizes for members in combinations(names, size)]


def missing_coalitions(game: Game, sites: Iterable[str], weights: Weights) -> list[Coalition]:
    """Return the `required_coalitions` that the game has no utility of, or one that is not finite."""
    return [one for one in required_coalitions(sites, weights) if one not in game or not np.isfinite(game[one]).all()]


def coefficients(sites: Iterable[str], weights: Weights) -> dict[Coalition, FloatArray]:
    """Return (n,) coefficients of each coalition's utility in the values of the sites."""
    names = sorted(sites)
    joining, left = np.concatenate([[0.0], weights(len(names))]), np.concatenate([weights(len(names)), [0.0]])
    return {  # v(S) is gained by joining S, or left behind
        one: np.array([joining[len(one)] if name in one else -left[len(one)] for name in names])
        for one in required_coalitions(names, weights)
    }


def combine(game: Game, parts: Mapping[Coalition, FloatArray]) -> FloatArray:
    """Return (n, ...) sums over coalitions of their (n,) ``parts``, of `coefficients`, times their utilities."""
    utilities = np.stack([np.asarray(game[one], dtype=np.float64) for one in parts])
    return np.tensordot(np.stack(list(parts.values()), axis=1), utilities, axes=1)


def semivalue(game: Game, weights: Weights, sites: Sequence[str] | None = None) -> FloatArray:
    """Return the value of each site, (n, ...) by site name.

    Args:
        game: utilities; with that of the empty coalition if the weights need it.
        weights: by the size of the coalition joined.
        sites: n names, if the game might not name all.

    Raises:
        BadInput: a coalition is missing; the message names it.
    """
    names = sorted(list_sites(game) if sites is None else sites)
    if not names:
        raise BadInput("the game has no site; give it the utility of at least one coalition")
    if lacking := missing_coalitions(game, names, weights):
        raise BadInput(
            f"{format_coalitions(lacking)}: no utility; train what is missing, then ask for the values again"
        )
    return combine(game, coefficients(names, weights))


def format_coalitions(coalitions: Sequence[Coalition], most: int = MAX_LISTED) -> str:
    """Return coalitions for a message, all but the first ``most`` of them counted."""
    texts = [format_spec(one) or "nobody" for one in coalitions[:most]]
    more = len(coalitions) - len(texts)
    return f"coalition{'s' * (len(coalitions) > 1)} {', '.join(texts)}" + (f" and {more} more" if more else "")


def leave_one_out(game: Game) -> FloatArray:
    """Return v(N) - v(N without i)."""
    return semivalue(game, leave_one_out_weights)


def shapley(game: Game) -> FloatArray:
    """Return exact Shapley values; they sum to v(N) - v(nobody)."""
    return semivalue(game, shapley_weights)


def banzhaf(game: Game) -> FloatArray:
    """Return Banzhaf values: the mean marginal over all coalitions."""
    return semivalue(game, banzhaf_weights)


def normalise(values: ArrayLike) -> FloatArray:
    """Return shares of the sum over sites (first axis), such as Table 5 of Jiang et al. 2023.

    Nothing is clipped: a negative value is a negative share, so another's may exceed 1. If the sum is not above 0 (by
    more than rounding) there are no shares: all are NaN.
    """
    amounts = np.asarray(values, dtype=np.float64)
    total = amounts.sum(axis=0)
    positive = total > 1e-12 * np.abs(amounts).sum(axis=0)
    return np.asarray(amounts / np.where(positive, total, np.nan))


@dataclass(frozen=True)
class SampledValues:
    """The state of a sampling of Shapley values."""

    sites: list[str]
    values: FloatArray  # (n, ...) by site name, means over permutations; NaN before the first batch is complete
    standard_errors: FloatArray  # (n, ...) of these means
    walks: Sequence[Sequence[Coalition]] = field(repr=False)  # of the permutations in the means: growing coalitions
    needed: tuple[Coalition, ...]  # to train next; none: it is finished
    ended: str  # why it is finished, or ""

    @property
    def permutations(self) -> int:
        """The number of permutations in the means."""
        return len(self.walks)

    @property
    def coefficients(self) -> dict[Coalition, FloatArray]:
        """The (n,) coefficients of each coalition's utility in the values: sums over the permutations."""
        parts = {EMPTY_COALITION: np.zeros(len(self.values))}
        for before, joined in (step for walk in self.walks for step in pairwise(walk)):
            (name,) = joined - before
            for members, sign in ((joined, 1.0), (before, -1.0)):
                part = parts.setdefault(members, np.zeros(len(self.values)))
                part[self.sites.index(name)] += sign / self.permutations
        return parts


MOST = 10_000  # permutations: more show in no third digit


@dataclass(frozen=True)
class Sampling:
    """A truncated permutation sampling of Shapley values (Algorithm 1, Ghorbani and Zou 2019).

    Sites join in a random order; the marginal of each is one sample of its value. Once the utility is within
    ``truncation`` of the grand coalition's, the rest of the order counts as marginals of 0, untrained: the sum of
    the values then misses at most ``truncation``. It continues batch by batch until, after ``fewest`` permutations, no
    standard error (sample standard deviation over sqrt(permutations)) exceeds ``precision``, or to ``most``.

    Everything follows from the fields and the known utilities: train `SampledValues.needed` in any order, in parallel
    or on another day, call again, and the result is the same.
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
        """Return the permutation of that number, from 0; it does not depend on those drawn before."""
        names = sorted(self.sites)
        return [names[place] for place in np.random.default_rng([self.seed, number]).permutation(len(names))]

    def estimate(self, game: Game) -> SampledValues:
        """Estimate the values from the known utilities, and name the coalitions that are needed next.

        Raises:
            BadInput: a utility is not finite, or that of the empty coalition is missing: it is stated, not trained.
        """
        if EMPTY_COALITION not in game:
            raise BadInput("coalition nobody: no utility; state it, for instance 0")
        for members, utility in game.items():
            if not np.isfinite(utility).all():
                raise BadInput(
                    f"{format_coalitions([members])}: its utility is {np.asarray(utility)}, not finite; train it again"
                )
        names = sorted(self.sites)
        values = errors = np.full((len(self.sites), *np.shape(game[EMPTY_COALITION])), np.nan)
        if frozenset(self.sites) not in game:
            return SampledValues(names, values, errors, [], (frozenset(self.sites),), "")
        walks, samples = list[list[Coalition]](), list[FloatArray]()
        while True:
            if samples:
                values = np.mean(samples, axis=0)
                errors = np.std(samples, axis=0, ddof=1) / math.sqrt(len(samples)) if len(samples) > 1 else errors
            if ended := self._ended(len(walks), errors):
                return SampledValues(names, values, errors, walks, (), ended)
            numbers = range(len(walks), min(len(walks) + self.batch, self.most))
            batch = [self._walk(game, number) for number in numbers]
            if needed := dict.fromkeys(walk[-1] for walk in batch if walk[-1] not in game):
                return SampledValues(names, values, errors, walks, tuple(needed), "")
            walks += batch
            samples += [self._marginals(game, walk) for walk in batch]

    def _walk(self, game: Game, number: int) -> list[Coalition]:
        """Return the growing coalitions of one permutation from the empty one, up to the truncation.

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
        """Return (n, ...) marginals of the sites in a permutation, by site name."""
        names = sorted(self.sites)
        marginals = np.zeros((len(names), *np.shape(game[EMPTY_COALITION])))
        for before, joined in pairwise(walk):
            (name,) = joined - before
            marginals[names.index(name)] = np.asarray(game[joined]) - np.asarray(game[before])
        return marginals

    def _ended(self, count: int, errors: FloatArray) -> str:
        """Return why no further permutations are needed; "" if they are."""
        if count >= self.fewest:
            if errors.max() <= self.precision:
                return f"{count} permutations: no standard error above {self.precision:g}"
            if count >= self.most:
                return f"{count} permutations, the most allowed: standard errors up to {errors.max():.2g}"
        return ""
