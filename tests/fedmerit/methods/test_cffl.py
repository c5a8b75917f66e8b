"""CFFL and its released form, against their slow reference and worked out explicitly."""

import math

import pytest
import reference_validation as reference
import torch
from comparing import assert_at_sites, assert_models, dice_of, given_to
from hypothesis import given
from one_in import one_in
from rounds import few, make_rounds, play, random_rounds, with_dice

from fedmerit.contract.method import CandidateResults, Layout, Reports
from fedmerit.methods.cffl import CFFL, CFFLState
from fedmerit.methods.registry import build_method
from fedmerit_lab.methods.cffl_released import CFFLReleased

FIRST = {"reputation": "sinh_first", "aggregation": "share", "keep_own": False}  # CFFL, as parameters of `CFFLReleased`
RELEASED = {"theta": 0.5, "clip": 0.4, "alpha": 5.0, "reputation": "released", "aggregation": "sum", "keep_own": True}
GROWING = {"alpha": 5.0, "coef": 0.9, "reputation": "released", "aggregation": "mean", "keep_own": True}
CASES = {  # parameters, and how the reference calls them where that differs
    "default": ({}, {}),
    "strict": ({"coef": 0.9}, {}),
    "cut": ({"alpha": 3.0, "clip": 0.5, "theta": 0.4}, {}),
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


SHARES = torch.tensor([0.5, 0.3, 0.2]).double()


def test_released_cffl_expels_all_but_the_best_of_six_near_equal_sites_and_the_resolved_form_does_not():
    """Standalone Dice of six prostate sites as constant scores: the released loop has two stable ends."""
    dice, updates = [0.867, 0.855, 0.862, 0.899, 0.798, 0.910], torch.ones(6, 5)
    remaining = {}
    for name, method in (
        ("released", CFFLReleased(alpha=5.0, aggregation="share", keep_own=False)),
        ("tamed", CFFLReleased(alpha=4.0, aggregation="share", keep_own=False)),
        ("resolved", CFFL()),
    ):
        state = method.start(torch.zeros(5), 6, Layout.of(5))
        for _ in range(60):
            state, outcome = with_dice(method, state, dice, updates)
        remaining[name] = int(6 - outcome.quantities["expelled"].sum())
    assert remaining == {"released": 1, "tamed": 6, "resolved": 6}


def state_of(round, reputation=(0.2, 0.3, 0.5)):
    reputation = torch.tensor(reputation).double()
    return CFFLState(torch.zeros(3, 2), reputation, torch.zeros(3).bool(), torch.tensor(float(round)).double())


def everyone():
    return Reports(torch.tensor([1.0, 2.0, 1.0]).double(), torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize(("growth", "expected"), [(0, [2, 2, 2, 2, 2]), (2, [2, 3, 4, 4, 4]), (4, [2, 2.5, 3, 3.5, 4])])
def test_alpha_doubles_in_so_many_rounds(growth, expected):
    method = CFFLReleased(alpha=2.0, alpha_growth=growth)
    assert [method.strength(state_of(round), everyone()) for round in range(5)] == expected


def test_a_released_reputation_fades_before_it_is_punished():
    """sinh(2 (0.8 c + 0.2 share)), of c = (0.2, 0.3, 0.5): sinh of 0.52, 0.6 and 0.88; otherwise c/2 + sinh(2 s)/2."""
    released = CFFLReleased(alpha=2.0)
    found = released.unnormalised_reputation(state_of(0), SHARES, everyone())
    assert found.tolist() == pytest.approx([math.sinh(0.52), math.sinh(0.6), math.sinh(0.88)])
    first = CFFLReleased(alpha=2.0, alpha_growth=5, reputation="sinh_first")
    found = first.unnormalised_reputation(state_of(0), SHARES, everyone())
    expected = [0.1 + math.sinh(1.0) / 2, 0.15 + math.sinh(0.6) / 2, 0.25 + math.sinh(0.4) / 2]
    assert found.tolist() == pytest.approx(expected)
