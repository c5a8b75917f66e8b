"""Intervals by resampling seeds, and cases within each site: how far statistics of Dice would have come out otherwise.

A draw takes as many seeds as there are, with replacement, and as many test cases of each site as it has, with
replacement (a stratified bootstrap), and `widened`. All methods get the same cases of it: their differences are paired.
So do all seeds that have the same cases: patients that all are tested on cannot be averaged out. Where seeds move the
split, equal numbers are taken for equal patients, and intervals come out wider than need be.

What it cannot do: a site with one test case has nothing to resample, so that intervals are too short, as they are of
two or three seeds; and resampling adds noise of its own, so that spreads come out larger and correlations nearer to 0
than observed, which may then lie at the end of its interval. Few cases make for both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from fedmerit.errors import BadInput

FloatArray = NDArray[np.float64]
K = TypeVar("K")

DRAWS = 2000
LEVEL = 0.95
MOST_UNDEFINED = 0.05  # of the draws; beyond that there is no interval


@dataclass(frozen=True)
class SiteDice:
    """Dice of each method on each site in s slots, one per seed as observed, or as drawn: any leading axes.

    ``seeds[seed[..., k]]`` is the seed of slot k; ``dice`` holds fractions, NaN where there is no such run.
    """

    seeds: list[int]
    methods: list[str]
    sites: list[str]
    seed: NDArray[np.intp]  # (..., s) places in `seeds`
    dice: FloatArray  # (..., s, methods, n)

    def of(self, method: str) -> FloatArray:
        """(..., s, n) of one method."""
        return np.asarray(self.dice[..., self.methods.index(method), :])


def redrawn(number: int, draws: int, random: np.random.Generator) -> FloatArray:
    """(1 + draws, number) how often each of ``number`` things counts: once as observed, then as drawn."""
    drawn = random.multinomial(number, np.full(number, 1 / number), size=draws)
    return np.concatenate([np.ones((1, number)), drawn])


def widened(means: FloatArray, number: int) -> FloatArray:
    """Means (..., 1 + D) of ``number`` things, as observed and as drawn with replacement, and as far off as others are.

    A mean of n drawn with replacement has the variance σ²(n - 1)/n², and that of n others σ²/n: of two, twice that. So
    what was drawn is moved away from what was observed by √(n/(n - 1)). Of one nothing is drawn.
    """
    factor = np.sqrt(number / (number - 1)) if number > 1 else 1.0
    return np.asarray(means[..., :1] + (means - means[..., :1]) * factor)


def mean_known(values: FloatArray, axis: int) -> FloatArray:
    """The mean along an axis of what is not NaN; NaN where all is."""
    known = np.isfinite(values)
    count = known.sum(axis=axis)
    return np.asarray(np.where(known, values, 0.0).sum(axis=axis) / np.where(count > 0, count, np.nan))


Statistics = Callable[[SiteDice], Mapping[K, ArrayLike]]  # each (..., s), one number per slot


@dataclass(frozen=True)
class Resampling:
    """How intervals are made.

    Raises:
        BadInput: a field is out of range.
    """

    draws: int = DRAWS
    seed: int = 0  # of the draws; the same gives the same intervals
    level: float = LEVEL  # of the intervals, 0 to 1

    def __post_init__(self) -> None:
        if self.draws < 1 or self.seed < 0 or not 0 < self.level < 1:
            raise BadInput(
                f"draws {self.draws}, seed {self.seed}, level {self.level}: expected draws >= 1, seed >= 0, "
                "0 < level < 1"
            )


USUAL = Resampling()


def bootstrap(cases: pd.Series, statistics: Statistics[K], resampling: Resampling = USUAL) -> dict[K, dict[str, float]]:
    """Mean and standard deviation over seeds of statistics of Dice, with their percentile intervals.

    Args:
        cases: Dice of each case, a fraction, by ``(method, seed, site, case)``, as
            `evaluation.results.dice.Dice.cases`. A case ``<tested site>/<case>``, as in split ``union``, is one
            and the same for all sites.
        statistics: a pure function of site Dice, called with what was observed and with all draws at once.
        resampling: how many draws, and of which level.

    Returns:
        For each statistic ``mean`` and ``std`` (ddof 1; NaN for one) over the ``seeds`` in which it is defined, and
        ``low``, ``high`` of the mean; these are NaN where more than 5 % of the draws leave it undefined.

    Raises:
        BadInput: there is no case.
    """
    if cases.empty:
        raise BadInput("bootstrap: no test case; let the runs finish, they test after the last round")
    units = _units(cases)
    drawn = statistics(_resampled(units, resampling))
    return {
        key: _summary(np.asarray(value), np.asarray(drawn[key]), resampling.level)
        for key, value in statistics(_as_observed(units)).items()
    }


def observed(cases: pd.Series) -> SiteDice:
    """Site Dice as it is, one slot (axis 0) per seed in order: the mean over the cases that are not NaN.

    Args:
        cases: as for `bootstrap`.
    """
    return _as_observed(_units(cases))


def tested_sites(frame: pd.DataFrame) -> pd.Series:
    """By row of columns ``site, case``, whose patient it is: another's where the case is ``<tested site>/<case>``."""
    tested = frame["case"].str.rpartition("/")
    return tested[0].where(tested[1] != "", frame["site"])


