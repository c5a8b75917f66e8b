"""What other patients, folds and seeds would have given: confidence intervals of Dice, and draws of it.

One model of chance serves all statistics. A `CrossedEffects` holds the mean Dice of every model, seed and site, and by
how much each patient moves it: patients of a site and seeds are crossed random effects. All images of a patient move
together (linearised ratio; Cochran 1977, Sampling Techniques, chapter 6); where patients are not recorded, each case
counts as a patient. With folds, which test each patient once, the folds take the place of the patients, the same at
all sites, and seeds are not drawn: between folds everything differs that a hospital's number varies by, patients,
training images and seeds.

- Means and their differences: `CrossedEffects.interval`, by moments (Searle, Casella and McCulloch 1992, Variance
  Components, chapter 4) with Satterthwaite's degrees of freedom (1946).
- Other statistics, such as ranks, correlations and the values of coalitions' games: percentiles of the statistic over
  draws of all means at once (Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13). A draw moves a
  mean over n patients by Σ zᵢ mᵢ √((n - 1) / χ²), zᵢ standard normal and χ² with n - 1 degrees of freedom: its
  quantiles are Student's t (as a confidence distribution, Fisher 1935), so three patients are covered as well as
  thirty. All models get the same z and χ² in a draw, so their differences are paired. Seeds are drawn in the same way.

Assumptions: the patients of a site are exchangeable and independent, seeds independent, means about normal. Folds share
training patients, for which their standard errors are larger by `fold_overlap`, in intervals, draws and tests alike.
Not covered: what another seed would give, if there is one; a skewed distribution of few patients, such as one of which
few fail. Draws add noise: spreads come out larger, and correlations nearer to 0. Noise that differs by seed and case
counts twice in draws. Coverage: docs/studies/statistics.md.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, qmc, t

from fedmerit.errors import BadInput
from fedmerit.seeds import random_seed
from fedmerit_evaluation.statistics.inference import MIN_CASES, fold_overlap

FloatArray = NDArray[np.float64]
K = TypeVar("K")

DRAWS = 2000
LEVEL = 0.95
ENDS = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]  # quantiles of a confidence interval
MAX_UNDEFINED = 0.05  # share of the draws; if more are undefined there is no interval
UNBOUNDED = (-np.inf, np.inf)


def nan_mean(values: FloatArray, axis: int) -> FloatArray:
    """Return the mean along an axis of the entries that are not NaN; NaN if all are."""
    finite = np.isfinite(values)
    count = finite.sum(axis=axis)
    return np.asarray(np.where(finite, values, 0.0).sum(axis=axis) / np.where(count > 0, count, np.nan))


def bootstrap_counts(number: int, draws: int, random: np.random.Generator) -> FloatArray:
    """Return (1 + draws, number) how often each of ``number`` items counts: once as observed, then in each sample."""
    drawn = random.multinomial(number, np.full(number, 1 / number), size=draws)
    return np.concatenate([np.ones((1, number)), drawn])


@dataclass(frozen=True)
class StudentDraws:
    """A number of draws, D, of the mean of other items, such as seeds or patients, around the mean of n known ones.

    Resampled with replacement, two items would give three means and three ten: such percentile intervals cover the true
    mean in half and in three quarters of all cases. All statistics use the same draws.
    """

    normal: FloatArray  # (D, n)
    squares: FloatArray  # (D, n) χ² with 1 to n degrees of freedom

    @classmethod
    def random(cls, items: int, draws: int, random: np.random.Generator) -> "StudentDraws":
        """Return D ``draws`` for n ``items``."""
        normal, squared = random.standard_normal((2, draws, items))
        return cls(normal, np.cumsum(squared**2, axis=1))

    @classmethod
    def even(cls, items: int, draws: int, random: np.random.Generator) -> "StudentDraws":
        """Return D ``draws`` by Halton's points, which fill the tails more evenly; for few items."""
        normal = norm.ppf(qmc.Halton(2 * items, rng=random).random(draws))
        return cls(normal[:, :items], np.cumsum(normal[:, items:] ** 2, axis=1))

    def mean(self, numbers: FloatArray) -> FloatArray:
        """Return (D,) means of (D, n) numbers, which differ by draw; NaN: unknown. A single number is its own mean."""
        middle, count = nan_mean(numbers, axis=-1), np.isfinite(numbers).sum(axis=-1)
        deviations = np.nan_to_num(numbers - middle[:, None])  # times normals: variance (n - 1) sd²
        square = np.take_along_axis(self.squares, np.maximum(count - 2, 0)[:, None], axis=-1)[:, 0]
        return np.asarray(middle + (self.normal * deviations).sum(axis=-1) / np.sqrt(np.maximum(count, 1) * square))


