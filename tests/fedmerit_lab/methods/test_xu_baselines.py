"""The baselines of Xu et al. 2021, against their slow reference."""

import pytest
import reference_rewards
import torch
from comparing import assert_equals, expected_of
from hypothesis import given
from rounds import few, make_rounds, outcomes, play, random_rounds

from fedmerit.contract.vectors import gram
from fedmerit_lab.methods.xu_baselines import DataWeighted, Euclidean, RoundRobin, distances_to_sum


@pytest.mark.parametrize("ratio", ["max", "share"])
@given(rounds=random_rounds)
@few
def test_data_weighted_is_the_reference(ratio, rounds):
    expected = expected_of(reference_rewards.data_weighted, rounds, ratio=ratio)
    for outcome, round in zip(outcomes(DataWeighted(ratio), rounds), expected, strict=True):
        assert_equals(outcome, round)


@given(rounds=random_rounds)
@few
def test_euclidean_is_the_reference(rounds):
    expected = expected_of(reference_rewards.euclidean, rounds)
    for outcome, round in zip(outcomes(Euclidean(), rounds), expected, strict=True):
        assert_equals(outcome, round)


def test_identical_updates_have_no_distance_to_their_sum():
    """In exact arithmetic; rounding would decide who downloads more."""
    weights = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    for seed in range(10):
        updates = make_rounds(seed, n=1, d=3000).updates[0].repeat(3, 1)
        assert distances_to_sum(gram(updates), weights).tolist() == [0, 0, 0]
    outcome = outcomes(Euclidean(), make_rounds(n=1).of_sites(torch.zeros(3, dtype=torch.long)))[0]
    assert outcome.quantities["quota"].tolist() == pytest.approx([1, 1, 1], abs=1e-12)


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
