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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, qmc, t

from fedmerit.errors import BadInput
from fedmerit_evaluation.statistics.inference import MARGIN, fold_overlap

FloatArray = NDArray[np.float64]

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


CASES = Clusters({})  # each a patient of its own


def bootstrap_counts(number: int, draws: int, random: np.random.Generator) -> FloatArray:
    """(1 + draws, number) how often each of ``number`` items counts: once as observed, then in each sample."""
    drawn = random.multinomial(number, np.full(number, 1 / number), size=draws)
    return np.concatenate([np.ones((1, number)), drawn])


def nan_mean(values: FloatArray, axis: int) -> FloatArray:
    """The mean along an axis without NaN; NaN if all are."""
    known = np.isfinite(values)
    count = known.sum(axis=axis)
    return np.asarray(np.where(known, values, 0.0).sum(axis=axis) / np.where(count > 0, count, np.nan))


def tested_sites(frame: pd.DataFrame) -> pd.Series:
    """By row of columns ``site, case``, the patient's site: another one for cases ``<tested site>/<case>``."""
    tested = frame["case"].str.rpartition("/")
    return tested[0].where(tested[1] != "", frame["site"])


@dataclass(frozen=True)
class CrossedEffects:
    """Mean Dice of each method, seed and site, and what each patient moves it by; fractions.

    Methods are axis 0 of both, seeds axis 1, sites axis 2.
    """

    methods: list[str]
    seeds: list[int]
    sites: list[str]
    means: FloatArray  # (m, s, n); NaN: not tested
    moves: FloatArray  # (m, s, n, p) by patient or fold: their squares sum to a mean's variance; 0: not tested
    known: NDArray[np.bool_]  # (m, s, n, p) which are tested
    tested: NDArray[np.intp]  # (p,) number of each patient's site; of folds 0
    has_folds: bool = False
    overlap: float = 1.0  # `fold_overlap` of the folds that the moves, or the seeds in their place, are of

    @classmethod
    def of(cls, cases: pd.Series, clusters: Clusters = CASES) -> "CrossedEffects":
        """Of Dice by ``(method, seed, site, case)``; a case ``<tested site>/<case>`` is the same for all sites."""
        frame = cases.rename("dice").reset_index().astype({"method": str, "site": str, "case": str})
        names = [sorted(frame[name].unique()) for name in ("method", "seed", "site")]
        frame = frame.dropna().sort_values(["method", "seed", "site", "case"])  # sums do not depend on the rows' order
        frame["tested"] = tested_sites(frame)
        frame["case"] = frame["case"].str.rpartition("/")[2]
        frame["case"] = [
            clusters.of.get((seed, site, case), case)
            for seed, site, case in zip(frame["seed"], frame["tested"], frame["case"], strict=True)
        ]
        frame["tested"] = "" if clusters.folds else frame["tested"]
        rows = [
            pd.Index(of).get_indexer(frame[name]) for of, name in zip(names, ("method", "seed", "site"), strict=True)
        ]
        patient, patients = pd.factorize(frame["tested"] + "/" + frame["case"], sort=True)
        shape = tuple(map(len, names))
        groups = frame.groupby(["method", "seed", "site", "tested"])
        number = groups["case"].transform("nunique")
        whole = frame.groupby(["method", "seed", "site"])["dice"]
        means = np.full(shape, np.nan)
        means[tuple(rows)] = whole.transform("mean")
        moves = np.zeros((*shape, len(patients)))
        known = np.zeros(moves.shape, dtype=np.bool_)
        unbiased = np.sqrt(number / (number - 1).clip(lower=1))
        of_case = (frame["dice"] - groups["dice"].transform("mean")) * unbiased / whole.transform("size")
        np.add.at(moves, (*rows, patient), of_case)
        known[(*rows, patient)] = True
        tested = np.zeros(len(patients), dtype=np.intp)
        tested[patient] = pd.factorize(frame["tested"], sort=True)[0]
        methods, seeds, sites = names
        overlap = fold_overlap(clusters.folds)
        return cls(methods, list(map(int, seeds)), sites, means, moves, known, tested, bool(clusters.folds), overlap)

    def interval(
        self,
        method: str,
        other: str | None = None,
        site: str | None = None,
        bounds: tuple[float, float] = (-np.inf, np.inf),
    ) -> dict[str, float]:
        """The mean Dice of a method, or its difference from another's, at a site or over all that have it.

        Args:
            method: one of ``methods``.
            other: another, of which the Dice is subtracted.
            site: one of ``sites``; None: the mean over those that have the Dice in a seed.
            bounds: the range of the statistic; the interval is clipped to it.

        Returns:
            ``mean`` and ``std`` (ddof 1) over the ``seeds`` that have it, ``low`` and ``high`` of the mean, and the
            two-sided ``p`` of its being 0, and ``p_equivalent``, twice the larger one of the one-sided tests of its
            being at or beyond ±`MARGIN` (Schuirmann 1987). NaN if unknown, all but ``mean`` and ``seeds``
            also if one seed of several has it.
        """
        one = self.methods.index(method)
        chosen = np.arange(len(self.sites)) if site is None else np.array([self.sites.index(site)])
        dice, moves = self.means[one][:, chosen], self.moves[one][:, chosen]
        if other is not None:
            two = self.methods.index(other)
            dice, moves = dice - self.means[two][:, chosen], moves - self.moves[two][:, chosen]
        has = np.isfinite(dice)
        seeds = np.flatnonzero(has.any(axis=1))
        share = (has / np.maximum(has.sum(axis=1, keepdims=True), 1))[seeds]  # (s, n) of a site in the mean
        parts = share * np.nan_to_num(dice[seeds])  # (s, n)
        numbers = parts.sum(axis=1)
        found = {
            "mean": float(nan_mean(numbers, axis=0)) if len(seeds) else np.nan,
            "std": float(numbers.std(ddof=1)) if len(seeds) > 1 else np.nan,
            "low": np.nan,
            "high": np.nan,
            "seeds": len(seeds),
            "p": np.nan,
            "p_equivalent": np.nan,
        }
        if len(seeds) >= min(2, self.means.shape[1]) > 0:
            moved = np.einsum("sn,snp->sp", share, moves[seeds]) / len(seeds)
            of_ends, of_tests = self._variances(parts, moved)
            reach, distance = max(one.reach() for one in of_ends), abs(found["mean"])
            low, high = np.clip([found["mean"] - reach, found["mean"] + reach], *bounds)
            p, p_margin = (
                max(one.p(abs(far) / self.overlap) for one in of_tests) for far in (distance, MARGIN - distance)
            )
            found |= {"low": float(low), "high": float(high), "p": p}
            found["p_equivalent"] = p_margin if distance < MARGIN else 1.0
        return found

    def _variances(self, parts: FloatArray, moved: FloatArray) -> tuple[list["Variance"], list["Variance"]]:
        """Of which the interval is the widest, and the p-value the largest: by (s, n) sites and (s, p) patients."""
        s = len(parts)
        tests = moved != 0
        patients = Variance.sum(
            [
                Variance(float((moved[:, own].sum(axis=0) ** 2).sum()), _freedom(tests[:, own]))
                for own in (self.tested == place for place in np.unique(self.tested))
            ]
        )
        if s == 1 or self.has_folds:
            return [patients], [patients]
        seeds = Variance(float(parts.sum(axis=1).var(ddof=1)) / s, s - 1)
        by_site = Variance.sum([Variance(float(own.var(ddof=1)) / s, s - 1) for own in parts.T])
        seeds = max(seeds, by_site, key=lambda variance: variance.value)
        both = s / (s - 1) * float(((moved - moved.mean(axis=0)) ** 2).sum())
        total = Variance.sum([seeds, patients])
        least = max(seeds.value, patients.value)
        total = Variance(max(total.value - both, least), total.freedom)
        of_seeds = Variance(max(seeds.value - both, 0.0), seeds.freedom)
        return [total, of_seeds], [total, seeds, patients]


