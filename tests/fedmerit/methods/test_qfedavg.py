"""q-FedAvg against its slow reference, and what is particular to it."""

import math

import pytest
import reference_validation as reference
import torch
from comparing import assert_at_sites, assert_models, given_to, own_losses_of
from hypothesis import given
from one_in import one_in
from rounds import few, play, random_rounds

from fedmerit.contract.method import Layout, Reports
from fedmerit.methods.qfedavg import QFedAvg


@pytest.mark.parametrize("q", one_in(3, [0.0, 0.1, 1.0, 5.0]))
@pytest.mark.parametrize("lipschitz", [None, 0.5])
@given(rounds=random_rounds)
@few
def test_qfedavg_is_the_reference(q, lipschitz, rounds):
    start, _, updates = given_to(rounds)
    method = QFedAvg(q, lipschitz)
    expected = reference.qfedavg(start, updates, own_losses_of(rounds), q=q, lipschitz=lipschitz)
    for (reports, outcome), round in zip(play(method, rounds), expected, strict=True):
        present = reports.present.nonzero().flatten().tolist()
        assert_at_sites(outcome.quantities["loss"], round["loss"], present)
        assert_at_sites(outcome.contribution, round["weights"], present)
        assert outcome.weights.tolist() == pytest.approx(round["weights"], abs=1e-9)
        assert_models(outcome.models, round["w_next"])


def test_a_site_without_a_loss_counts_with_the_mean_of_the_others():
    method = QFedAvg()
    state = method.start(torch.zeros(2), 4, Layout.of(2))
    losses = torch.tensor([0.2, math.nan, 0.4, 0.9], dtype=torch.float64)
    reports = Reports(torch.ones(4), torch.tensor([True, True, True, False]), {"loss": losses})
    _, outcome = method.round(state, torch.zeros(4, 2), reports)
    assert outcome.weights.tolist() == pytest.approx([2 / 9, 3 / 9, 4 / 9, 0], abs=1e-9)


def test_a_large_q_finds_the_worst_served_site_without_underflow():
    method = QFedAvg(q=1000.0)
    reports = Reports(torch.ones(2), torch.tensor([True, True]), {"loss": torch.tensor([0.1, 0.2]).double()})
    _, outcome = method.round(method.start(torch.zeros(2), 2, Layout.of(2)), torch.zeros(2, 2), reports)
    assert outcome.weights.tolist() == pytest.approx([0, 1])
