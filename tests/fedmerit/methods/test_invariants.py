"""What holds for every method, each with its defaults and with what takes another way through its code."""

import io
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from rounds import (
    SOONER,
    Rounds,
    allocated,
    assert_same,
    beside,
    candidates_of,
    columns,
    layout,
    make_rounds,
    outcomes,
    play,
    said_of_peers,
)

from fedmerit.contract.method import Layout, Reports
from fedmerit.methods.fedavg import FedAdam, FedAvgM
from fedmerit.methods.registry import METHODS, build_method

NAN = math.nan
OTHER_WAYS = [
    ("fedce", {"error": "relative"}),
    ("fedce_nvflare", {"error": "relative"}),
    ("cycle", {"score": "agreement", "warmup": 0, "R": 2}),
    ("cycle", {"warmup_by": "fedavg", "warmup": 1, "R": 2}),
    ("cffl", {"coef": 0.9}),  # removals
    ("cffl_released", {"theta": 0.6, "clip": 0.5, "aggregation": "sum"}),
    ("cffl_released", {"alpha": 4.0, "alpha_growth": 3, "keep_own": False, "coef": 0.9}),
    ("cffl", {"reward": "global"}),
    ("fedave", {"tau": 0.5, "form": "paper", "bins": 5}),
    ("fedave", {"form": "released", "kl_floor": 1e-3}),
    ("fedave", {"clip": 1e-3, "unrewarded": "nothing"}),
    ("eci", {"unrewarded": "nothing"}),
    ("qfedavg", {"q": 2.0, "L": 1e-3}),
    ("fedsac", {"standalone_rounds": 1, "beta": 2.0, "importance_interval": 1, "aggregation": "share"}),
    ("fedsac", {"standalone_rounds": 2, "beta": 20.0, "importance": "equal", "aggregation": "plain"}),
    ("cgsv", {"contribution": "exact"}),
    ("cgsv", {"reward": "global"}),
    ("cgsv", {"alpha": 0.5, "beta": 3.0, "gamma": 0.5, "mask": "per_tensor"}),
    ("rffl", {"gamma": 0.5, "coef": 0.9, "warmup": 0, "form": "released"}),
    ("rr", {"turns": "one"}),
    ("shapfed", {"contribution": "exact", "mu": 0.5}),
    ("shapfed", {"reward": "global"}),
    ("trimmed", {"beta": 0.4}),
    ("krum", {"m": 2}),
    ("fedmgda", {"epsilon": 1.0, "eta": 0.5}),
    ("fedfv", {"alpha": 0.0, "tau": 3}),
]
EVERY = [(name, SOONER.get(name, {})) for name in METHODS] + OTHER_WAYS
OWN_STEPS = (FedAvgM, FedAdam)  # the server's step is none of the sites'
METHOD_OF = {
    " ".join([name, *(f"{key}={value}" for key, value in given.items())]): (name, given) for name, given in EVERY
}


PLAIN = list(METHOD_OF)[: len(METHODS)]  # with their defaults


def ways(without: str = "") -> list[Any]:
    """Every method with its defaults, and under `make test-all` the other ways through it."""
    chosen = [text for text, (name, _) in METHOD_OF.items() if name != without]
    return [pytest.param(text, marks=() if text in PLAIN else pytest.mark.slow) for text in chosen]


@pytest.fixture(params=ways())
def method(request):
    name, given = METHOD_OF[request.param]
    return build_method(name, given)


@pytest.fixture(params=ways(without="rr"))
def fair(request):
    """Those that treat equals alike: where sites take turns, the later one downloads more."""
    name, given = METHOD_OF[request.param]
    return build_method(name, given)


@pytest.mark.parametrize(("n", "d", "absences"), [(2, 1, False), (4, 12, True)])
def test_weights_sum_to_one_and_shapes_are_those_of_the_contract(method, n, d, absences):
    for reports, outcome in play(method, make_rounds(n=n, d=d, absences=absences)):
        assert outcome.weights.sum().item() == pytest.approx(1, abs=1e-12)
        assert (outcome.weights >= 0).all()
        assert (outcome.weights[~reports.present] == 0).all()
        assert outcome.models.shape in ((d,), (n, d))
        assert outcome.models.isfinite().all()
        assert outcome.models.dtype == torch.float32
        assert outcome.statistics in ("models", "shared", "own", "initial")
        assert (outcome.statistics == "own") == method.own_statistics
        assert method.has_site_models or outcome.models.ndim == 1
        for name in ("contribution", "reputation", "weights"):
            assert getattr(outcome, name).shape == (n,)
        assert outcome.contribution[~reports.present].isnan().all()
        assert outcome.reputation.isfinite().all()
        for value in outcome.quantities.values():
            assert value.shape == (n,)
        for value in outcome.pairs.values():
            assert value.shape == (n, n)


def test_what_sites_report_is_what_the_method_asks_within_its_range(method):
    for number, (reports, _) in enumerate(play(method, make_rounds())):
        assert set(reports.values) == set(method.asks)
        for name, values in reports.values.items():
            low, high = method.asks[name]
            assert (values.isnan() | ((values >= low) & (values <= high))).all()
            assert number == 0 or values.isfinite().all()


