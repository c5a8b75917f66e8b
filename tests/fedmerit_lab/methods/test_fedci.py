"""FedCI, ECI and FedValue against their slow references."""

from itertools import permutations

import pytest
import reference_validation as reference
import torch
from comparing import assert_at_sites, assert_models, dice_of, given_to
from hypothesis import given
from rounds import few, make_rounds, play, random_rounds

from fedmerit.contract.method import Layout
from fedmerit_lab.methods.fedci import ECI, FedCI, FedValue


@pytest.mark.parametrize("truncation", [0.0, 0.01])
@given(rounds=random_rounds)
@few
def test_fedci_is_the_reference(truncation, rounds):
    expected = reference.fedci(*given_to(rounds), dice_of(rounds), truncation)
    for (reports, outcome), round in zip(play(FedCI(truncation), rounds), expected, strict=True):
        assert_at_sites(outcome.contribution, round["values"], reports.present.nonzero().flatten().tolist())
        assert outcome.weights.tolist() == pytest.approx(round["weights"], abs=1e-9)
        assert_models(outcome.models, round["w_next"])


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
