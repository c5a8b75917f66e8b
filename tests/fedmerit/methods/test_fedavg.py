"""FedAvg against its slow reference."""

import pytest
import reference
from hypothesis import given
from rounds import as_numbers, few, outcomes, random_rounds

from fedmerit.methods.fedavg import FedAvg


@given(rounds=random_rounds)
@few
def test_fedavg_is_the_reference(rounds):
    d = rounds.updates.shape[2]
    expected = reference.fedavg([0.0] * d, rounds.samples.tolist(), as_numbers(rounds))
    for outcome, model in zip(outcomes(FedAvg(), rounds), expected, strict=True):
        assert outcome.models.tolist() == pytest.approx(model, abs=1e-12)
