"""Confidence intervals of statistics of Dice: Student's t over the cases of every site, and over seeds.

A draw moves the mean of n cases of a site by Σ zᵢ (xᵢ - x̄) / √(n χ²), z standard normal, χ² with n - 1 degrees of
freedom: its quantiles are Student's, so three cases are covered as well as thirty. All methods get the same z and χ²
in a draw: their differences are paired. So do all seeds that have the same cases: cases that all seeds are tested on
cannot be averaged out. If seeds change the split, equal numbers are taken for equal cases, and the intervals come out
wider than necessary. Seeds are drawn likewise. 95 % intervals are percentiles of the statistic over the draws.

Assumptions: cases of a site are exchangeable and independent (one image of a patient), seeds independent, means of both
about normal. Limits: with one case of a site nothing is known; noise that differs by seed and case counts twice, so
intervals of unstable training are wide; drawing adds noise, so spreads come out larger and correlations nearer to 0.

Source: Student's t as a confidence distribution, Fisher 1935 (The fiducial argument); percentile intervals: Efron and
Tibshirani 1993, An Introduction to the Bootstrap, chapter 13. Coverage: docs/studies/statistics.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, qmc

from fedmerit.errors import BadInput

FloatArray = NDArray[np.float64]
K = TypeVar("K")

DRAWS = 2000
LEVEL = 0.95
MAX_UNDEFINED = 0.05  # of the draws; if more are undefined there is no interval


@dataclass(frozen=True)
class StudentDraws:
    """D draws of the mean of other items, such as seeds or patients: Student's t around the mean of n known ones.

    Resampled with replacement, two items would give three means and three ten: such percentile intervals cover the true
    mean in half and in three quarters of all cases. All statistics use the same draws.
    """

    normal: FloatArray  # (D, n)
    squares: FloatArray  # (D, n) χ² of 1 to n degrees of freedom

    @classmethod
    def random(cls, items: int, draws: int, random: np.random.Generator) -> "StudentDraws":
        """D ``draws`` of that many items."""
        normal, squared = random.standard_normal((2, draws, items))
        return cls(normal, np.cumsum(squared**2, axis=1))

    @classmethod
    def even(cls, items: int, draws: int, random: np.random.Generator) -> "StudentDraws":
        """Likewise by Halton's points, which fill the tails more evenly; for few items, and once only."""
        normal = norm.ppf(qmc.Halton(2 * items, rng=random).random(draws))
        return cls(normal[:, :items], np.cumsum(normal[:, items:] ** 2, axis=1))

    def mean(self, numbers: FloatArray) -> FloatArray:
        """(D,) means of (D, n) numbers, which differ by draw; NaN: not known. Of one known number that number."""
        middle, count = nan_mean(numbers, axis=-1), np.isfinite(numbers).sum(axis=-1)
        deviations = np.nan_to_num(numbers - middle[:, None])  # times normals: variance (n - 1) sd²
        square = np.take_along_axis(self.squares, np.maximum(count - 2, 0)[:, None], axis=-1)[:, 0]
        return np.asarray(middle + (self.normal * deviations).sum(axis=-1) / np.sqrt(np.maximum(count, 1) * square))

    def deviations(self, numbers: FloatArray) -> FloatArray:
        """(rows, D) deviations from the means of (rows, n) numbers, paired; 0 for a row with one known number."""
        count = np.maximum(np.isfinite(numbers).sum(axis=-1), 1)
        own = np.nan_to_num(numbers - nan_mean(numbers, axis=-1)[:, None])
        square = self.squares.T[np.maximum(count - 2, 0)]  # (rows, D)
        return np.asarray(own @ self.normal.T / np.sqrt(count[:, None] * square))


@dataclass(frozen=True)
class SiteDice:
    """Dice of each method on each site in s slots, one per seed: as observed, or in D draws (D, s).

    ``seeds[seed[..., k]]`` is the seed of slot k; ``dice`` holds fractions, NaN: no such run.
    """

    seeds: list[int]
    methods: list[str]
    sites: list[str]
    seed: NDArray[np.intp]  # (..., s) places in `seeds`
    dice: FloatArray  # (..., s, methods, n)
    drawn: StudentDraws | None = None  # of the same D draws; None: as observed

    def of(self, method: str) -> FloatArray:
        """(..., s, n) of one method."""
        return np.asarray(self.dice[..., self.methods.index(method), :])

    def over_seeds(self, numbers: FloatArray) -> FloatArray:
        """(...) the mean of (..., s) known numbers of the seeds, as observed or as drawn."""
        return nan_mean(numbers, axis=-1) if self.drawn is None else self.drawn.mean(numbers)


def bootstrap_counts(number: int, draws: int, random: np.random.Generator) -> FloatArray:
    """(1 + draws, number) how often each of ``number`` items counts: once as observed, then in each sample."""
    drawn = random.multinomial(number, np.full(number, 1 / number), size=draws)
    return np.concatenate([np.ones((1, number)), drawn])