@dataclass(frozen=True)
class Variance:
    """An estimated variance of a mean, and its degrees of freedom."""

    value: float
    freedom: float

    @classmethod
    def sum(cls, parts: list["Variance"]) -> "Variance":
        """Of independent parts, by Satterthwaite 1946."""
        value = sum(part.value for part in parts)
        squares = sum(part.value**2 / part.freedom for part in parts if part.value)
        return cls(value, value**2 / squares if squares else 1.0)

    def reach(self) -> float:
        """Half the width of the interval."""
        return float(t.ppf((1 + LEVEL) / 2, self.freedom) * np.sqrt(self.value))

    def p(self, mean: float) -> float:
        """Two-sided p-value of the hypothesis that the mean is 0."""
        if not self.value:
            return float(mean == 0)
        return float(2 * t.sf(mean / np.sqrt(self.value), self.freedom))


def _freedom(tests: NDArray[np.bool_]) -> float:
    """Of the mean over patients: by (s, p) which each seed tests; one less for each seed if none is tested twice."""
    by_seed = tests.sum(axis=1)
    number = by_seed.sum() / max(np.count_nonzero(by_seed), 1)
    return float(max(tests.any(axis=0).sum() * (number - 1) / max(number, 1), 1))


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
            `fedmerit_evaluation.results.views.Dice.cases`. A case ``<tested site>/<case>``, as in split ``union``, is
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


