"""FedValue, literally: Shapley values by permutations, or leaving out; remembered; weighed by."""

from itertools import permutations

import pytest
import torch
from rounds import make_rounds, play

from fedmerit.core import Layout, Reports
from fedmerit.methods.fedci import FedValue


def utilities(rounds, number, model):
    """v of any coalition of those present, by the server validation set of `make_rounds`."""
    here = [site for site in range(len(rounds.samples)) if rounds.present[number, site]]

    def of(coalition):
        weights = torch.zeros(len(rounds.samples), dtype=torch.float64)
        for site in coalition:
            weights[site] = rounds.samples[site] / sum(rounds.samples[one] for one in coalition)
        mixture = model.double() + weights @ rounds.updates[number].double()
        generator = torch.Generator().manual_seed(99)
        centres = torch.randn(3, len(model), generator=generator, dtype=torch.float64)
        return float((1 / (1 + (mixture - centres).square().sum(dim=1))).mean())

    return here, of


def shapley(here, of):
    total = dict.fromkeys(here, 0.0)
    orders = list(permutations(here))
    for order in orders:
        for place, site in enumerate(order):
            total[site] += (of(order[: place + 1]) - of(order[:place])) / len(orders)
    return total


def left_out(here, of):
    return {site: of(here) - of([one for one in here if one != site]) for site in here}


@pytest.mark.parametrize(("kind", "literally"), [("shapley", shapley), ("leave_one_out", left_out)])
@pytest.mark.parametrize("seed", range(3))
def test_values_are_remembered_and_weigh(kind, literally, seed):
    rounds = make_rounds(seed, n=4, absences=True, dtype=torch.float64)
    model, memory, method = torch.zeros(12, dtype=torch.float64), torch.zeros(4), FedValue(alpha=0.7, kind=kind)
    memory = memory.double()
    for number, (reports, outcome) in enumerate(play(method, rounds)):
        here, of = utilities(rounds, number, model)
        values = literally(here, of)
        for site in here:
            assert outcome.contribution[site].item() == pytest.approx(values[site], abs=1e-6)
            memory[site] = 0.7 * memory[site] + 0.3 * values[site]
        earned = torch.tensor([max(float(memory[site]), 0) if site in here else 0.0 for site in range(4)])
        expected = earned / earned.sum() if earned.sum() > 0 else reports.data_share
        assert outcome.weights.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
        model = model + outcome.weights @ rounds.updates[number].double()
        assert torch.allclose(outcome.models.double(), model, atol=1e-5)


def test_leaving_out_bears_more_than_twelve_sites():
    FedValue(kind="leave_one_out").start(torch.zeros(2), 13, Layout.of(2))
    with pytest.raises(ValueError, match="13 sites"):
        FedValue().start(torch.zeros(2), 13, Layout.of(2))


@pytest.mark.parametrize("kind", ["shapley", "leave_one_out"])
def test_sites_let_as_many_candidates_be_evaluated_as_there_are(kind):
    method = FedValue(kind=kind)
    reports = Reports(torch.full((5,), 10.0).double(), torch.ones(5, dtype=torch.bool))
    state = method.start(torch.zeros(2), 5, Layout.of(2))
    assert len(method.candidates(state, torch.zeros(5, 2), reports).shares) == method.most_candidates(5)