@dataclass(frozen=True)
class Clusters:
    """The cases that vary together: those of a patient, or of a fold."""

    by_case: Mapping[tuple[int, str, str], str]  # by seed, site and case; a case that is missing is a patient itself
    folds: int = 0  # if they are folds, the number of them; they are the same at all sites


CASES = Clusters({})  # each a patient itself


@dataclass(frozen=True)
class Variance:
    """An estimated variance of a mean, and its degrees of freedom."""

    value: float
    freedom: float

    @classmethod
    def sum(cls, parts: list["Variance"]) -> "Variance":
        """Return the variance of a sum of independent parts, by Satterthwaite 1946."""
        value = sum(part.value for part in parts)
        squares = sum(part.value**2 / part.freedom for part in parts if part.value)
        return cls(value, value**2 / squares if squares else 1.0)

    def reach(self) -> float:
        """Return half the width of the confidence interval."""
        return float(t.ppf(ENDS[1], self.freedom) * np.sqrt(self.value))

    def p(self, mean: float) -> float:
        """Return the two-sided p-value of the hypothesis that the mean is 0."""
        if not self.value:
            return float(mean == 0)
        return float(2 * t.sf(mean / np.sqrt(self.value), self.freedom))


@dataclass(frozen=True)
class CrossedEffects:
    """The mean Dice [fraction] of m models in s seeds at n sites, and what each of p patients, or folds, moves it by.

    A model is a method, or a coalition whose model was tested. A patient whom several seeds test is one patient.
    """

    methods: list[str]
    seeds: list[int]
    sites: list[str]
    means: FloatArray  # (m, s, n); NaN: not tested
    moves: FloatArray  # (m, s, n, p): their squares sum to a mean's variance; 0: not tested
    is_tested: NDArray[np.bool_]  # (m, s, n, p)
    place: NDArray[np.intp]  # (p,) the number of the site whose patient it is; 0 for folds
    has_folds: bool = False  # whose `fold_overlap` is in the moves
    overlap: float = 1.0  # `fold_overlap` if the seeds are folds

    @classmethod
    def from_cases(cls, cases: pd.Series, clusters: Clusters = CASES) -> "CrossedEffects":
        """Estimate the effects.

        Args:
            cases: Dice by ``(method, seed, site, case)``; a case ``<tested site>/<case>`` is the same for all sites.
            clusters: the patients or folds of the cases.

        Raises:
            BadInput: there is no case.
        """
        if cases.empty:
            raise BadInput("no test case; let the runs finish, they test after the last round")
        frame = cases.rename("dice").reset_index().astype({"method": str, "site": str, "case": str})
        methods, seeds, sites = (sorted(frame[name].unique()) for name in ("method", "seed", "site"))
        frame = frame.dropna()
        parts = frame["case"].str.rpartition("/")
        places = pd.Index([*sites, *sorted({*parts[0]} - {"", *sites})])
        tested = places.get_indexer(parts[0].where(parts[1] != "", frame["site"]))
        labels, label = np.unique(parts[2].to_numpy(dtype=str), return_inverse=True)
        method, seed, site = (
            pd.Index(names).get_indexer(frame[name])
            for name, names in (("method", methods), ("seed", seeds), ("site", sites))
        )
        order = np.lexsort((label, tested, site, seed, method))  # sums do not depend on the rows' order
        method, seed, site, tested, label = (codes[order] for codes in (method, seed, site, tested, label))
        dice = frame["dice"].to_numpy(dtype=np.float64)[order]

        shape = (len(seeds), len(places), len(labels))  # of different cases, which all models are tested on
        keys, case = np.unique(np.ravel_multi_index((seed, tested, label), shape), return_inverse=True)
        named = [(seeds[s], places[p], labels[c]) for s, p, c in zip(*np.unravel_index(keys, shape), strict=True)]
        names, cluster = np.unique([clusters.by_case.get(key, key[-1]) for key in named], return_inverse=True)
        at = np.zeros(len(keys), dtype=np.intp) if clusters.folds else np.unravel_index(keys, shape)[1]
        patients, patient = np.unique(at * len(names) + cluster, return_inverse=True)
        patient, place = patient[case], patients // len(names)

        by_site, p, groups = (len(methods), len(seeds), len(sites)), len(patients), len(places)
        cell, cells = np.ravel_multi_index((method, seed, site), by_site), math.prod(by_site)
        number = np.bincount(cell, minlength=cells)
        means = np.bincount(cell, dice, minlength=cells) / np.where(number > 0, number, np.nan)
        is_tested = np.bincount(cell * p + patient, minlength=cells * p).reshape(cells, p) > 0
        group = cell * groups + place[patient]  # the cases of a model at a place
        tested_cell, tested_patient = np.nonzero(is_tested)
        count = np.bincount(tested_cell * groups + place[tested_patient], minlength=cells * groups)[group]
        distance = dice - (np.bincount(group, dice) / np.maximum(np.bincount(group), 1))[group]
        move = fold_overlap(clusters.folds) * distance * np.sqrt(count / np.maximum(count - 1, 1)) / number[cell]
        moves = np.bincount(cell * p + patient, move, minlength=cells * p)
        return cls(
            methods=methods,
            seeds=[*map(int, seeds)],
            sites=sites,
            means=means.reshape(by_site),
            moves=np.asarray(moves, dtype=np.float64).reshape(*by_site, p),
            is_tested=is_tested.reshape(*by_site, p),
            place=place,
            has_folds=bool(clusters.folds),
        )

    def at_seed(self, number: int) -> "CrossedEffects":
        """Return the effects in the seed of that number, from 0."""
        only = slice(number, number + 1)
        parts = {name: getattr(self, name)[:, only] for name in ("means", "moves", "is_tested")}
        return replace(self, seeds=self.seeds[only], **parts)

    def interval(
        self, method: str, other: str | None = None, site: str | None = None, bounds: tuple[float, float] = UNBOUNDED
    ) -> dict[str, float]:
        """Return the mean Dice of a method, or its difference from another's, at a site or over all that have it.

        The variance is V = V_seeds + V_patients - V_both: what differs by seed and patient is in both of the first.
        V_seeds of two or three seeds is often too small by chance. It is therefore at least the sum of the sites'
        variances over seeds, which has more degrees of freedom, and the interval at least Student's over seeds only.
        The p-value is the largest of those by V, by seeds and by patients only: corrected for many comparisons, it has
        to hold far in the tail, where Satterthwaite's is too small. So an interval can exclude 0 without significance.

        Args:
            method: one of ``methods``.
            other: another, of which the Dice is subtracted.
            site: one of ``sites``; None: the mean over those that have the Dice in a seed.
            bounds: the range of the statistic; the interval is clipped to it.

        Returns:
            ``mean`` and ``std`` (ddof 1) over the ``seeds`` that have it, ``low`` and ``high`` of the mean, and the
            two-sided ``p`` of its being 0, with the standard ``error`` and the degrees of ``freedom`` of the test that
            needs the largest mean at 5 %. NaN if unknown, all but ``mean`` and ``seeds`` also if one seed of several
            has it.
        """
        at_sites = np.arange(len(self.sites)) if site is None else np.array([self.sites.index(site)])
        row = self.methods.index(method)
        dice, moves = self.means[row][:, at_sites], self.moves[row][:, at_sites]
        if other is not None:
            row = self.methods.index(other)
            dice, moves = dice - self.means[row][:, at_sites], moves - self.moves[row][:, at_sites]
        has_dice = np.isfinite(dice)
        seeds = np.flatnonzero(has_dice.any(axis=1))
        share = (has_dice / np.maximum(has_dice.sum(axis=1, keepdims=True), 1))[seeds]  # (s, n) of a site in the mean
        parts = share * np.nan_to_num(dice[seeds])  # (s, n)
        numbers = parts.sum(axis=1)
        unknown = dict.fromkeys(("low", "high", "p", "error", "freedom"), np.nan)
        outcome = {**_mean_and_std(numbers), **unknown, "seeds": len(seeds)}
        if len(seeds) >= min(2, self.means.shape[1]) > 0:
            moved = np.einsum("sn,snp->sp", share, moves[seeds]) / len(seeds)
            of_ends, of_tests = self._variances(parts, moved)
            reach = self.overlap * max(part.reach() for part in of_ends)
            low, high = np.clip([outcome["mean"] - reach, outcome["mean"] + reach], *bounds)
            p = max(part.p(abs(outcome["mean"]) / self.overlap) for part in of_tests)
            widest = max(of_tests, key=Variance.reach)
            outcome |= {"low": float(low), "high": float(high), "p": p}
            outcome |= {"error": self.overlap * math.sqrt(widest.value), "freedom": widest.freedom}
        return outcome

    def _variances(self, parts: FloatArray, moved: FloatArray) -> tuple[list[Variance], list[Variance]]:
        """Return the variances whose widest interval and whose largest p-value count.

        Args:
            parts: (s, n) what each site adds to the mean of a seed.
            moved: (s, p) what each patient moves the mean over seeds by.
        """
        s = len(parts)
        has_moved = moved != 0
        places = (self.place == place for place in np.unique(self.place))
        patients = Variance.sum(
            [Variance(float((moved[:, at].sum(axis=0) ** 2).sum()), _freedom(has_moved[:, at])) for at in places]
        )
        if s == 1 or self.has_folds:
            return [patients], [patients]
        seeds = Variance(float(parts.sum(axis=1).var(ddof=1)) / s, s - 1)
        by_site = Variance.sum([Variance(float(part.var(ddof=1)) / s, s - 1) for part in parts.T])
        seeds = max(seeds, by_site, key=lambda variance: variance.value)
        both = s / (s - 1) * float(((moved - moved.mean(axis=0)) ** 2).sum())
        total = Variance.sum([seeds, patients])
        least = max(seeds.value, patients.value)
        total = Variance(max(total.value - both, least), total.freedom)
        of_seeds = Variance(max(seeds.value - both, 0.0), seeds.freedom)
        return [total, of_seeds], [total, seeds, patients]

    def error_covariance(self, method: str, other: str) -> float:
        """Return the covariance of the errors of two methods' Dice, mean over sites [squared fraction].

        NaN if a site has no common seed, or fewer than two common patients (or folds). With ``other`` the same method
        it is the variance. By the same moments as `interval`, but without `fold_overlap`, which makes standard errors
        safe and would make this estimate too large on average.
        """
        overlap = fold_overlap(self.moves.shape[-1]) if self.has_folds else 1.0
        pair = [self.methods.index(name) for name in (method, other)]
        covariances = []
        for site in range(len(self.sites)):
            seeds = np.isfinite(self.means[pair, :, site]).all(axis=0)
            means, moves = self.means[pair, :, site][:, seeds], self.moves[pair, :, site][:, seeds] / overlap
            if self.is_tested[pair, :, site][:, seeds].any(axis=1).all(axis=0).sum() < 2:
                return np.nan
            s = means.shape[1]
            covariance = float(moves.mean(axis=1).prod(axis=0).sum())
            if s > 1 and not self.has_folds:
                both = float((moves - moves.mean(axis=1, keepdims=True)).prod(axis=0).sum()) / (s * (s - 1))
                covariance += float(np.cov(means)[0, 1]) / s - both
            covariances.append(covariance)
        return float(np.mean(covariances))

    def draw(self, draws_at: Callable[[int, int], StudentDraws]) -> FloatArray:
        """Return (D, m, s, n) drawn site means; a site with a single patient keeps its mean.

        Args:
            draws_at: called with the number of a place (the only one for folds) and of its patients; returns D draws.
        """
        at_place = {int(place): self.place == place for place in np.unique(self.place)}
        drawn = {place: draws_at(place, int(at.sum())) for place, at in at_place.items()}
        dice = np.repeat(self.means[None], len(next(iter(drawn.values())).normal) if drawn else 0, axis=0)
        for place, at in at_place.items():
            sites = np.flatnonzero(self.is_tested[..., at].any(axis=(0, 1, 3)))  # all, if cases are of the union
            freedom = np.maximum(self.is_tested[:, :, sites][..., at].sum(axis=-1) - 1, 1)  # (m, s, sites)
            moved = np.tensordot(drawn[place].normal, self.moves[:, :, sites][..., at], axes=(1, 3))
            dice[..., sites] += moved * np.sqrt(freedom / drawn[place].squares[:, freedom - 1])
        return dice

    def resample(self, draws: int, label: str) -> FloatArray:
        """Return (1 + D, m, s, n) site means, as observed and in D ``draws`` of patients or folds.

        The same label gives a site with as many patients the same draws. If a site has only one patient, every draw is
        NaN, since its variation is unknown.
        """

        def draws_at(place: int, patients: int) -> StudentDraws:
            name = "" if self.has_folds else self.sites[place]
            return StudentDraws.random(patients, draws, np.random.default_rng(random_seed(label, name)))

        drawn = self.draw(draws_at) if draws else np.empty((0, *self.means.shape))
        if (self._patients_of_sites == 1).any():
            drawn = np.full_like(drawn, np.nan)
        return np.concatenate([self.means[None], drawn])

    def move_each(self) -> FloatArray:
        """Return (1 + p, m, s, n) site means as observed, and with one patient or fold moved by its standard error.

        The squares of the moves add up to the squared standard error of a site's mean, as of the jackknife (Efron and
        Tibshirani 1993, chapter 11). A site with a single patient has none: NaN.
        """
        is_single = self.is_tested.sum(axis=-1, keepdims=True) == 1
        is_own = self.has_folds | (self.place == np.arange(len(self.sites))[:, None])  # (n, p)
        moves = np.where(is_single & is_own, np.nan, self.moves)
        return np.concatenate([self.means[None], self.means[None] + np.moveaxis(moves, -1, 0)])

    @property
    def _patients_of_sites(self) -> NDArray[np.int_]:
        """(n,) numbers of patients, or folds, that any model was tested on."""
        return np.asarray(self.is_tested.any(axis=(0, 1)).sum(axis=-1))


