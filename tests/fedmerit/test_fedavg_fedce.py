"""FedAvg and FedCE against their slow references."""

import math

import pytest
import reference
import torch
from hypothesis import given
from rounds import as_numbers, few, outcomes, play, random_rounds

from fedmerit.core import Layout, Reports
from fedmerit.methods.fedavg import FedAvg
from fedmerit.methods.fedce import FedCE


@given(rounds=random_rounds)
@few
def test_fedavg_is_the_reference(rounds):
    d = rounds.updates.shape[2]
    expected = reference.fedavg([0.0] * d, rounds.samples.tolist(), as_numbers(rounds))
    for outcome, model in zip(outcomes(FedAvg(), rounds), expected, strict=True):
        assert outcome.models.tolist() == pytest.approx(model, abs=1e-12)


@pytest.mark.parametrize("combine", ["times", "plus", "cosine", "error"])
@given(rounds=random_rounds)
@few
def test_fedce_is_the_reference(combine, rounds):
    n, d = rounds.updates.shape[1:]
    dice = [lambda model, centre=centre: 1 / (1 + math.dist(model, centre) ** 2) for centre in rounds.centres.tolist()]
    expected = reference.fedce([0.0] * d, rounds.samples.tolist(), as_numbers(rounds), dice, combine)
    for (reports, outcome), round in zip(play(FedCE(combine), rounds), expected, strict=True):
        assert outcome.weights.tolist() == pytest.approx(round["weights"], abs=1e-9)
        assert outcome.models.tolist() == pytest.approx(round["w_next"], abs=1e-9)
        for i in range(n):
            if round["minus_error"][i] is None:
                assert reports.values["minus_error"][i].isnan()
            else:
                assert reports.values["minus_error"][i] == pytest.approx(round["minus_error"][i], abs=1e-9)
                assert outcome.quantities["cosine"][i] == pytest.approx(round["cosine"][i], abs=1e-9)
        assert not outcome.quantities["flagged"].any()


@pytest.mark.parametrize("estimate", ["site", "server"])
@pytest.mark.parametrize(("combine", "other"), [("cosine", "minus_error"), ("error", "cosine")])
def test_an_ablation_does_not_see_the_other_term(combine, other, estimate):
    method, updates = FedCE(combine, estimate), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    shares = []
    for changed in (0.2, 0.9):
        state = method.start(torch.zeros(2), 3, Layout.of(2))
        own = torch.tensor([changed, 0.5, 0.5], dtype=torch.float64)
        for number in range(2):
            now = updates.clone()
            if other == "cosine":
                now[0] = torch.tensor([1.0, -changed])
            errors = own if other == "minus_error" else torch.full_like(own, 0.5) + torch.tensor([0.1, 0.0, 0.2])
            values = {"cosine": state.cosine, "minus_error": errors if number else torch.full_like(own, torch.nan)}
            reports = Reports(torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.bool), values)
            state, outcome = method.round(state, now, reports)
        shares.append(outcome.weights)
    assert torch.equal(*shares)
    assert outcome.weights.unique().numel() > 1  # the term it sees tells the sites apart