def nan_mean(values: FloatArray, axis: int) -> FloatArray:
    """The mean along an axis without NaN; NaN if all are."""
    known = np.isfinite(values)
    count = known.sum(axis=axis)
    return np.asarray(np.where(known, values, 0.0).sum(axis=axis) / np.where(count > 0, count, np.nan))


Statistics = Callable[[SiteDice], Mapping[K, ArrayLike]]  # each (..., s), one number per slot


@dataclass(frozen=True)
class Resampling:
    """Settings of the draws.

    Raises:
        BadInput: a field is out of range.
    """

    draws: int = DRAWS
    seed: int = 0  # of the draws; the same seed gives the same intervals
    level: float = LEVEL  # of the intervals, 0 to 1

    def __post_init__(self) -> None:
        if self.draws < 1 or self.seed < 0 or not 0 < self.level < 1:
            raise BadInput(
                f"draws {self.draws}, seed {self.seed}, level {self.level}: expected draws >= 1, seed >= 0, "
                "0 < level < 1"
            )


DEFAULT_RESAMPLING = Resampling()


def bootstrap(
    cases: pd.Series,
    statistics: Statistics[K],
    resampling: Resampling = DEFAULT_RESAMPLING,
    bounds: Callable[[K], tuple[float, float]] = lambda _: (-np.inf, np.inf),
) -> dict[K, dict[str, float]]:
    """Mean and standard deviation over seeds of statistics of Dice, with percentile intervals of the mean.

    Args:
        cases: Dice of each case, a fraction, by ``(method, seed, site, case)``, as
            `fedmerit_evaluation.results.dice.Dice.cases`. A case ``<tested site>/<case>``, as in split ``union``, is
            one and the same for all sites.
        statistics: a pure function of site Dice, called with the observed Dice and with all draws at once.
        resampling: number of draws, seed and level.
        bounds: the range of a statistic, in its unit; intervals are clipped to it.

    Returns:
        For each statistic ``mean`` and ``std`` (ddof 1; NaN for one) over the ``seeds`` in which it is defined, and
        ``low``, ``high`` of the mean; these are NaN if it is undefined in more than 5 % of the draws, or
        known in one seed of several.

    Raises:
        BadInput: there is no case.
    """
    if cases.empty:
        raise BadInput("bootstrap: no test case; let the runs finish, they test after the last round")
    units = _units(cases)
    drawn = _resampled(units, resampling)
    numbers = statistics(drawn)
    return {
        key: _summary(np.asarray(value), drawn.over_seeds(np.asarray(numbers[key])), resampling.level, bounds(key))
        for key, value in statistics(_as_observed(units)).items()
    }


def observed(cases: pd.Series) -> SiteDice:
    """Observed site Dice, one slot (axis 0) per seed in order: the mean over the cases that are not NaN.

    Args:
        cases: as for `bootstrap`.
    """
    return _as_observed(_units(cases))


def tested_sites(frame: pd.DataFrame) -> pd.Series:
    """By row of columns ``site, case``, the patient's site: another one for cases ``<tested site>/<case>``."""
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
    drawn_seeds = StudentDraws.even(len(seeds), resampling.draws, random)
    drawn_cases: dict[tuple[object, ...], StudentDraws] = {}  # by the cases of a tested site in a seed
    dice = np.empty((resampling.draws, len(seeds), len(methods), len(sites)))
    for place, number in enumerate(seeds):
        of_seed = pd.DataFrame(table.xs(number, level="seed")).dropna(axis="columns", how="all")
        values, tested = of_seed.to_numpy(dtype=np.float64), of_seed.columns.get_level_values("tested").to_numpy()
        known = np.isfinite(values)
        means = np.repeat(nan_mean(values, axis=1)[:, None], resampling.draws, axis=1)
        for site in sorted(set(tested)):
            here = np.flatnonzero(tested == site)
            rows = np.flatnonzero(known[:, here].any(axis=1))
            there = tuple(of_seed.columns[here])
            if there not in drawn_cases:
                drawn_cases[there] = StudentDraws.random(len(there), resampling.draws, random)
            share = known[np.ix_(rows, here)].sum(axis=1) / known[rows].sum(axis=1)  # of a row's cases
            means[rows] += share[:, None] * drawn_cases[there].deviations(values[np.ix_(rows, here)])
        dice[:, place] = means.T.reshape(-1, len(methods), len(sites))
    slots = np.broadcast_to(np.arange(len(seeds)), dice.shape[:2])
    return SiteDice(seeds, methods, sites, slots, dice, drawn_seeds)


def _summary(observed: FloatArray, drawn: FloatArray, level: float, bounds: tuple[float, float]) -> dict[str, float]:
    """Mean, spread and interval of (s,) observed numbers and (draws,) sampled means over seeds."""
    known, means = observed[np.isfinite(observed)], drawn[np.isfinite(drawn)]
    low = high = np.nan
    if known.size >= min(2, observed.size) and means.size >= (1 - MAX_UNDEFINED) * len(drawn):
        low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2]).clip(*bounds)
    return {
        "mean": float(known.mean()) if known.size else np.nan,
        "std": float(known.std(ddof=1)) if known.size > 1 else np.nan,
        "low": float(low),
        "high": float(high),
        "seeds": known.size,
    }
