"""EU against its slow reference, and its distances."""

import pytest
import reference_rewards
import torch
from comparing import assert_equals, expected_of
from hypothesis import given
from rounds import few, make_rounds, outcomes, random_rounds

from fedmerit.methods.xu_baselines import Euclidean, distances_to_sum
from fedmerit.vectors import gram


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


def test_distances_are_those_of_the_vectors():
    updates = make_rounds(n=4, d=20, dtype=torch.float64).updates[0]
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    expected = (updates - weights @ updates).norm(dim=1)
    assert torch.allclose(distances_to_sum(gram(updates), weights), expected, rtol=0, atol=1e-12)
