"""Confidence intervals by a stratified bootstrap over cases and Student's t over seeds.

A bootstrap sample takes as many test cases of each site as it has, with replacement, corrected for small samples
(`correct_small_sample`). All methods get the same cases in a sample: their differences are paired. So do all seeds that
have the same cases: patients that all seeds are tested on cannot be averaged out. If seeds change the split, equal
numbers are taken for equal patients, and the intervals come out wider than necessary. Seeds vary by `SeedDraws`.

Assumptions: cases of a site are exchangeable, seeds are independent and their numbers about normal. Limits: a site with
one test case cannot be resampled, so intervals are too short; and resampling adds noise, so spreads come out larger and
correlations nearer to 0 than observed, which may then lie at the end of its interval. Few cases increase both effects.

Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapters 13 (percentile intervals) and 5.
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

DRAWS = 2000  # bootstrap samples
LEVEL = 0.95
MAX_UNDEFINED = 0.05  # of the samples; if more are undefined there is no interval


@dataclass(frozen=True)
class SeedDraws:
    """D samples of the mean over s other seeds: Student's t distribution around the observed mean.

    Seeds resampled with replacement would give two seeds three means and three seeds ten: such percentile intervals
    cover the true mean in half and in three quarters of all cases. A sample of Student's t with s - 1 degrees of
    freedom, times the standard error, gives Student's interval if only seeds vary. All statistics use the same
    samples. Points are Halton's, which fill the tails more evenly than random ones.
    """

    normal: FloatArray  # (D, s)
    squares: FloatArray  # (D, s) χ² of 1 to s degrees of freedom

    @classmethod
    def of(cls, seeds: int, draws: int, random: np.random.Generator) -> "SeedDraws":
        """D ``draws`` of that many seeds."""
        normal = norm.ppf(qmc.Halton(2 * seeds, rng=random).random(draws))
        return cls(normal[:, :seeds], np.cumsum(normal[:, seeds:] ** 2, axis=1))

    def mean(self, numbers: FloatArray) -> FloatArray:
        """(D,) means of (D, s) numbers of the seeds, NaN: none; with one seed its number."""
        middle, count = nan_mean(numbers, axis=-1), np.isfinite(numbers).sum(axis=-1)
        deviations = np.nan_to_num(numbers - middle[:, None])  # times normals: variance (s - 1) sd²
        square = np.take_along_axis(self.squares, np.maximum(count - 2, 0)[:, None], axis=-1)[:, 0]
        return np.asarray(middle + (self.normal * deviations).sum(axis=-1) / np.sqrt(np.maximum(count, 1) * square))


@dataclass(frozen=True)
class SiteDice:
    """Dice of each method on each site in s slots, one per seed: as observed, or in D bootstrap samples (D, s).

    ``seeds[seed[..., k]]`` is the seed of slot k; ``dice`` holds fractions, NaN: no such run.
    """

    seeds: list[int]
    methods: list[str]
    sites: list[str]
    seed: NDArray[np.intp]  # (..., s) places in `seeds`
    dice: FloatArray  # (..., s, methods, n)
    drawn: SeedDraws | None = None  # of the same D samples; None: as observed

    def of(self, method: str) -> FloatArray:
        """(..., s, n) of one method."""
        return np.asarray(self.dice[..., self.methods.index(method), :])

    def over_seeds(self, numbers: FloatArray) -> FloatArray:
        """(...) the mean of (..., s) known numbers of the seeds, as observed or as sampled."""
        return nan_mean(numbers, axis=-1) if self.drawn is None else self.drawn.mean(numbers)


def bootstrap_counts(number: int, draws: int, random: np.random.Generator) -> FloatArray:
    """(1 + draws, number) how often each of ``number`` items counts: once as observed, then in each sample."""
    drawn = random.multinomial(number, np.full(number, 1 / number), size=draws)
    return np.concatenate([np.ones((1, number)), drawn])


def correct_small_sample(means: FloatArray, number: int) -> FloatArray:
    """Bootstrap means (..., 1 + D) of ``number`` items, the first as observed, with the variance of new samples.

    The mean of n items drawn with replacement has the variance σ²(n - 1)/n², that of n new items σ²/n: for n = 2, twice
    as much. So the deviation from the observed mean is multiplied by √(n/(n - 1)). One item cannot be resampled.
    """
    factor = np.sqrt(number / (number - 1)) if number > 1 else 1.0
    return np.asarray(means[..., :1] + (means - means[..., :1]) * factor)


def nan_mean(values: FloatArray, axis: int) -> FloatArray:
    """The mean along an axis without NaN; NaN if all are."""
    known = np.isfinite(values)
    count = known.sum(axis=axis)
    return np.asarray(np.where(known, values, 0.0).sum(axis=axis) / np.where(count > 0, count, np.nan))


Statistics = Callable[[SiteDice], Mapping[K, ArrayLike]]  # each (..., s), one number per slot


@dataclass(frozen=True)
class Resampling:
    """Settings of the bootstrap.

    Raises:
        BadInput: a field is out of range.
    """

    draws: int = DRAWS  # bootstrap samples
    seed: int = 0  # of the samples; the same seed gives the same intervals
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
        statistics: a pure function of site Dice, called with the observed Dice and with all samples at once.
        resampling: number of samples, seed and level.
        bounds: the range of a statistic, in its unit; intervals are clipped to it.

    Returns:
        For each statistic ``mean`` and ``std`` (ddof 1; NaN for one) over the ``seeds`` in which it is defined, and
        ``low``, ``high`` of the mean; these are NaN if it is undefined in more than 5 % of the samples, or
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
    drawn_seeds = SeedDraws.of(len(seeds), resampling.draws, random)
    counted: dict[tuple[object, ...], FloatArray] = {}  # by the cases of a seed
    dice = np.empty((resampling.draws, len(seeds), len(methods), len(sites)))
    for place, number in enumerate(seeds):
        of_seed = pd.DataFrame(table.xs(number, level="seed")).dropna(axis="columns", how="all")
        there, values = tuple(of_seed.columns), of_seed.to_numpy(dtype=np.float64)
        if there not in counted:
            counted[there] = _counts(of_seed.columns.get_level_values("tested"), resampling.draws, random)
        counts, known = counted[there], np.isfinite(values)
        drawn = counts @ known.T.astype(np.float64)  # not above 0 if no known case was drawn
        sums = counts @ np.where(known, values, 0.0).T
        dice[:, place] = (sums / np.where(drawn > 0, drawn, np.nan)).reshape(-1, len(methods), len(sites))
    given = table.to_numpy(dtype=np.float64)
    low, high = np.nanmin(given, initial=0.0), np.nanmax(given, initial=1.0)  # the correction keeps Dice in its range
    slots = np.broadcast_to(np.arange(len(seeds)), dice.shape[:2])
    return SiteDice(seeds, methods, sites, slots, dice.clip(low, high), drawn_seeds)


def _counts(tested: pd.Index, draws: int, random: np.random.Generator) -> FloatArray:
    """(draws, cases) how often each case counts, corrected: as many are drawn within each tested site as it has."""
    counts = np.ones((1 + draws, len(tested)))
    for site in sorted(set(tested)):
        columns = np.flatnonzero(tested == site)
        counts[:, columns] = correct_small_sample(bootstrap_counts(len(columns), draws, random).T, len(columns)).T
    return counts[1:]


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
