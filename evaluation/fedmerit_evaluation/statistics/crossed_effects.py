"""Confidence intervals of mean Dice, and of differences of means, with seeds and patients as crossed random effects.

Such a statistic is the mean over seeds of the mean over sites of the mean over patients. Its variance is estimated by
V = V_seeds + V_patients - V_both (moments of crossed random effects: Searle, Casella and McCulloch 1992, chapter 4):
what differs by seed and patient is in both of the first. A patient whom several seeds test counts once; with a split
that seeds change, patients differ and V_both is most of V_patients. Degrees of freedom are Satterthwaite's (1946).

The cases of a patient, or of a fold, move together (linearised ratio; Cochran 1977, Sampling Techniques, chapter 6).
With folds, which test each patient once, V is that over folds, the same at all sites: between folds everything differs
that a hospital's number varies by, patients, training images and seeds.

V_seeds of two or three seeds is often too small by chance. It is therefore at least the sum of the sites' own
variances over seeds, which has more degrees of freedom, and the interval at least Student's over seeds only. The
p-value is the largest of those by V, by seeds and by patients only: corrected for many comparisons, it has to hold far
in the tail, where Satterthwaite's is too small. Over folds it is that of a standard error larger by `fold_overlap`.
So an interval can exclude 0 without significance.

Assumptions: patients of a site exchangeable and independent, seeds independent, means about normal; folds independent,
although they share training patients. Not covered: of one seed, what another would give; of few patients, a skewed
distribution. Coverage: docs/studies/statistics.md.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import t

from fedmerit_evaluation.statistics.bootstrap import CASES, LEVEL, Clusters, FloatArray, nan_mean, tested_sites
from fedmerit_evaluation.statistics.inference import MARGIN, fold_overlap


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
