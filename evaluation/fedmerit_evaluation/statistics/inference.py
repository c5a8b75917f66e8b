"""What may be said of a number, and when nothing may: intervals, the grounds that they rest on, and ties.

Below `MIN_SEEDS` seeds or `MIN_CASES` test cases at a hospital nothing is called told apart, whatever an interval
says. Numbers are fractions: of Dice, or of what all hospitals contributed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isnan, nan

MIN_SEEDS = 2
SIGNIFICANCE_LEVEL = 0.05  # by permuting the hospitals, of a correlation that is more than their chance order
MIN_CASES = 5  # test cases of a hospital, in one seed
TOO_FEW = "not enough cases to judge"
TIE_TOLERANCE = 1e-9  # numbers that differ by less are a tie
ONE_SEED = "one seed is not enough to judge"
NO_SEED = "no seed has all test Dice that this takes"


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, NaN where there is none."""

    mean: float
    low: float = nan
    high: float = nan

    @property
    def has_interval(self) -> bool:
        """Whether there is one."""
        return not isnan(self.low + self.high)

    def against(self, other: float) -> int:
        """1 where the interval lies above ``other``, -1 where below, 0 where it holds it or is not known."""
        return int(self.low > other) - int(self.high < other)


@dataclass(frozen=True)
class SampleSize:
    """What a verdict rests on."""

    cases: int  # of the hospital, the fewest of any seed
    seeds: int

    @property
    def insufficient_data(self) -> str:
        """Why nothing may be called told apart; nothing where it may."""
        if self.cases < MIN_CASES:
            return f"{TOO_FEW} ({self.cases}; {MIN_CASES} are needed)"
        if not self.seeds:
            return NO_SEED
        return ONE_SEED if self.seeds < MIN_SEEDS else ""


class Comparison(StrEnum):
    """What collaboration did to a hospital, as a sentence says it."""

    BETTER = "better together"
    WORSE = "better alone"
    TIE = "no difference that can be told"
    UNJUDGED = "cannot be judged"
    UNKNOWN = "not known"


def verdict(gain: Estimate, grounds: SampleSize) -> Comparison:
    """Of one hospital's gain over training alone; a mean of NaN: not measured."""
    if isnan(gain.mean):
        return Comparison.UNKNOWN
    if grounds.insufficient_data:
        return Comparison.UNJUDGED
    return {1: Comparison.BETTER, -1: Comparison.WORSE, 0: Comparison.TIE}[gain.against(0)]


def highest(numbers: Mapping[str, float]) -> list[str]:
    """Who has the largest number; several, where they tie."""
    return [name for name, number in numbers.items() if max(numbers.values()) - number < TIE_TOLERANCE]
