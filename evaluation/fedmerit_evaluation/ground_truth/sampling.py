"""Shapley values from sampled permutations of the players of a game (`ground_truth.semivalues`)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedmerit.errors import BadInput
from fedmerit_evaluation.ground_truth.semivalues import EMPTY_COALITION, Coalition, FloatArray, Game, named


@dataclass(frozen=True)
class Estimate:
    """Where a sampling of Shapley values stands."""

    values: FloatArray  # (n, ...) by site name, means over permutations; NaN before the first batch is whole
    standard_errors: FloatArray  # (n, ...) of these means
    permutations: int  # that they are means of
    needed: tuple[Coalition, ...]  # to be trained before it can go on; none: it has come to its end
    ended: str  # the reason, or nothing


@dataclass(frozen=True)
class Sampling:
    """Truncated permutation sampling of Shapley values (Algorithm 1, Ghorbani and Zou 2019).

    Sites join in a random order; the marginal of each is one sample of its value. Once the utility is within
    ``truncation`` of the grand coalition's, the rest of the order counts as marginals of 0, untrained: the values
    then miss at most ``truncation`` in sum. It goes on batch by batch until, after ``fewest`` permutations, no
    standard error (sample standard deviation over sqrt(permutations)) exceeds ``precision``, or to ``most``.

    Everything follows from the fields and the utilities known: whoever trains what is `Estimate.needed`, in any order,
    side by side or on another day, and asks again, comes to the same end.
    """

    sites: tuple[str, ...]
    seed: int = 0
    truncation: float = 0.01  # in units of utility; this is GTG-Shapley's, Liu et al. 2022
    precision: float = 0.005  # in units of utility
    fewest: int = 20
    most: int = 1000
    batch: int = 10  # permutations at work at a time: their next coalitions can be trained side by side

    def __post_init__(self) -> None:
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise BadInput(f"sites {', '.join(self.sites) or 'none'}: expected at least one, each once")
        if not (self.truncation >= 0 and self.precision >= 0):
            raise BadInput(f"truncation {self.truncation}, precision {self.precision}: expected 0 or more")
        if not (2 <= self.fewest <= self.most and self.batch >= 1):
            raise BadInput(
                f"fewest {self.fewest}, most {self.most}, batch {self.batch}: expected 2 <= fewest <= most, batch >= 1"
            )

    def order(self, number: int) -> list[str]:
        """The permutation of that number, from 0: the same whatever was drawn before."""
        names = sorted(self.sites)
        return [names[place] for place in np.random.default_rng([self.seed, number]).permutation(len(names))]

    def estimate(self, game: Game) -> Estimate:
        """How far the utilities known carry, from the first permutation on.

        Raises:
            BadInput: a utility is not finite, or that of nobody is missing: it is stated, not trained.
        """
        if EMPTY_COALITION not in game:
            raise BadInput("coalition nobody: no utility; state it, for instance 0")
        for one, utility in game.items():
            if not np.isfinite(utility).all():
                raise BadInput(f"{named([one])}: its utility is {np.asarray(utility)}, not finite; train it again")
        grand = frozenset(self.sites)
        if grand not in game:
            unknown = np.full((len(self.sites), *np.shape(game[EMPTY_COALITION])), np.nan)
            return Estimate(unknown, unknown, 0, (grand,), "")
        whole: list[FloatArray] = []
        needed: dict[Coalition, None] = {}
        while not needed and not (ended := self._ended(whole)):
            walks = [self._walk(game, number) for number in range(len(whole), self._batch_end(len(whole)))]
            needed = dict.fromkeys(walk[-1] for walk in walks if walk[-1] not in game)
            if not needed:
                whole += [self._marginals(game, walk) for walk in walks]
        values, errors = self._means(whole, np.shape(game[grand]))
        return Estimate(values, errors, len(whole), tuple(needed), "" if needed else ended)

    def coefficients(self, game: Game) -> dict[Coalition, FloatArray]:
        """As `coefficients`, of the estimate that the utilities known carry to: sums over its permutations.

        They say what the estimate would be for other utilities of the same coalitions, cut off where this one is.
        """
        names = sorted(self.sites)
        found = {EMPTY_COALITION: np.zeros(len(names))}
        count = self.estimate(game).permutations
        for number in range(count):
            for before, joined in pairwise(self._walk(game, number)):
                (name,) = joined - before
                for one, sign in ((joined, 1.0), (before, -1.0)):
                    found.setdefault(one, np.zeros(len(names)))[names.index(name)] += sign / count
        return found

    def _batch_end(self, start: int) -> int:
        return min(start + self.batch, self.most)

    def _walk(self, game: Game, number: int) -> list[Coalition]:
        """From nobody on, the coalitions that grow in one permutation, up to where the rest counts as 0.

        The last is not in the game where it has to be known to go on.
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
        """(n, ...) what each site adds in a permutation, by site name."""
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
