"""What may be said of a number, and when nothing may: intervals, the grounds that they rest on, and ties.

Below `FEWEST_SEEDS` seeds or `FEWEST_CASES` test cases at a hospital nothing is called told apart, whatever an interval
says. Numbers are fractions: of Dice, or of what all hospitals contributed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isnan, nan

FEWEST_SEEDS = 2
LARGEST_P = 0.05  # by permuting the hospitals, of a correlation that is more than their chance order
FEWEST_CASES = 5  # test cases of a hospital, in one seed
TOO_FEW = "not enough cases to judge"
TINY = 1e-9  # numbers that differ by less are a tie
ONE_SEED = "one seed is not enough to judge"
NO_SEED = "no seed has all test Dice that this takes"


@dataclass(frozen=True)
class Measured:
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
class Grounds:
    """What a verdict rests on."""

    cases: int  # of the hospital, the fewest of any seed
    seeds: int

    @property
    def hindrance(self) -> str:
        """Why nothing may be called told apart; nothing where it may."""
        if self.cases < FEWEST_CASES:
            return f"{TOO_FEW} ({self.cases}; {FEWEST_CASES} are needed)"
        if not self.seeds:
            return NO_SEED
        return ONE_SEED if self.seeds < FEWEST_SEEDS else ""


class Verdict(StrEnum):
    """What collaboration did to a hospital, as a sentence says it."""

    BETTER = "better together"
    WORSE = "better alone"
    TIE = "no difference that can be told"
    UNJUDGED = "cannot be judged"
    UNKNOWN = "not known"


def verdict(gain: Measured, grounds: Grounds) -> Verdict:
    """Of one hospital's gain over training alone; a mean of NaN: not measured."""
    if isnan(gain.mean):
        return Verdict.UNKNOWN
    if grounds.hindrance:
        return Verdict.UNJUDGED
    return {1: Verdict.BETTER, -1: Verdict.WORSE, 0: Verdict.TIE}[gain.against(0)]


def highest(numbers: Mapping[str, float]) -> list[str]:
    """Who has the largest number; several, where they tie."""
    return [name for name, number in numbers.items() if max(numbers.values()) - number < TINY]
