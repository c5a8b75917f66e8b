"""Rewards: which entries a site downloads, and what it has elsewhere; CGSV and RFFL against their slow references."""

import pytest
import reference_rewards
import torch
from comparing import assert_equals, expected_of
from hypothesis import given
from rounds import Rounds, few, layout, make_rounds, outcomes, play, random_rounds

from fedmerit.contract import games
from fedmerit.contract.rewards import Reward, fractions_of_largest, kept
from fedmerit.methods.cgsv import CGSV
from fedmerit.methods.rffl import RFFL

UPDATES = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 9.0, 9.0, 9.0]])


@pytest.mark.parametrize(
    ("unrewarded", "sizes", "expected"),
    [
        ("nothing", (), [[100, 0, -300, 0], [0, 0, 0, 0], [100, 20, -300, 40]]),
        ("nothing", [1, 3], [[100, 0, -300, 40], [0, 0, 0, 0], [100, 0, -300, 40]]),
        ("own", (), [[100, 2, -300, 4], [5, 6, 7, 8], [100, 20, -300, 40]]),
    ],
)
def test_a_reward_is_the_quota_of_an_update(unrewarded, sizes, expected):
    """Of the aggregate (100, 20, -300, 40) the first site earns a half, the second nothing, the third all."""
    aggregate, quota = torch.tensor([100.0, 20.0, -300.0, 40.0]), torch.tensor([0.5, 0.0, 1.0])
    models = torch.ones(3, 4)
    found = Reward(aggregate, quota, sizes, kept(unrewarded, UPDATES)).add_to(models)
    assert (found - 1).tolist() == expected
    assert (models == 1).all()


def test_fractions_of_the_largest_amount_of_a_present_site():
    present = torch.tensor([True, False, True])
    assert fractions_of_largest(torch.tensor([2.0, 9.0, 4.0]), present).tolist() == [0.5, 0, 1]
    assert fractions_of_largest(torch.tensor([0.0, 9.0, 0.0]), present).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "parameters", [{}, {"alpha": 0.5, "beta": 3.0, "gamma": 0.5}, {"beta": 1e7}], ids=["default", "paper", "altruistic"]
)
@given(rounds=random_rounds)
@few
def test_cgsv_is_the_reference(parameters, rounds):
    expected = expected_of(reference_rewards.cgsv, rounds, **parameters)
    served = outcomes(CGSV(**parameters, reward="global"), rounds)
    for outcome, at_server, round in zip(outcomes(CGSV(**parameters), rounds), served, expected, strict=True):
        assert_equals(outcome, round)
        assert at_server.models.tolist() == pytest.approx(round["server"], abs=1e-9)
        assert at_server.weights.tolist() == outcome.weights.tolist()
        assert "quota" not in at_server.quantities


@given(rounds=random_rounds)
@few
def test_exact_cgsv_is_the_reference(rounds):
    expected = expected_of(reference_rewards.cgsv, rounds, exact=True)
    for outcome, round in zip(outcomes(CGSV(contribution="exact"), rounds), expected, strict=True):
        assert_equals(outcome, round)
        assert (outcome.quantities["standard_error"] == 0).all()
        for i, psi in round["psi"].items():
            assert outcome.quantities["cosine"][i] == pytest.approx(psi, abs=1e-9)


def test_beyond_the_exact_sites_permutations_are_sampled(monkeypatch):
    rounds = make_rounds(n=6, absences=True, dtype=torch.float64)
    exact = outcomes(CGSV(contribution="exact"), rounds)[0]
    monkeypatch.setattr(games, "EXACT_SITES", 1)
    monkeypatch.setattr(games, "PERMUTATIONS", 4000)
    sampled, again = (outcomes(CGSV(contribution="exact"), rounds) for _ in range(2))
    here = rounds.present[0]
    errors = sampled[0].quantities["standard_error"]
    assert (errors[here] > 0).all()
    assert (errors[~here] == 0).all()
    assert ((sampled[0].contribution - exact.contribution)[here].abs() < 4.5 * errors[here]).all()
    for ours, theirs in zip(sampled, again, strict=True):
        assert torch.equal(ours.models, theirs.models)


def test_every_round_samples_permutations_of_its_own(monkeypatch):
    monkeypatch.setattr(games, "EXACT_SITES", 1)
    rounds, states = make_rounds(rounds=2), []
    method = CGSV(alpha=1.0, contribution="exact")  # the reputation stays
    reports = play(method, rounds, states)[0][0]
    first, second = (method.round(state, rounds.updates[0], reports)[1] for state in states)
    assert torch.equal(first.weights, second.weights)
    assert not torch.equal(first.contribution, second.contribution)


@pytest.mark.parametrize("mask", ["global", "per_tensor"])
def test_distances_to_the_aggregate_and_to_the_model_that_takes_it_whole(mask):
    states, before, server = [], torch.zeros(4, 12), torch.zeros(12)
    played = list(play(CGSV(mask=mask), make_rounds(n=4, d=12, rounds=3, absences=True), states))
    for (reports, outcome), state in zip(played, states, strict=True):
        present, found, downloads = reports.present, outcome.quantities, outcome.models - before
        u_N = state.server - server
        short = (downloads - u_N).norm(dim=1).double()
        assert torch.allclose(found["reward_distance"][present], short[present], atol=1e-5)
        assert torch.allclose(found["model_distance"], (outcome.models - state.server).norm(dim=1).double(), atol=1e-5)
        last = layout(12).outputs.flatten()
        apart = (outcome.models - state.server)[:, last].norm(dim=1).double()
        assert torch.allclose(found["output_distance"], apart, atol=1e-5)
        best = int(found["quota"].where(present, -1.0).argmax())
        if mask == "global":
            assert found["reward_distance"][best] == 0
            assert torch.allclose(downloads[best], u_N, atol=1e-5)
        before, server = outcome.models, state.server


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"coef": 0.9, "warmup": 1},
        {"alpha": 0.1, "coef": 0.99, "warmup": 0},
        {"gamma": 2.0, "coef": 0.9, "warmup": 1},
    ],
    ids=["default", "strict", "at once", "clipped"],
)
@given(rounds=random_rounds)
@few
def test_rffl_is_the_reference(parameters, rounds):
    expected = expected_of(reference_rewards.rffl, rounds, **parameters)
    for outcome, round in zip(outcomes(RFFL(**parameters), rounds), expected, strict=True):
        assert_equals(outcome, round)
        assert outcome.quantities["expelled"].nonzero().flatten().tolist() == round["removed"]


def opposed(rounds=4, n=4, d=10):
    """Rounds in which the last site uploads the opposite of what the others have in common."""
    made = make_rounds(n=n, d=d, rounds=rounds, dtype=torch.float64)
    random = torch.Generator().manual_seed(5)
    common = torch.randn(rounds, 1, d, generator=random, dtype=torch.float64)
    updates = common + 0.1 * made.updates
    updates[:, -1] *= -1
    return Rounds(torch.ones(n, dtype=torch.float64), updates, made.present, made.centres)


def test_as_released_a_negative_reputation_is_a_negative_weight():
    first, second = outcomes(RFFL(form="released"), opposed(rounds=2))
    assert first.reputation[3] < 0
    assert torch.allclose(second.weights, first.reputation)
    assert (second.quantities["quota"] >= 0).all()
