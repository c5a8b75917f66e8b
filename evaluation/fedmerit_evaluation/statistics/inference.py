"""Estimates with confidence intervals, the sample size behind them, and when a difference may be called significant.

A difference is called significant when its 95 % confidence interval (CI) excludes 0: two-sided, at 5 %, not corrected
for multiple comparisons. How the intervals are made is in `fedmerit_evaluation.statistics.bootstrap`. With fewer than
`MIN_SEEDS` seeds, or fewer than `MIN_CASES` test cases at a hospital, nothing is called significant, whatever the
interval. Numbers are fractions: of Dice, or of the sum of all contributions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isnan, nan

MIN_SEEDS = 2
MIN_CASES = 5  # test cases of a hospital, in one seed
SIGNIFICANCE_LEVEL = 0.05  # two-sided, of a correlation by permuting the hospitals
TIE_TOLERANCE = 1e-9  # numbers that differ by less are a tie
TOO_FEW = "too few test cases"
ONE_SEED = "only one seed"
NO_SEED = "no seed has all test Dice that the comparison needs"


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % confidence interval; NaN: none."""

    mean: float
    low: float = nan
    high: float = nan

    @property
    def has_interval(self) -> bool:
        """Whether both ends are known."""
        return not isnan(self.low + self.high)

    def compare(self, other: float) -> int:
        """1: the interval lies above ``other``; -1: below; 0: it includes it, or is not known."""
        return int(self.low > other) - int(self.high < other)


@dataclass(frozen=True)
class SampleSize:
    """The sample behind a comparison."""

    cases: int  # test cases of the hospital: the fewest of any seed
    seeds: int

    @property
    def insufficient_data(self) -> str:
        """Why nothing may be called significant; "" if the sample is large enough."""
        if self.cases < MIN_CASES:
            return f"{TOO_FEW} ({self.cases}; at least {MIN_CASES} are needed)"
        if not self.seeds:
            return NO_SEED
        return ONE_SEED if self.seeds < MIN_SEEDS else ""


class Comparison(StrEnum):
    """Federated with local training, at one hospital."""

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


def find_highest(numbers: Mapping[str, float]) -> list[str]:
    """The names with the largest number; several if they tie."""
    return [name for name, number in numbers.items() if max(numbers.values()) - number < TIE_TOLERANCE]
