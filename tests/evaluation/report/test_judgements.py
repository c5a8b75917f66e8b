"""What may be said of a number: of few cases, one seed, an interval that holds 0, ties."""

import math

import pytest

from evaluation.report.judgements import Grounds, Measured, Verdict, highest, verdict

GAIN, LOSS, TIE = Measured(0.05, 0.02, 0.08), Measured(-0.05, -0.08, -0.02), Measured(0.01, -0.02, 0.04)
ENOUGH, FEW, ONE = Grounds(5, 2), Grounds(4, 2), Grounds(5, 1)


@pytest.mark.parametrize(
    ("gain", "grounds", "found"),
    [
        (GAIN, ENOUGH, Verdict.BETTER),
        (LOSS, ENOUGH, Verdict.WORSE),
        (TIE, ENOUGH, Verdict.TIE),
        (Measured(0.05), ENOUGH, Verdict.TIE),
        (GAIN, FEW, Verdict.UNJUDGED),
        (GAIN, ONE, Verdict.UNJUDGED),
        (Measured(math.nan), FEW, Verdict.UNKNOWN),
    ],
)
def test_a_verdict_needs_cases_seeds_and_an_interval(gain: Measured, grounds: Grounds, found: Verdict) -> None:
    assert verdict(gain, grounds) is found


def test_what_stands_in_the_way_of_a_verdict() -> None:
    assert Grounds(4, 0).hindrance == "not enough cases to judge (4; 5 are needed)"
    assert Grounds(5, 0).hindrance == "no seed has all test Dice that this takes"
    assert Grounds(5, 1).hindrance == "one seed is not enough to judge"
    assert Grounds(5, 2).hindrance == ""


def test_who_differs_by_rounding_alone_ties() -> None:
    assert highest({"A": 0.3, "B": 0.1 + 0.2, "C": 0.29}) == ["A", "B"]
