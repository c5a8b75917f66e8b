"""RR against its slow reference."""

import pytest
import reference_rewards
from comparing import assert_equals, expected_of
from hypothesis import given
from rounds import few, make_rounds, play, random_rounds

from fedmerit.methods.xu_baselines import RoundRobin


@pytest.mark.parametrize("turns", ["pass", "one"])
@given(rounds=random_rounds)
@few
def test_round_robin_is_the_reference(turns, rounds):
    expected, states = expected_of(reference_rewards.round_robin, rounds, turns=turns), []
    played = play(RoundRobin(turns), rounds, states)
    for (_, outcome), state, round in zip(played, states, expected, strict=True):
        assert_equals(outcome, round)
        assert state.server.tolist() == pytest.approx(round["server"], abs=1e-9)


def test_one_download_per_round_goes_around():
    states = []
    play(RoundRobin(turns="one"), make_rounds(n=3, rounds=6), states)
    assert [int(state.served.argmax()) for state in states] == [0, 1, 2, 0, 1, 2]
