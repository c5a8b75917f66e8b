"""DW against its slow reference."""

import pytest
import reference_rewards
from comparing import assert_equals, expected_of
from hypothesis import given
from rounds import few, outcomes, random_rounds

from fedmerit.methods.xu_baselines import DataWeighted


@pytest.mark.parametrize("ratio", ["max", "share"])
@given(rounds=random_rounds)
@few
def test_data_weighted_is_the_reference(ratio, rounds):
    expected = expected_of(reference_rewards.data_weighted, rounds, ratio=ratio)
    for outcome, round in zip(outcomes(DataWeighted(ratio), rounds), expected, strict=True):
        assert_equals(outcome, round)