def _mean_and_std(numbers: FloatArray) -> dict[str, float]:
    """Return the mean and the standard deviation (ddof 1) of some numbers; NaN if they are too few."""
    return {
        "mean": float(numbers.mean()) if len(numbers) else np.nan,
        "std": float(numbers.std(ddof=1)) if len(numbers) > 1 else np.nan,
    }


def _freedom(is_tested: NDArray[np.bool_]) -> float:
    """Return the degrees of freedom of a mean over patients, by (s, p) which patients each seed tests.

    They are one less for each seed if no patient is tested twice.
    """
    by_seed = is_tested.sum(axis=1)
    number = by_seed.sum() / max(np.count_nonzero(by_seed), 1)
    return float(max(is_tested.any(axis=0).sum() * (number - 1) / max(number, 1), 1))


@dataclass(frozen=True)
class SiteDice:
    """The Dice [fraction] of each method on each site in s seeds: as observed, or in D draws; NaN: no such run."""

    seeds: list[int]
    methods: list[str]
    sites: list[str]
    dice: FloatArray  # (..., s, methods, n)
    seed_draws: StudentDraws | None = None  # of the same D draws; None: as observed, or folds were drawn

    def of(self, method: str) -> FloatArray:
        """Return (..., s, n) the Dice of one method."""
        return np.asarray(self.dice[..., self.methods.index(method), :])

    def over_seeds(self, numbers: FloatArray) -> FloatArray:
        """Return (...) the means of (..., s) numbers over the seeds, as observed or as drawn; NaN are left out."""
        return nan_mean(numbers, axis=-1) if self.seed_draws is None else self.seed_draws.mean(numbers)


