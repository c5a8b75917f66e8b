"""Statistics of methods' Dice at sites, as observed and in draws, with percentile intervals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedmerit.errors import BadInput
from fedmerit_evaluation.statistics.bootstrap import (
    CASES,
    DRAWS,
    LEVEL,
    MAX_UNDEFINED,
    Clusters,
    FloatArray,
    StudentDraws,
    nan_mean,
)
from fedmerit_evaluation.statistics.crossed_effects import CrossedEffects

K = TypeVar("K")


@dataclass(frozen=True)
class SiteDice:
    """Dice of each method on each site in s seeds, as fractions: as observed, or in D draws; NaN: no such run."""

    seeds: list[int]
    methods: list[str]
    sites: list[str]
    dice: FloatArray  # (..., s, methods, n)
    drawn: StudentDraws | None = None  # of the same D draws; None: as observed

    def of(self, method: str) -> FloatArray:
        """(..., s, n) of one method."""
        return np.asarray(self.dice[..., self.methods.index(method), :])

    def over_seeds(self, numbers: FloatArray) -> FloatArray:
        """(...) the mean of (..., s) known numbers of the seeds, as observed or as drawn."""
        return nan_mean(numbers, axis=-1) if self.drawn is None else self.drawn.mean(numbers)


Statistics = Callable[[SiteDice], Mapping[K, ArrayLike]]  # each (..., s), one number per seed


def bootstrap(
    cases: pd.Series,
    statistics: Statistics[K],
    draws: int = DRAWS,
    seed: int = 0,
    bounds: Callable[[K], tuple[float, float]] = lambda _: (-np.inf, np.inf),
    clusters: Clusters = CASES,
) -> dict[K, dict[str, float]]:
    """Mean and standard deviation over seeds of statistics of Dice, with percentile intervals of the mean.

    Args:
        cases: Dice of each case, a fraction, by ``(method, seed, site, case)``, as
            `fedmerit_evaluation.results.dice.Dice.cases`. A case ``<tested site>/<case>``, as in split ``union``, is
            one and the same for all sites.
        statistics: a pure function of site Dice, called with the observed Dice and with all draws at once.
        seed: of the draws; the same seed gives the same intervals.
        bounds: the range of a statistic, in its unit; intervals are clipped to it.

    Returns:
        For each statistic ``mean`` and ``std`` (ddof 1; NaN for one) over the ``seeds`` in which it is defined, and
        ``low``, ``high`` of the mean; NaN if the statistic is undefined in more than 5 % of the draws, or known in one
        seed of several.

    Raises:
        BadInput: there is no case.
    """
    if cases.empty:
        raise BadInput("bootstrap: no test case; let the runs finish, they test after the last round")
    effects = CrossedEffects.of(cases, clusters)
    drawn = _drawn(effects, draws, seed)
    numbers = statistics(drawn)
    return {
        key: _summary(np.asarray(value), drawn.over_seeds(np.asarray(numbers[key])), bounds(key))
        for key, value in statistics(_as_observed(effects)).items()
    }


def observed(cases: pd.Series) -> SiteDice:
    """Observed site Dice, by seed (axis 0) in order: the mean over the cases, as of `bootstrap`, that are not NaN."""
    return _as_observed(CrossedEffects.of(cases))


def _as_observed(effects: CrossedEffects) -> SiteDice:
    return SiteDice(effects.seeds, effects.methods, effects.sites, effects.means.swapaxes(0, 1))


def _drawn(effects: CrossedEffects, draws: int, seed: int) -> SiteDice:
    """Of each site's patients the same in all seeds and of all methods; of folds the same at all sites."""
    random, seeds = np.random.default_rng(seed), effects.seeds
    drawn_seeds = StudentDraws.even(len(seeds), draws, random)
    dice = np.repeat(effects.means[None], draws, axis=0)
    for place in np.unique(effects.tested):
        own = effects.tested == place
        drawn = (StudentDraws.even if effects.has_folds else StudentDraws.random)(int(own.sum()), draws, random)
        freedom = np.maximum(effects.known[..., own].sum(axis=-1) - 1, 1)  # (m, s, n)
        moved = np.tensordot(drawn.normal, effects.moves[..., own], axes=(1, 3))  # (D, m, s, n)
        dice += moved * np.sqrt(freedom / drawn.squares[:, freedom - 1])
    by_seed = None if effects.has_folds else drawn_seeds
    return SiteDice(seeds, effects.methods, effects.sites, dice.swapaxes(1, 2), by_seed)


def _summary(observed: FloatArray, drawn: FloatArray, bounds: tuple[float, float]) -> dict[str, float]:
    """Mean, spread and interval of (s,) observed numbers and (draws,) sampled means over seeds."""
    known, means = observed[np.isfinite(observed)], drawn[np.isfinite(drawn)]
    low = high = np.nan
    if known.size >= min(2, observed.size) and means.size >= (1 - MAX_UNDEFINED) * len(drawn):
        low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).clip(*bounds)
    return {
        "mean": float(known.mean()) if known.size else np.nan,
        "std": float(known.std(ddof=1)) if known.size > 1 else np.nan,
        "low": float(low),
        "high": float(high),
        "seeds": known.size,
    }