def _as_observed(table: pd.DataFrame) -> SiteDice:
    seeds, methods, sites = _shape(table)
    means = table.mean(axis=1).to_numpy(dtype=np.float64)
    return SiteDice(seeds, methods, sites, np.arange(len(seeds)), means.reshape(len(seeds), len(methods), len(sites)))


def _units(cases: pd.Series) -> pd.DataFrame:
    """``(seed, method, site)`` x units ``(tested site, case)``; all methods and sites for every seed."""
    frame = cases.rename("dice").reset_index().sort_values(["method", "seed", "site", "case"])
    frame = frame.astype({"method": str, "site": str, "case": str})
    frame["tested"] = tested_sites(frame)
    frame["case"] = frame["case"].str.rpartition("/")[2]
    table = frame.pivot(index=["seed", "method", "site"], columns=["tested", "case"], values="dice").sort_index(axis=1)
    levels = [sorted(frame[name].unique()) for name in ("seed", "method", "site")]
    return table.reindex(pd.MultiIndex.from_product(levels, names=["seed", "method", "site"]))


def _shape(table: pd.DataFrame) -> tuple[list[int], list[str], list[str]]:
    seeds, methods, sites = (list(level.unique()) for level in map(table.index.get_level_values, range(3)))
    return seeds, methods, sites


def _resampled(table: pd.DataFrame, resampling: Resampling) -> SiteDice:
    random = np.random.default_rng(resampling.seed)
    seeds, methods, sites = _shape(table)
    chosen = random.integers(len(seeds), size=(resampling.draws, len(seeds)))
    counted: dict[tuple[object, ...], FloatArray] = {}  # by the cases that there are
    dice = np.empty((*chosen.shape, len(methods), len(sites)))
    for place, number in enumerate(seeds):
        of_seed = pd.DataFrame(table.xs(number, level="seed")).dropna(axis="columns", how="all")
        there, values = tuple(of_seed.columns), of_seed.to_numpy(dtype=np.float64)
        if there not in counted:
            counted[there] = _counts(of_seed.columns.get_level_values("tested"), resampling.draws, random)
        counts, known = counted[there], np.isfinite(values)
        drawn = counts @ known.T.astype(np.float64)  # below 0 where no case that is known was drawn
        sums = counts @ np.where(known, values, 0.0).T
        means = (sums / np.where(drawn > 0, drawn, np.nan)).reshape(-1, len(methods), len(sites))
        draws, slots = np.nonzero(chosen == place)
        dice[draws, slots] = means[draws]
    given = table.to_numpy(dtype=np.float64)
    low, high = np.nanmin(given, initial=0.0), np.nanmax(given, initial=1.0)  # Dice stays Dice where it is widened
    return SiteDice(seeds, methods, sites, chosen, dice.clip(low, high))


def _counts(tested: pd.Index, draws: int, random: np.random.Generator) -> FloatArray:
    """(draws, cases) how often each case counts, widened: as many are drawn within each tested site as it has."""
    counts = np.ones((1 + draws, len(tested)))
    for site in sorted(set(tested)):
        columns = np.flatnonzero(tested == site)
        counts[:, columns] = widened(redrawn(len(columns), draws, random).T, len(columns)).T
    return counts[1:]


def _summary(observed: FloatArray, drawn: FloatArray, level: float) -> dict[str, float]:
    """Of (s,) numbers of the seeds and (draws, s) resampled ones."""
    known = observed[np.isfinite(observed)]
    defined = np.isfinite(drawn)
    counts = defined.sum(axis=-1)
    means = (np.where(defined, drawn, 0.0).sum(axis=-1) / np.maximum(counts, 1))[counts > 0]
    low = high = np.nan
    if known.size and means.size >= (1 - MOST_UNDEFINED) * len(drawn):
        low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return {
        "mean": float(known.mean()) if known.size else np.nan,
        "std": float(known.std(ddof=1)) if known.size > 1 else np.nan,
        "low": float(low),
        "high": float(high),
        "seeds": known.size,
    }
