"""Coordinate-wise median against its slow reference."""

from statistics import median

from comparing import assert_models
from hypothesis import given
from rounds import as_numbers, few, outcomes, random_rounds

from fedmerit.methods.trimmed import Median


@given(rounds=random_rounds)
@few
def test_median_is_the_reference(rounds):
    model = [0.0] * rounds.updates.shape[2]
    for outcome, updates in zip(outcomes(Median(), rounds), as_numbers(rounds), strict=True):
        there = [update for update in updates if update]
        model = [w + median(column) for w, column in zip(model, zip(*there, strict=True), strict=True)]
        assert_models(outcome.models, model)
        assert outcome.weights.tolist() == [1 / len(there) if update else 0 for update in updates]
