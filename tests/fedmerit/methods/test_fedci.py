"""FedCI and ECI against their slow references."""

import pytest
import reference_validation as reference
import torch
from comparing import assert_at_sites, assert_models, dice_of, given_to
from hypothesis import given
from rounds import few, make_rounds, play, random_rounds

from fedmerit.core import Layout
from fedmerit.methods.fedci import ECI, FedCI


@pytest.mark.parametrize("truncation", [0.0, 0.01])
@given(rounds=random_rounds)
@few
def test_fedci_is_the_reference(truncation, rounds):
    expected = reference.fedci(*given_to(rounds), dice_of(rounds), truncation)
    for (reports, outcome), round in zip(play(FedCI(truncation), rounds), expected, strict=True):
        assert_at_sites(outcome.contribution, round["values"], reports.present.nonzero().flatten().tolist())
        assert outcome.weights.tolist() == pytest.approx(round["weights"], abs=1e-9)
        assert_models(outcome.models, round["w_next"])


@pytest.mark.parametrize("method", [FedCI(), ECI()], ids=["fedci", "eci"])
def test_the_shapley_values_of_a_round_sum_to_what_all_gain_over_nobody(method):
    for reports, outcome in play(method, make_rounds(n=5, absences=True)):
        gained = reports.candidates.dice[-1] - reports.candidates.dice[0]
        assert outcome.contribution.nansum().item() == pytest.approx(gained.item(), abs=1e-12)
        assert len(reports.candidates.dice) == 2 ** int(reports.present.sum())


@pytest.mark.parametrize("method", [FedCI(), ECI()], ids=["fedci", "eci"])
def test_more_than_twelve_sites_are_refused(method):
    method.start(torch.zeros(2), 12, Layout.of(2))
    with pytest.raises(ValueError, match=r"13 sites.*merge sites"):
        method.start(torch.zeros(2), 13, Layout.of(2))


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
