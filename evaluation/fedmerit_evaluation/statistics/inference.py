"""Estimates with confidence intervals, the sample size behind them, and when a difference may be called significant.

A difference is called significant if its two-sided p-value, corrected for the comparisons made with it by `holm`, is at
most 5 %; all comparisons of a report are one family (`fedmerit_evaluation.statistics.family`). Confidence intervals
(CI; `fedmerit_evaluation.statistics.intervals`) are not corrected. With fewer than `MIN_SEEDS` seeds and `MIN_FOLDS`
folds, or fewer than `MIN_CASES` test patients at a hospital, nothing is called significant. Numbers are fractions: of
Dice, or of the sum of all contributions. Family-wise error rates: docs/studies/statistics.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isnan, nan

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t

MIN_SEEDS = 2
MIN_FOLDS = 3  # that have tested
MIN_CASES = 5  # test patients of a hospital in one seed, of all folds; patients that values of sites rest on
SIGNIFICANCE_LEVEL = 0.05  # two-sided, of a correlation by permuting the hospitals
TIE_TOLERANCE = 1e-9  # numbers that differ by less are a tie
ONE_SEED = "only one seed"
NO_SEED = "no seed has all test Dice that the comparison needs"


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % confidence interval; NaN: none."""

    mean: float
    low: float = nan
    high: float = nan
    p: float = nan  # of the hypothesis that it is what it is compared with; NaN: not tested
    error: float = nan  # standard error of that test
    freedom: float = nan  # its degrees of freedom

    @property
    def has_interval(self) -> bool:
        """Whether both ends are known."""
        return not isnan(self.low + self.high)

    def compare(self, other: float) -> int:
        """Return 1 if significantly above ``other`` by the p-value, -1 if below, 0 if neither or not tested."""
        return (int(self.mean > other) - int(self.mean < other)) * int(self.p <= SIGNIFICANCE_LEVEL)

    def excludes(self, value: float) -> bool:
        """Return whether the CI is known and does not hold a value."""
        return self.low > value or self.high < value


@dataclass(frozen=True)
class SampleSize:
    """The sample behind a comparison."""

    cases: int  # of the hospital with the fewest, in any seed
    seeds: int
    unit: str = "test patients"
    folds: int = 0  # that the cases are of, and CIs over; 0: not of several

    @property
    def insufficient_data(self) -> str:
        """The reason why nothing may be called significant; "" if the sample is large enough."""
        if self.cases < MIN_CASES:
            return f"too few {self.unit} ({self.cases}; at least {MIN_CASES} are needed)"
        if not self.seeds:
            return NO_SEED
        if 0 < self.folds < MIN_FOLDS:
            return f"too few folds ({self.folds}; at least {MIN_FOLDS} are needed)"
        return ONE_SEED if self.seeds < MIN_SEEDS and self.folds < MIN_FOLDS else ""


class Comparison(StrEnum):
    """A comparison of federated with local training, at one hospital."""

    BETTER = "significantly better with federated training"
    WORSE = "significantly better with local training"
    TIE = "no significant difference"
    UNJUDGED = "too few cases or seeds"
    UNKNOWN = "not known"


def compare_training(gain: Estimate, sample: SampleSize) -> Comparison:
    """Compare by the gain in Dice over local training; a mean of NaN: not measured."""
    if isnan(gain.mean):
        return Comparison.UNKNOWN
    if sample.insufficient_data:
        return Comparison.UNJUDGED
    return {1: Comparison.BETTER, -1: Comparison.WORSE, 0: Comparison.TIE}[gain.compare(0)]


def p_values(mean: ArrayLike, low: ArrayLike, high: ArrayLike, seeds: ArrayLike) -> NDArray[np.float64]:
    """Return two-sided p-values of numbers being 0, from their 95 % CIs: 5 % where an end is 0; NaN without a CI.

    Assumes Student's t with `degrees_of_freedom`, which the CIs, of mixed degrees, are at least as narrow as.
    """
    mean, low, high, seeds = np.broadcast_arrays(
        *(np.asarray(part, dtype=np.float64) for part in (mean, low, high, seeds))
    )
    freedom = degrees_of_freedom(seeds)
    reach = np.where(mean > 0, mean - low, high - mean)
    errors = np.divide(np.abs(mean), reach, out=np.where(mean == 0, 0.0, np.inf), where=reach != 0)
    p = 2 * t.sf(errors * t.ppf(1 - SIGNIFICANCE_LEVEL / 2, freedom), freedom)
    return np.where(np.isnan(low + high + mean), nan, p)


def degrees_of_freedom(seeds: ArrayLike) -> NDArray[np.float64]:
    """Return the degrees of `p_values`, by the fewest of the seeds and `MIN_CASES`; with one seed by patients."""
    seeds = np.asarray(seeds, dtype=np.float64)
    return np.where(seeds > 1, np.minimum(seeds, MIN_CASES), MIN_CASES) - 1.0


def fold_overlap(folds: int, prepared: int = 0) -> float:
    """Return the factor of a standard error over folds that share training patients: √(1 + F · tested / trained on).

    All but two folds train: one is validated, one tested. Source: the corrected resampled t-test of Nadeau and Bengio
    2003. 1 without folds.

    Args:
        folds: F, that were tested.
        prepared: folds that the patients are divided into; 0: as many.
    """
    return float(np.sqrt(1 + folds / ((prepared or folds) - 2))) if folds >= MIN_FOLDS else 1.0


def holm(p: ArrayLike, weights: ArrayLike = 1.0) -> NDArray[np.float64]:
    """Return corrected p-values of a family of comparisons, whatever their dependence (Holm 1979), without NaN.

    Args:
        p: (k,) p-values; NaN: not compared.
        weights: (k,) parts of the level that the comparisons have, in any unit; the comparisons with the smallest p for
            their weight come first, and the others share what these leave.
    """
    p = np.asarray(p, dtype=np.float64)
    weights = np.broadcast_to(np.asarray(weights, dtype=np.float64), p.shape)
    known = np.flatnonzero(np.isfinite(p))
    order = known[np.argsort(p[known] / weights[known], kind="stable")]
    left = np.cumsum(weights[order][::-1])[::-1]
    corrected = np.full(p.shape, nan)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * left / weights[order]), 1.0)
    return corrected


def find_highest(numbers: Mapping[str, float]) -> list[str]:
    """Return the names with the largest number; several if they tie."""
    return [name for name, number in numbers.items() if max(numbers.values()) - number < TIE_TOLERANCE]