def observed_dice(effects: CrossedEffects) -> SiteDice:
    """Return the site Dice as observed, by seed in order."""
    return SiteDice(effects.seeds, effects.methods, effects.sites, effects.means.swapaxes(0, 1))


def bootstrap(
    effects: CrossedEffects,
    statistics: Callable[[SiteDice], Mapping[K, ArrayLike]],
    draws: int = DRAWS,
    seed: int = 0,
    bounds: Callable[[K], tuple[float, float]] = lambda _: UNBOUNDED,
) -> dict[K, dict[str, float]]:
    """Return the mean and standard deviation over seeds of statistics of Dice, with percentile intervals of the mean.

    Args:
        effects: the Dice of the methods.
        statistics: a pure function of site Dice, called with the observed Dice and with all draws at once; each
            statistic is (..., s), one number a seed.
        draws: D.
        seed: that the draws start from.
        bounds: the range of a statistic, in its unit; intervals are clipped to it.

    Returns:
        For each statistic ``mean`` and ``std`` (ddof 1; NaN for one) over the ``seeds`` in which it is defined, and
        ``low``, ``high`` of the mean; NaN if the statistic is undefined in more than 5 % of the draws, or known in one
        seed of several.
    """
    random = np.random.default_rng(seed)
    seed_draws = StudentDraws.even(len(effects.seeds), draws, random)
    kind = StudentDraws.even if effects.has_folds else StudentDraws.random
    dice = effects.draw(lambda _, patients: kind(patients, draws, random)).swapaxes(1, 2)
    observed = observed_dice(effects)
    drawn = replace(observed, dice=dice, seed_draws=None if effects.has_folds else seed_draws)
    numbers = statistics(drawn)
    return {
        key: _summarise(np.asarray(value), drawn.over_seeds(np.asarray(numbers[key])), bounds(key))
        for key, value in statistics(observed).items()
    }