def mean_error_covariance(effects: CrossedEffects, one: str, other: str) -> float:
    """Covariance of the errors of two methods' Dice, mean over sites [squared fractions].

    NaN if a site has no common seed, or fewer than two common patients (or folds).

    Args:
        effects: of both methods at least.
        one: method.
        other: method; the same: the variance.
    """
    pair = [effects.methods.index(method) for method in (one, other)]
    found = []
    for site in range(len(effects.sites)):
        means, moves = effects.means[pair, :, site], effects.moves[pair, :, site]
        seeds = np.isfinite(means).all(axis=0)
        tested = effects.known[pair, :, site][:, seeds].any(axis=1)  # (2, p)
        if tested.all(axis=0).sum() < 2:
            return np.nan
        found.append(_error_covariance(means[:, seeds], moves[:, seeds], has_folds=effects.has_folds))
    return float(np.mean(found))


def _error_covariance(means: FloatArray, moves: FloatArray, *, has_folds: bool) -> float:
    """Of two means over s seeds, (2, s), which each of p patients moves, (2, s, p), as `CrossedEffects`.

    By moments of crossed random effects (Searle et al. 1992, chapter 4), which of one seed, or over folds, are those
    of patients or folds.
    """
    s = means.shape[1]
    patients = float(moves.mean(axis=1).prod(axis=0).sum())
    if s == 1 or has_folds:
        return patients
    seeds = float(np.cov(means)[0, 1]) / s
    both = float((moves - moves.mean(axis=1, keepdims=True)).prod(axis=0).sum()) / (s * (s - 1))
    return float(seeds + patients - both)


def corrected_std(numbers: FloatArray, error: float) -> FloatArray:
    """(...) standard deviation (ddof 1) over sites of true numbers, by (..., n) estimates with that error variance."""
    return np.asarray(np.sqrt(np.maximum(numbers.var(axis=-1, ddof=1) - error, 0.0)))


def corrected_correlation(x: FloatArray, y: FloatArray, errors: Iterable[float]) -> FloatArray:
    """(...) Pearson's correlation over sites of true numbers, -1 to 1; NaN if the errors leave no variance.

    Args:
        x: (..., n) estimates.
        y: (..., n) likewise.
        errors: mean error variance of x, of y, and their covariance.
    """
    of_x, of_y, of_both = errors
    n = x.shape[-1]
    a, b = (one - one.mean(axis=-1, keepdims=True) for one in (x, y))
    variances = ((a * a).sum(axis=-1) / (n - 1) - of_x) * ((b * b).sum(axis=-1) / (n - 1) - of_y)
    positive = ((a * a).sum(axis=-1) / (n - 1) > of_x) & (variances > 0)
    ratio = ((a * b).sum(axis=-1) / (n - 1) - of_both) / np.sqrt(np.where(positive, variances, np.nan))
    return np.asarray(ratio.clip(-1, 1))
