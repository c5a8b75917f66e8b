"""ECI against its slow reference."""

import pytest
import reference_validation as reference
import torch
from comparing import assert_at_sites, assert_models, dice_of, given_to
from hypothesis import given
from rounds import few, play, random_rounds

from fedmerit.methods.fedci import ECI


@pytest.mark.parametrize(("truncation", "unrewarded"), [(0.0, "own"), (0.01, "nothing")])
@given(rounds=random_rounds)
@few
def test_eci_is_the_reference(truncation, unrewarded, rounds):
    expected = reference.eci(*given_to(rounds), dice_of(rounds), truncation, unrewarded)
    for (reports, outcome), round in zip(play(ECI(truncation, unrewarded), rounds), expected, strict=True):
        present = reports.present.nonzero().flatten().tolist()
        assert_at_sites(outcome.contribution, round["values"], present)
        assert_at_sites(outcome.quantities["quota"], round["quota"], present)
        assert torch.equal(outcome.weights, reports.data_share)
        assert_models(outcome.models, round["models"])