def _summarise(observed: FloatArray, drawn: FloatArray, bounds: tuple[float, float]) -> dict[str, float]:
    """Return mean, spread and interval of (s,) observed numbers and (D,) drawn means over seeds."""
    numbers, means = observed[np.isfinite(observed)], drawn[np.isfinite(drawn)]
    low = high = np.nan
    if numbers.size >= min(2, observed.size) and means.size >= (1 - MAX_UNDEFINED) * len(drawn):
        low, high = np.quantile(means, ENDS).clip(*bounds)
    return {**_mean_and_std(numbers), "low": float(low), "high": float(high), "seeds": numbers.size}


def draw_over_seeds(values: FloatArray, seed: int = 0, least: int = DRAWS, folds: int = 0) -> FloatArray:
    """Return (R, n) drawn means over seeds of (s, n, D) values, the first of the D as observed.

    R is ``least`` or D - 1, the larger. With one seed and D = 1 there is nothing to draw: each is the observed mean.
    With folds instead of seeds, draws are farther from the mean by `fold_overlap`.
    """
    s, _, count = values.shape
    number = max(least, count - 1)
    draws = np.zeros(number, dtype=int) if count == 1 else 1 + np.arange(number) % (count - 1)
    seed_draws = StudentDraws.even(s, number, np.random.default_rng(seed))
    by_site = values.T[draws].swapaxes(0, 1)  # (n, R, s)
    drawn = np.stack(
        [np.where(np.isfinite(site).all(axis=1), seed_draws.mean(site), np.nan) for site in by_site], axis=1
    )
    if s == 1 or not folds:  # of one, the D draws are over folds, and have the overlap
        return drawn
    middle = by_site.mean(axis=-1).T
    return np.asarray(middle + fold_overlap(folds) * (drawn - middle))