def test_the_order_of_sites_does_not_matter(fair):
    rounds = make_rounds(absences=True)
    order = torch.tensor([2, 0, 3, 1])
    for ours, theirs in zip(outcomes(fair, rounds), outcomes(fair, rounds.of_sites(order)), strict=True):
        assert_same({name: value[order] for name, value in columns(ours).items()}, columns(theirs), atol=1e-6)
        assert_same({name: value[order][:, order] for name, value in ours.pairs.items()}, theirs.pairs, atol=1e-6)
        assert torch.allclose(ours.weights[order], theirs.weights, rtol=0, atol=1e-9)
        if ours.models.ndim == 1:
            assert torch.allclose(ours.models, theirs.models, rtol=0, atol=1e-5)


def test_identical_sites_are_treated_alike(fair):
    rounds = make_rounds().of_sites(torch.tensor([0, 1, 1, 2]))
    for outcome in outcomes(fair, rounds):
        for name, value in columns(outcome).items():
            assert torch.allclose(value[1], value[2], rtol=0, atol=1e-9, equal_nan=True), name


def test_a_round_changes_none_of_its_inputs(method):
    rounds = make_rounds(absences=True)
    states = []
    for number, (reports, _) in enumerate(play(method, rounds, states)):
        if not number:
            continue
        state, updates = states[number - 1], rounds.updates[number]
        given = {
            **vars(state), **reports.values, **reports.pairs, **reports.vectors, "n": reports.num_samples,
            "p": reports.present, "u": updates
        }  # fmt: skip
        kept = {name: value.clone() for name, value in given.items()}
        method.round(state, updates, reports)
        assert_same(given, kept)
    model = torch.ones(3)
    state, updates = method.start(model, 2, Layout.of(len(model))), torch.ones(2, 3)
    here = torch.ones(2, dtype=torch.bool)
    values = {name: torch.full((2,), NAN, dtype=torch.float64) for name in method.asks}
    pairs = said_of_peers(method, state, updates, here, here)
    reports = Reports(torch.ones(2), here, values, pairs=pairs, vectors=beside(method, updates))
    candidates = make_rounds(n=2, d=3).evaluate(candidates_of(method, state, updates, reports))
    method.round(state, updates, replace(reports, candidates=candidates))
    assert model.tolist() == [1, 1, 1]
    assert (updates == 1).all()


def test_a_saved_and_loaded_state_continues_bit_for_bit(method):
    rounds, states = make_rounds(absences=True), []
    d = rounds.updates.shape[2]
    for number, (reports, outcome) in enumerate(play(method, rounds, states)):
        before = states[number - 1] if number else method.start(torch.zeros(d), 4, layout(d))
        file = io.BytesIO()
        torch.save(vars(before), file)
        file.seek(0)
        loaded = type(before)(**torch.load(file, weights_only=True))
        state, again = method.round(loaded, rounds.updates[number], reports)
        assert_same(columns(again), columns(outcome))
        assert torch.equal(again.models, outcome.models)
        state, _ = allocated(method, state, again.models)
        assert_same(vars(state), vars(states[number]))


def assert_same_candidates(ours, theirs):
    assert (ours is None) == (theirs is None)
    if ours is not None:
        assert ours.bins == theirs.bins
        assert all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in ("models", "mixtures", "shares"))


def test_what_an_absent_site_says_does_not_matter(method):
    """A row that is not present may hold anything: zero, NaN, the numbers of a rejected reply."""
    rounds, states = make_rounds(absences=True), []
    for number, (reports, outcome) in enumerate(play(method, rounds, states)):
        if not number or reports.present.all():
            continue
        state, updates = states[number - 1], rounds.updates[number]
        for junk in (0.0, NAN, math.inf, -1e30, 0.5):
            values = {name: value.where(reports.present, junk) for name, value in reports.values.items()}
            samples = reports.num_samples.where(reports.present, junk)
            pairs = {name: value.where(reports.present[:, None], junk) for name, value in reports.pairs.items()}
            spoilt = replace(reports, num_samples=samples, values=values, pairs=pairs)
            assert_same_candidates(
                candidates_of(method, state, updates, spoilt), candidates_of(method, state, updates, reports)
            )
            _, again = method.round(state, updates, spoilt)
            present = {name: value[reports.present] for name, value in columns(outcome).items()}
            assert_same({n: v[reports.present] for n, v in columns(again).items()}, present)
            assert (again.weights[~reports.present] == 0).all()
            assert torch.equal(again.models, outcome.models)


def test_a_site_that_never_comes_leaves_the_run_as_it_is_without_it(method):
    rounds = make_rounds(n=5)
    here = torch.tensor([True, True, False, True, True])
    absent = Rounds(rounds.samples, rounds.updates * here[:, None], rounds.present & here, rounds.centres)
    without = rounds.of_sites(here.nonzero().flatten())
    for ours, theirs in zip(outcomes(method, absent), outcomes(method, without), strict=True):
        assert ours.weights[2] == 0
        assert_same({name: value[here] for name, value in columns(ours).items()}, columns(theirs), atol=1e-6)
        if ours.models.ndim == 1:
            assert torch.allclose(ours.models, theirs.models, rtol=0, atol=1e-6)


