"""Coordinate-wise trimmed mean against its slow reference."""

import pytest
from comparing import assert_models
from hypothesis import given
from rounds import as_numbers, few, outcomes, random_rounds

from fedmerit.methods.trimmed import Trimmed


@pytest.mark.parametrize("beta", [0.0, 0.2, 0.3, 0.49])
@given(rounds=random_rounds)
@few
def test_trimmed_is_the_reference(beta, rounds):
    model = [0.0] * rounds.updates.shape[2]
    for outcome, updates in zip(outcomes(Trimmed(beta), rounds), as_numbers(rounds), strict=True):
        there = [update for update in updates if update]
        cut = int(100 * beta) * len(there) // 100
        for k, column in enumerate(zip(*there, strict=True)):
            kept = sorted(column)[cut : len(column) - cut]
            model[k] += sum(kept) / len(kept)
        assert_models(outcome.models, model)
        assert outcome.weights.tolist() == [1 / len(there) if update else 0 for update in updates]