def error_variance(values: FloatArray, folds: int = 0) -> float:
    """Return the error variance of means over seeds of (s, n, D) values, mean over sites, centred over sites.

    It is that of seeds, or of folds in their place with `fold_overlap`, and of the draws. What all sites share, such as
    an easy sample of patients, changes no difference. Unknown draws, such as of single patients, add nothing.
    """
    centred = values - values.mean(axis=1, keepdims=True)
    s, n, _ = values.shape
    of_seeds = centred[..., 0].var(axis=0, ddof=1).mean() / s if s > 1 else 0.0
    low, high = np.quantile(centred.mean(axis=0), [0.25, 0.75], axis=-1)
    of_draws = ((high - low) ** 2).mean() / (2 * t.ppf(0.75, MIN_CASES - 1)) ** 2  # draws are Student's
    return float((of_seeds * fold_overlap(folds) ** 2 + np.nan_to_num(of_draws)) * n / (n - 1))


def corrected_std(numbers: FloatArray, error: float) -> FloatArray:
    """Return (...) the standard deviation (ddof 1) over sites of true numbers.

    Args:
        numbers: (..., n) estimates, whose errors make their spread too large.
        error: the mean error variance, as `CrossedEffects.error_covariance`.
    """
    return np.asarray(np.sqrt(np.maximum(numbers.var(axis=-1, ddof=1) - error, 0.0)))


def corrected_correlation(x: FloatArray, y: FloatArray, errors: Iterable[float]) -> FloatArray:
    """Return (...) Pearson's correlation over sites of true numbers, -1 to 1; NaN if the errors leave no variance.

    Two methods' Dice are tested on the same patients, which draws the correlation of the estimates towards that of
    their errors: a correction for attenuation (Spearman 1904) with correlated errors.

    Args:
        x: (..., n) estimates.
        y: (..., n) estimates.
        errors: the mean error variance of x, of y, and their covariance.
    """
    error_x, error_y, error_both = errors
    n = x.shape[-1]
    a, b = (vector - vector.mean(axis=-1, keepdims=True) for vector in (x, y))
    variances = ((a * a).sum(axis=-1) / (n - 1) - error_x) * ((b * b).sum(axis=-1) / (n - 1) - error_y)
    positive = ((a * a).sum(axis=-1) / (n - 1) > error_x) & (variances > 0)
    ratio: Any = ((a * b).sum(axis=-1) / (n - 1) - error_both) / np.sqrt(np.where(positive, variances, np.nan))
    return np.asarray(ratio.clip(-1, 1))
