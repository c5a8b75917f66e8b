"""Baselines, against slow references or worked by hand: standalone, pooled, FedAvg, SiloBN, DW, EU, RR."""

import pytest
import reference
import reference_rewards
import torch
from comparing import assert_equals, expected_of
from hypothesis import given
from rounds import as_numbers, few, make_rounds, outcomes, play, random_rounds

from fedmerit.capabilities import PoolsImages
from fedmerit.core import Layout, Reports
from fedmerit.methods.fedavg import FedAvg, Pooled, SiloBN, Standalone
from fedmerit.methods.registry import METHODS
from fedmerit.methods.xu_baselines import DataWeighted, Euclidean, RoundRobin, distances_to_sum
from fedmerit.vectors import gram


def test_every_site_goes_on_from_its_own_model_and_an_absent_one_keeps_what_it_has():
    method = Standalone()
    state = method.start(torch.tensor([1.0, 2.0]), 3, Layout.of(2))
    assert state.models.tolist() == [[1, 2]] * 3
    images = torch.tensor([10.0, 20.0, 30.0]).double()
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
    state, outcome = method.round(state, first, Reports(images, torch.tensor([True, True, True])))
    assert outcome.models.tolist() == [[2, 2], [1, 3], [6, 7]]
    here = torch.tensor([True, False, True])
    second = torch.tensor([[0.5, 0.0], [0.0, 0.0], [-1.0, 0.0]])
    state, outcome = method.round(state, second, Reports(images, here))
    assert outcome.models.tolist() == state.models.tolist() == [[2.5, 2], [1, 3], [5, 7]]
    assert outcome.statistics == "models"  # BatchNorm's too
    assert outcome.weights.tolist() == [0.25, 0, 0.75]
    assert outcome.reputation.tolist() == [0, 0, 0]
    assert outcome.contribution.tolist() == pytest.approx([0, torch.nan, 0], nan_ok=True)


def test_the_model_moves_by_the_update_that_all_sites_send_whatever_their_images():
    method, model = Pooled(), torch.tensor([1.0, -2.0, 0.5]).double()
    update = torch.tensor([0.25, 0.0, -4.0]).double()
    reports = Reports(torch.tensor([1.0, 1000.0, 7.0]).double(), torch.ones(3, dtype=torch.bool))
    _, outcome = method.round(method.start(model, 3, Layout.of(3)), update.repeat(3, 1), reports)
    assert torch.allclose(outcome.models, torch.tensor([1.25, -2.0, -3.5]).double(), rtol=0, atol=1e-15)
    assert outcome.weights.tolist() == [1 / 1008, 1000 / 1008, 7 / 1008]
    assert outcome.contribution.tolist() == [0, 0, 0]


def test_nobody_is_credited_and_of_who_is_away_nothing_is_known():
    method, present = Pooled(), torch.tensor([True, False])
    reports = Reports(torch.ones(2).double(), present)
    _, outcome = method.round(method.start(torch.zeros(2).double(), 2, Layout.of(2)), torch.eye(2).double(), reports)
    assert outcome.contribution[0] == 0
    assert outcome.contribution[1].isnan()


def test_no_other_method_has_all_images_in_one_place_and_it_can_do_with_one_site():
    assert [name for name, kind in METHODS.items() if issubclass(kind, PoolsImages)] == ["pooled"]
    assert Pooled().needs.sites == 1


@given(rounds=random_rounds)
@few
def test_fedavg_is_the_reference(rounds):
    d = rounds.updates.shape[2]
    expected = reference.fedavg([0.0] * d, rounds.samples.tolist(), as_numbers(rounds))
    for outcome, model in zip(outcomes(FedAvg(), rounds), expected, strict=True):
        assert outcome.models.tolist() == pytest.approx(model, abs=1e-12)


def test_silobn_is_fedavg_with_statistics_of_each_sites_own():
    rounds = make_rounds(absences=True)
    for ours, theirs in zip(outcomes(SiloBN(), rounds), outcomes(FedAvg(), rounds), strict=True):
        assert (ours.statistics, theirs.statistics) == ("own", "models")
        assert torch.equal(ours.models, theirs.models)
        assert torch.equal(ours.weights, theirs.weights)


@pytest.mark.parametrize("ratio", ["max", "share"])
@given(rounds=random_rounds)
@few
def test_data_weighted_is_the_reference(ratio, rounds):
    expected = expected_of(reference_rewards.data_weighted, rounds, ratio=ratio)
    for outcome, round in zip(outcomes(DataWeighted(ratio), rounds), expected, strict=True):
        assert_equals(outcome, round)


@given(rounds=random_rounds)
@few
def test_euclidean_is_the_reference(rounds):
    expected = expected_of(reference_rewards.euclidean, rounds)
    for outcome, round in zip(outcomes(Euclidean(), rounds), expected, strict=True):
        assert_equals(outcome, round)


def test_identical_updates_have_no_distance_to_their_sum():
    """In exact arithmetic; rounding would decide who downloads more."""
    weights = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    for seed in range(10):
        updates = make_rounds(seed, n=1, d=3000).updates[0].repeat(3, 1)
        assert distances_to_sum(gram(updates), weights).tolist() == [0, 0, 0]
    outcome = outcomes(Euclidean(), make_rounds(n=1).of_sites(torch.zeros(3, dtype=torch.long)))[0]
    assert outcome.quantities["quota"].tolist() == pytest.approx([1, 1, 1], abs=1e-12)


@pytest.mark.parametrize("turns", ["pass", "one"])
@given(rounds=random_rounds)
@few
def test_round_robin_is_the_reference(turns, rounds):
    expected, states = expected_of(reference_rewards.round_robin, rounds, turns=turns), []
    played = play(RoundRobin(turns), rounds, states)
    for (_, outcome), state, round in zip(played, states, expected, strict=True):
        assert_equals(outcome, round)
        assert state.server.tolist() == pytest.approx(round["server"], abs=1e-9)


def test_one_download_per_round_goes_around():
    states = []
    play(RoundRobin(turns="one"), make_rounds(n=3, rounds=6), states)
    assert [int(state.served.argmax()) for state in states] == [0, 1, 2, 0, 1, 2]