def test_a_single_site(method):
    rounds = make_rounds(n=1)
    model = torch.zeros(rounds.updates.shape[2])
    for number, outcome in enumerate(outcomes(method, rounds)):
        model = model + rounds.updates[number, 0]
        assert outcome.weights.tolist() == [1]
        if method == type(method)() and not isinstance(method, OWN_STEPS):  # others may scale, cut or prune its update
            assert torch.allclose(outcome.models, model, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_updates_of_any_size_give_finite_results(method, scale):
    rounds = make_rounds()
    rounds = Rounds(rounds.samples, rounds.updates * scale, rounds.present, rounds.centres)
    for number, (reports, outcome) in enumerate(play(method, rounds)):
        assert outcome.models.isfinite().all()
        assert outcome.weights.isfinite().all()
        assert outcome.weights.sum().item() == pytest.approx(1, abs=1e-12)
        assert outcome.reputation.isfinite().all()
        if number:
            assert outcome.contribution.isfinite().all()
            assert all(value.isfinite().all() for value in reports.values.values())


def test_one_huge_update_among_ordinary_ones_is_finite(method):
    rounds = make_rounds()
    rounds.updates[1, 0] *= 1e30
    for outcome in outcomes(method, rounds):
        assert outcome.models.isfinite().all()
        assert outcome.weights.isfinite().all()


# Sites that start from another model than the method gave them


def restarted(method, change):
    """A round of all sites after one: unchanged, and where ``change`` (n, d) was added to what they start from."""
    rounds, states = make_rounds(rounds=2), []
    (_, first), (reports, _) = play(method, rounds, states)
    state, models = states[0], first.models.expand(4, -1)
    return rounds.updates[1], reports, state, method.restart_from(state, models + change), models


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_one_model_for_all_leaves_its_state_as_it_is(name):
    method = build_method(name, SOONER.get(name, {}))
    *_, before, after, _ = restarted(method, torch.ones(4, 12))
    assert (after is before) != method.has_site_models


@pytest.mark.parametrize("name", ["standalone", "cgsv", "rffl", "dw", "eu", "cffl", "fedave", "eci", "cycle", "vpdl"])
def test_a_site_that_started_elsewhere_continues_from_there_and_the_others_as_before(name):
    method, change = build_method(name, SOONER.get(name, {})), torch.zeros(4, 12)
    change[1] = 3.0
    updates, reports, before, after, models = restarted(method, change)
    _, expected = method.round(before, updates, reports)
    _, outcome = method.round(after, updates, reports)
    assert torch.allclose(outcome.models, expected.models + change, atol=1e-6)
    assert torch.equal(outcome.weights, expected.weights)
    if name in ("cffl", "fedave"):  # what it trained is rated
        rated = method.candidates(after, updates, reports).models
        assert torch.allclose(rated[1], models[1] + 3 + updates[1], atol=1e-6)


# Methods that give each site its own share of an aggregate


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("cgsv", {}), ("cgsv", {"contribution": "exact"}), ("rffl", {}), ("rffl", {"form": "released"})],
)
def test_absent_sites_keep_reputation_and_model(name, parameters):
    rounds = make_rounds(n=5, rounds=6, absences=True)
    before = None
    for reports, outcome in play(build_method(name, parameters), rounds):
        if before is not None:
            absent = ~reports.present
            assert torch.equal(outcome.reputation[absent], before.reputation[absent])
            assert torch.equal(outcome.models[absent], before.models[absent])
            assert (outcome.quantities["quota"][absent] == 0).all()
        before = outcome


@pytest.mark.parametrize("name", ["cgsv", "rffl"])
def test_newcomers_only_start_by_sample_shares(name):
    rounds = make_rounds(rounds=3, dtype=torch.float64)
    present = torch.tensor([[True, True, False, False], [False, False, True, True], [True, True, True, True]])
    rounds = Rounds(rounds.samples, rounds.updates * present[:, :, None], present, rounds.centres)
    first, second, third = outcomes(build_method(name, {}), rounds)
    assert torch.allclose(second.weights[2:], rounds.samples[2:] / rounds.samples[2:].sum())
    assert torch.equal(second.reputation[:2], first.reputation[:2])
    assert third.reputation.sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "parameters"), [("cgsv", {}), ("cgsv", {"contribution": "exact"}), ("rffl", {}), ("dw", {}), ("eu", {})]
)
def test_a_round_in_which_nobody_moved_changes_no_model(name, parameters):
    method = build_method(name, parameters)
    state = method.start(torch.arange(5.0), 3, Layout.of(5))
    reports = Reports(torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([True, True, True]))
    _, outcome = method.round(state, torch.zeros(3, 5), reports)
    assert torch.equal(outcome.models, torch.arange(5.0).repeat(3, 1))
    assert outcome.contribution.isfinite().all()
