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

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import norm, qmc

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
