"""CFFL against its slow reference, and what is particular to it."""

import pytest
import reference_validation as reference
import torch
from comparing import assert_at_sites, assert_models, dice_of, given_to
from hypothesis import given
from one_in import one_in
from rounds import few, make_rounds, play, random_rounds, with_dice

from fedmerit.core import CandidateResults, Layout, Reports
from fedmerit.methods.cffl import CFFL
from fedmerit.methods.registry import build_method

FIRST = {"reputation": "sinh_first", "aggregation": "share", "keep_own": False}  # CFFL, as parameters of `CFFLReleased`
RELEASED = {"theta": 0.5, "clip": 0.4, "alpha": 5.0, "reputation": "released", "aggregation": "sum", "keep_own": True}
GROWING = {"alpha": 5.0, "coef": 0.9, "reputation": "released", "aggregation": "mean", "keep_own": True}
CASES = {  # parameters, and how the reference calls them where that differs
    "default": ({}, {}),
    "strict": ({"coef": 0.9}, {}),
    "cut": ({"alpha": 3.0, "clip": 0.5, "theta": 0.4}, {}),
    "own kept where nothing comes": ({"coef": 0.9, "clip": 0.5, "unrewarded": "own"}, {}),
    "likewise, released": (FIRST | {"coef": 0.9, "aggregation": "mean", "unrewarded": "own"}, {}),
    "own kept": (FIRST | {"coef": 0.8, "keep_own": True}, {}),
    "one model": ({"reward": "global", "coef": 0.8}, {"sparse": False}),
    "released": (RELEASED, {"released": True}),
    "released, growing": (GROWING | {"alpha_growth": 3}, {"released": True, "growth": 3}),
}


@pytest.mark.parametrize("case", one_in(3, CASES))
@given(rounds=random_rounds)
@few
def test_cffl_is_the_reference(case, rounds):
    parameters, otherwise = CASES[case]
    method = build_method("cffl_released" if "reputation" in parameters else "cffl", parameters)
    same = {name: value for name, value in parameters.items() if name not in ("reputation", "reward", "alpha_growth")}
    expected = reference.cffl(*given_to(rounds), dice_of(rounds), **same | otherwise)
    for (reports, outcome), round in zip(play(method, rounds), expected, strict=True):
        present = reports.present.nonzero().flatten().tolist()
        assert_at_sites(outcome.contribution, round["share"], present)
        assert outcome.reputation.tolist() == pytest.approx(round["c"], abs=1e-9)
        assert outcome.quantities["expelled"].bool().tolist() == round["removed"]
        assert outcome.weights.tolist() == pytest.approx(round["weights"], abs=1e-9)
        assert_models(outcome.models.expand(len(round["models"]), -1), round["models"])


def test_a_site_that_cffl_removed_trains_alone():
    method, updates = CFFL(coef=0.5), torch.ones(3, 4).double()
    state = method.start(torch.zeros(4).double(), 3, Layout.of(4))
    state, outcome = with_dice(method, state, [0.9, 0.8, 0.05], updates)
    assert outcome.quantities["expelled"].tolist() == [0, 0, 1]
    assert outcome.reputation[2] == 0
    state, outcome = with_dice(method, state, [0.1, 0.1, 0.9], 2 * updates)  # too late
    assert outcome.weights.tolist() == [0.5, 0.5, 0]
    assert outcome.models[2].tolist() == [3, 3, 3, 3]
    assert outcome.quantities["quota"][2] == 0


def test_nobody_earns_where_all_contribution_is_a_removed_sites():
    method = CFFL(coef=0.5, contributions=(0.0, 0.0, 1.0))
    _, outcome = with_dice(method, method.start(torch.zeros(4), 3, Layout.of(4)), [0.9, 0.8, 0.05], torch.ones(3, 4))
    assert outcome.quantities["expelled"].tolist() == [0, 0, 1]
    assert outcome.quantities["quota"].tolist() == [0, 0, 0]


def test_cffl_removes_nobody_where_nobody_would_remain():
    method = CFFL(coef=10.0)
    state = method.start(torch.zeros(4), 3, Layout.of(4))
    for _ in range(3):
        state, outcome = with_dice(method, state, [0.9, 0.1, 0.4], torch.ones(3, 4))
        assert not outcome.quantities["expelled"].any()


def test_cffl_takes_removed_sites_back_where_only_they_come():
    method = CFFL(coef=0.5)
    state, _ = with_dice(method, method.start(torch.zeros(4), 2, Layout.of(4)), [0.9, 0.01], torch.ones(2, 4))
    assert state.removed.tolist() == [False, True]
    candidates = CandidateResults(torch.tensor([0.1]).double(), torch.zeros(1, 0))
    reports = Reports(torch.ones(2), torch.tensor([False, True]), {}, candidates)
    state, outcome = method.round(state, torch.tensor([[0.0] * 4, [1.0] * 4]), reports)
    assert outcome.weights.tolist() == [0, 1]
    assert not state.removed.any()


def test_cffl_evaluates_what_every_present_site_trained_with_its_own_statistics():
    rounds = make_rounds(n=4, absences=True, seed=3)
    method = CFFL()
    state = method.start(torch.zeros(12), 4, Layout.of(12))
    for updates, present in zip(rounds.updates, rounds.present, strict=True):
        candidates = method.candidates(state, updates, Reports(rounds.samples, present))
        sites = present.nonzero().flatten()
        assert torch.equal(candidates.mixtures @ candidates.models.double(), updates[sites].double())
        assert torch.equal(candidates.shares.argmax(dim=1), sites)
        assert torch.equal(candidates.shares.sum(dim=1), torch.ones(len(sites), dtype=torch.float64))
