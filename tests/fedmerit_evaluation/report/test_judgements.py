"""What may be said of a number: of few cases, one seed, an interval that holds 0, ties."""

import math

import pytest

from fedmerit_evaluation.statistics.inference import Comparison, Estimate, SampleSize, compare_training, find_highest

GAIN, LOSS, TIE = Estimate(0.05, 0.02, 0.08), Estimate(-0.05, -0.08, -0.02), Estimate(0.01, -0.02, 0.04)
ENOUGH, FEW, ONE = SampleSize(5, 2), SampleSize(4, 2), SampleSize(5, 1)


@pytest.mark.parametrize(
    ("gain", "sample", "found"),
    [
        (GAIN, ENOUGH, Comparison.BETTER),
        (LOSS, ENOUGH, Comparison.WORSE),
        (TIE, ENOUGH, Comparison.TIE),
        (Estimate(0.05), ENOUGH, Comparison.TIE),
        (GAIN, FEW, Comparison.UNJUDGED),
        (GAIN, ONE, Comparison.UNJUDGED),
        (Estimate(math.nan), FEW, Comparison.UNKNOWN),
    ],
)
def test_a_verdict_needs_cases_seeds_and_an_interval(gain: Estimate, sample: SampleSize, found: Comparison) -> None:
    assert compare_training(gain, sample) is found


def test_what_stands_in_the_way_of_a_verdict() -> None:
    assert SampleSize(4, 0).insufficient_data == "too few test cases (4; at least 5 are needed)"
    assert SampleSize(5, 0).insufficient_data == "no seed has all test Dice that the comparison needs"
    assert SampleSize(5, 1).insufficient_data == "only one seed"
    assert SampleSize(5, 2).insufficient_data == ""


def test_who_differs_by_rounding_alone_ties() -> None:
    assert find_highest({"A": 0.3, "B": 0.1 + 0.2, "C": 0.29}) == ["A", "B"]
