"""AFL and TERM against the equations of their papers, site by site."""

import math

import pytest
import torch
from comparing import assert_at_sites, assert_models, given_to, own_losses_of
from hypothesis import given
from rounds import few, make_rounds, play, random_rounds
from scipy.optimize import minimize

from fedmerit.contract.method import Layout, Reports
from fedmerit_lab.methods.fair_losses import AFL, TERM, project_to_simplex


def mean_losses(rounds, model, here):
    losses = {i: own_losses_of(rounds)(i, model) for i in here}
    return {i: sum(of_site) / len(of_site) for i, of_site in losses.items()}


def step(model, weights, updates):
    return [w + sum(weights[i] * updates[i][k] for i in weights) for k, w in enumerate(model)]


def projected(point):
    """The entries less the threshold with which those above it sum to 1, sought by bisection."""
    low, high = min(point) - 1, max(point)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(max(x - middle, 0) for x in point) > 1 else (low, middle)
    return [max(x - high, 0) for x in point]


@pytest.mark.parametrize("t", [-2.0, 0.0, 1.0, 20.0])
@given(rounds=random_rounds)
@few
def test_term_of_random_rounds_is_the_gradient_of_the_tilted_loss(t, rounds):
    model, samples, of_rounds = given_to(rounds)
    for (_, outcome), updates in zip(play(TERM(t), rounds), of_rounds, strict=True):
        here = [i for i, update in enumerate(updates) if update is not None]
        losses = mean_losses(rounds, model, here)
        tilted = {i: samples[i] * math.exp(t * losses[i]) for i in here}
        weights = {i: tilted[i] / sum(tilted.values()) for i in here}
        model = step(model, weights, updates)
        assert_at_sites(outcome.contribution, weights, here)
        assert_at_sites(outcome.quantities["loss"], losses, here)
        assert_models(outcome.models, model)


@pytest.mark.parametrize("rate", [0.05, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_afl_of_rounds_without_absences_is_projected_ascent(rate, seed):
    rounds = make_rounds(seed, dtype=torch.float64)
    model, samples, of_rounds = given_to(rounds)
    mixture = [1 / len(samples)] * len(samples)
    for (_, outcome), updates in zip(play(AFL(rate), rounds), of_rounds, strict=True):
        everyone = range(len(samples))
        losses = mean_losses(rounds, model, everyone)
        assert outcome.weights.tolist() == pytest.approx(mixture, abs=1e-9)
        model = step(model, dict(enumerate(mixture)), updates)
        assert_models(outcome.models, model)
        mixture = projected([mixture[i] + rate * losses[i] for i in everyone])


def test_afl_of_an_absent_site_keeps_its_weight_and_the_others_share_the_rest():
    method, losses = AFL(rate=0.2), torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64)
    state = method.start(torch.zeros(2), 3, Layout.of(2))
    for here in ([True, True, True], [True, True, False], [True, True, True]):
        present = torch.tensor(here)
        state, outcome = method.round(state, torch.zeros(3, 2), Reports(torch.ones(3), present, {"loss": losses}))
    # λ: 1/3 each; 1/3 + (.1, .02, .18) - .1 = .3333, .2533, .4133; without the third .5682, .4318 of .5867
    first, second = projected(
        [0.3333333333333333 / 0.5866666666666667 + 0.1, 0.2533333333333333 / 0.5866666666666667 + 0.02]
    )
    kept = 0.5866666666666667
    assert outcome.weights.tolist() == pytest.approx([first * kept, second * kept, 1 - kept], abs=1e-9)


def test_project_to_simplex_of_a_point_is_the_nearest():
    point = [0.9, -0.2, 0.6, 0.1]
    nearest = minimize(
        lambda x: sum((a - b) ** 2 for a, b in zip(x, point, strict=True)),
        [0.25] * 4,
        bounds=[(0, 1)] * 4,
        constraints={"type": "eq", "fun": lambda x: sum(x) - 1},
        tol=1e-12,
    )
    assert project_to_simplex(torch.tensor(point, dtype=torch.float64)).tolist() == pytest.approx(nearest.x, abs=1e-6)


def test_term_with_a_large_tilt_finds_the_worst_served_site_without_overflow():
    reports = Reports(torch.ones(2), torch.tensor([True, True]), {"loss": torch.tensor([0.1, 0.2]).double()})
    method = TERM(t=1e5)
    _, outcome = method.round(method.start(torch.zeros(2), 2, Layout.of(2)), torch.zeros(2, 2), reports)
    assert outcome.weights.tolist() == pytest.approx([0, 1])
