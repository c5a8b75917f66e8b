"""CGSV against its slow reference, and what is particular to it."""

import pytest
import reference_rewards
import torch
from comparing import assert_equals, expected_of
from hypothesis import given
from rounds import Rounds, few, layout, make_rounds, outcomes, play, random_rounds

from fedmerit import games
from fedmerit.methods.cgsv import CGSV


@pytest.mark.parametrize(
    "parameters",
    [{}, {"alpha": 0.5, "beta": 3.0, "gamma": 0.5, "floor": 0.0}, {"beta": 1e7, "floor": 0.1}, {"unrewarded": "own"}],
    ids=["default", "paper", "altruistic", "own kept"],
)
@given(rounds=random_rounds)
@few
def test_cgsv_is_the_reference(parameters, rounds):
    expected = expected_of(reference_rewards.cgsv, rounds, **parameters)
    served = outcomes(CGSV(**{**parameters, "unrewarded": "nothing"}, reward="global"), rounds)
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
    sampled, again = (outcomes(CGSV(contribution="exact", permutations=4000), rounds) for _ in range(2))
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
    method = CGSV(alpha=1.0, contribution="exact", permutations=10)  # the reputation stays
    reports = play(method, rounds, states)[0][0]
    first, second = (method.round(state, rounds.updates[0], reports)[1] for state in states)
    assert torch.equal(first.weights, second.weights)
    assert not torch.equal(first.contribution, second.contribution)


def test_thirty_sites_are_sampled():
    rounds = make_rounds(n=30, d=40, rounds=2)
    for outcome in outcomes(CGSV(contribution="exact", permutations=200), rounds):
        assert outcome.contribution.sum().item() == pytest.approx(1, abs=1e-9)
        assert (outcome.quantities["standard_error"] > 0).all()


def test_by_default_the_step_has_the_size_of_the_updates_and_gamma_sets_it():
    rounds = make_rounds(n=1, d=8).of_sites(torch.tensor([0, 0, 0]))
    norm = rounds.updates[0, 0].norm()
    for method, expected in ((CGSV(reward="global"), norm), (CGSV(reward="global", gamma=0.5), torch.tensor(0.5))):
        assert torch.allclose(outcomes(method, rounds)[0].models.norm(), expected, rtol=1e-6)


def test_reputations_do_not_depend_on_gamma_or_on_the_size_of_one_update():
    rounds = make_rounds(dtype=torch.float64)
    louder = Rounds(rounds.samples, rounds.updates.clone(), rounds.present, rounds.centres)
    louder.updates[:, 1] *= 100
    plain = outcomes(CGSV(), rounds)
    for others in (outcomes(CGSV(gamma=0.1), rounds), outcomes(CGSV(), louder)):
        for ours, theirs in zip(plain, others, strict=True):
            assert torch.allclose(ours.reputation, theirs.reputation, rtol=0, atol=1e-12)


def test_a_site_against_all_others_sinks_to_the_floor_and_downloads_next_to_nothing():
    rounds = make_rounds(n=2, d=400, rounds=3).of_sites(torch.tensor([0, 0, 0, 0]))
    rounds.updates[:, 3] *= -1
    outcome = outcomes(CGSV(), rounds)[-1]
    assert outcome.contribution.tolist() == pytest.approx([1, 1, 1, -1], abs=1e-6)
    assert outcome.reputation[3] < 0.01
    assert outcome.quantities["quota"][:3].tolist() == pytest.approx([1, 1, 1], abs=1e-9)
    assert 0 < outcome.quantities["quota"][3] < 0.02


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
