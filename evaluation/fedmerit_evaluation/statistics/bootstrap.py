"""Confidence intervals of statistics of Dice: Student's t over the patients of every site, and over seeds.

A draw moves the mean over n patients of a site by Σ zᵢ dᵢ / √(n χ²), z standard normal, χ² with n - 1 degrees of
freedom: its quantiles are Student's, so three patients are covered as well as thirty. dᵢ is the sum over a patient's
cases of their distances from the site's mean, in mean numbers of cases: several images of a patient are one patient
(linearised ratio; Cochran 1977, Sampling Techniques, chapter 6). All methods get the same z and χ² in a draw: their
differences are paired. So do all seeds: patients that all are tested on cannot be averaged out. Where patients are not
known, cases of one position are taken for one patient. Seeds are drawn likewise.

With folds, which test each patient once, z is drawn for each fold instead, the same at all sites, and no seeds are:
between folds everything differs that a hospital's number varies by, patients, training images and seeds, and means over
patients only would miss the last two. 95 % intervals are percentiles of the statistic over the draws.

Assumptions: patients of a site are exchangeable and independent, seeds independent, means of both about normal; folds
independent, although they share training patients. Limits: with one patient of a site nothing is known; noise that
differs by seed and case counts twice, so intervals of unstable training are wide; drawing adds noise, so spreads come
out larger and correlations nearer to 0.

Source: Student's t as a confidence distribution, Fisher 1935 (The fiducial argument); percentile intervals: Efron and
Tibshirani 1993, An Introduction to the Bootstrap, chapter 13. Coverage: docs/studies/statistics.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

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
class Clusters:
    """Which cases vary together: those of a patient, or of a fold."""

    of: Mapping[tuple[int, str, str], str]  # by seed, site and case; a case that is not there is a patient of its own
    folds: int = 0  # if they are folds, how many; they are the same at all sites

    def by_column(self, seed: int, columns: Sequence[Any]) -> list[str]:
        """Of cases, pairs of site and name, in a seed."""
        return [self.of.get((seed, site, case), case) for site, case in columns]


CASES = Clusters({})  # each a patient of its own


def cluster_deviations(values: FloatArray, clusters: Sequence[int], number: int) -> FloatArray:
    """(rows, number) sums over each cluster's cases of distances from the mean of (rows, n) ``values``.

    In mean numbers of cases: of clusters of one case the distances themselves. NaN: the row knows no case of it.
    """
    known = np.isfinite(values)
    member = np.eye(number)[np.asarray(clusters, dtype=np.intp)]  # (n, number)
    counts = known @ member
    sums = np.nan_to_num(values - nan_mean(values, axis=-1)[:, None]) @ member
    there = (counts > 0).sum(axis=-1, keepdims=True)
    return np.asarray(np.where(counts > 0, sums * there / np.maximum(known.sum(axis=-1, keepdims=True), 1), np.nan))


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
    clusters: Clusters = CASES,
) -> dict[K, dict[str, float]]:
    """Mean and standard deviation over seeds of statistics of Dice, with percentile intervals of the mean.

    Args:
        cases: Dice of each case, a fraction, by ``(method, seed, site, case)``, as
            `fedmerit_evaluation.results.dice.Dice.cases`. A case ``<tested site>/<case>``, as in split ``union``, is
            one and the same for all sites.
        statistics: a pure function of site Dice, called with the observed Dice and with all draws at once.
        resampling: number of draws, seed and level.
        bounds: the range of a statistic, in its unit; intervals are clipped to it.
        clusters: of the cases.

    Returns:
        For each statistic ``mean`` and ``std`` (ddof 1; NaN for one) over the ``seeds`` in which it is defined, and
        ``low``, ``high`` of the mean; NaN if the statistic is undefined in more than 5 % of the draws, or known in one
        seed of several.

    Raises:
        BadInput: there is no case.
    """
    if cases.empty:
        raise BadInput("bootstrap: no test case; let the runs finish, they test after the last round")
    units = _units(cases)
    drawn = _resampled(units, resampling, clusters)
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


def _draws(
    table: pd.DataFrame, clusters: Clusters, draws: int, random: np.random.Generator
) -> dict[str, tuple[list[str], StudentDraws]]:
    """By tested site, its clusters in all seeds, and their draws; of folds the same at all sites."""
    by_site = dict[str, list[str]]()
    for seed in _shape(table)[0]:
        columns: list[Any] = list(pd.DataFrame(table.xs(seed, level="seed")).dropna(axis="columns", how="all").columns)
        for (site, _), cluster in zip(columns, clusters.by_column(seed, columns), strict=True):
            by_site.setdefault(site, []).append(cluster)
    if clusters.folds:
        names = sorted({name for own in by_site.values() for name in own})
        return dict.fromkeys(by_site, (names, StudentDraws.even(len(names), draws, random)))
    found = {site: list(dict.fromkeys(by_site[site])) for site in sorted(by_site)}
    return {site: (names, StudentDraws.random(len(names), draws, random)) for site, names in found.items()}


def _resampled(table: pd.DataFrame, resampling: Resampling, clusters: Clusters) -> SiteDice:
    random = np.random.default_rng(resampling.seed)
    seeds, methods, sites = _shape(table)
    drawn_seeds = StudentDraws.even(len(seeds), resampling.draws, random)
    drawn_clusters = _draws(table, clusters, resampling.draws, random)
    dice = np.empty((resampling.draws, len(seeds), len(methods), len(sites)))
    for place, number in enumerate(seeds):
        of_seed = pd.DataFrame(table.xs(number, level="seed")).dropna(axis="columns", how="all")
        values, tested = of_seed.to_numpy(dtype=np.float64), of_seed.columns.get_level_values("tested").to_numpy()
        known = np.isfinite(values)
        means = np.repeat(nan_mean(values, axis=1)[:, None], resampling.draws, axis=1)
        for site in sorted(set(tested)):
            here = np.flatnonzero(tested == site)
            rows = np.flatnonzero(known[:, here].any(axis=1))
            names, drawn = drawn_clusters[site]
            own = [names.index(name) for name in clusters.by_column(number, list(of_seed.columns[here]))]
            share = known[np.ix_(rows, here)].sum(axis=1) / known[rows].sum(axis=1)  # of a row's cases
            means[rows] += share[:, None] * drawn.deviations(
                cluster_deviations(values[np.ix_(rows, here)], own, len(names))
            )
        dice[:, place] = means.T.reshape(-1, len(methods), len(sites))
    slots = np.broadcast_to(np.arange(len(seeds)), dice.shape[:2])
    return SiteDice(seeds, methods, sites, slots, dice, None if clusters.folds else drawn_seeds)


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
