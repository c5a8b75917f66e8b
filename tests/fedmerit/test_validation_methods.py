"""CFFL, FedAVE, q-FedAvg, FedCI and ECI against their slow references, and what is particular to each."""

import math

import pytest
import reference_validation as reference
import torch
from hypothesis import given
from rounds import as_numbers, few, make_rounds, outcomes, play, random_rounds

from fedmerit.core import CandidateResults, Candidates, Layout, Reports, SiteView
from fedmerit.methods.cffl import CFFL
from fedmerit.methods.eci import ECI
from fedmerit.methods.fedave import FedAVE, divergence
from fedmerit.methods.fedci import FedCI
from fedmerit.methods.qfedavg import QFedAvg
from fedmerit.methods.registry import METHODS
from fedmerit.vectors import histogram, trained_models


def evaluated(rounds, model, bins=0):
    models, alone = torch.tensor([model], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    return rounds.evaluate(Candidates(models, alone, torch.zeros(1, len(rounds.samples)), bins))


def dice_of(rounds):
    return lambda model: float(evaluated(rounds, model).dice)


def own_losses_of(rounds):
    return lambda site, model: rounds.losses(site, torch.tensor(model, dtype=torch.float64))().tolist()


def given_to(rounds):
    """Where all sites start, their images, their updates."""
    return [0.0] * rounds.updates.shape[2], rounds.samples.tolist(), as_numbers(rounds)


def names_of(pairs):
    return [" ".join(f"{name}={value}" for name, value in options.items()) or "default" for _, options in pairs]


def assert_at_sites(ours, expected, known):
    """(n,) ``ours`` is what the dictionary says of the sites in ``known``, NaN elsewhere."""
    assert {i for i, value in enumerate(ours.tolist()) if not math.isnan(value)} == set(known)
    for i in known:
        assert ours[i].item() == pytest.approx(expected[i], abs=1e-9)


def assert_models(ours, expected):
    assert torch.allclose(ours, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)


# CFFL

CFFL_PAIRS = [
    (CFFL(), {}),
    (CFFL(coef=0.9), {"coef": 0.9}),
    (CFFL(alpha=3.0, clip=0.5, theta=0.4), {"alpha": 3.0, "clip": 0.5, "theta": 0.4}),
    (CFFL(coef=0.8, keep_own=True), {"coef": 0.8, "keep_own": True}),
    (CFFL(reward="global", coef=0.8), {"sparse": False, "coef": 0.8}),
    (
        CFFL(theta=0.5, clip=0.4, alpha=5.0, reputation="released", aggregation="sum", keep_own=True),
        {"theta": 0.5, "clip": 0.4, "alpha": 5.0, "released": True, "aggregation": "sum", "keep_own": True},
    ),
    (
        CFFL(alpha=5.0, alpha_growth=3, coef=0.9, reputation="released", aggregation="mean", keep_own=True),
        {"alpha": 5.0, "growth": 3, "coef": 0.9, "released": True, "aggregation": "mean", "keep_own": True},
    ),
]


@pytest.mark.parametrize(("method", "options"), CFFL_PAIRS, ids=names_of(CFFL_PAIRS))
@given(rounds=random_rounds)
@few
def test_cffl_is_the_reference(method, options, rounds):
    expected = reference.cffl(*given_to(rounds), dice_of(rounds), **options)
    for (reports, outcome), round in zip(play(method, rounds), expected, strict=True):
        present = reports.present.nonzero().flatten().tolist()
        assert_at_sites(outcome.contribution, round["share"], present)
        assert outcome.reputation.tolist() == pytest.approx(round["c"], abs=1e-9)
        assert outcome.quantities["removed"].bool().tolist() == round["removed"]
        assert outcome.weights.tolist() == pytest.approx(round["weights"], abs=1e-9)
        assert_models(outcome.models.expand(len(round["models"]), -1), round["models"])


def with_dice(method, state, dice, updates, samples=None):
    """A round at which all sites are, and the server found these Dice."""
    count = len(dice)
    images = torch.ones(count, dtype=torch.float64) if samples is None else torch.tensor(samples)
    candidates = CandidateResults(torch.tensor(dice, dtype=torch.float64), torch.zeros(count, 0))
    return method.round(state, updates, Reports(images, torch.ones(count, dtype=torch.bool), {}, candidates))


def test_a_site_that_cffl_removed_trains_alone():
    method, updates = CFFL(coef=0.5), torch.ones(3, 4).double()
    state = method.start(torch.zeros(4).double(), 3, Layout.of(4))
    state, outcome = with_dice(method, state, [0.9, 0.8, 0.05], updates)
    assert outcome.quantities["removed"].tolist() == [0, 0, 1]
    assert outcome.reputation[2] == 0
    state, outcome = with_dice(method, state, [0.1, 0.1, 0.9], 2 * updates)  # too late
    assert outcome.weights.tolist() == [0.5, 0.5, 0]
    assert outcome.models[2].tolist() == [3, 3, 3, 3]
    assert outcome.quantities["quota"][2] == 0


def test_cffl_removes_nobody_where_nobody_would_remain():
    method = CFFL(coef=10.0)
    state = method.start(torch.zeros(4), 3, Layout.of(4))
    for _ in range(3):
        state, outcome = with_dice(method, state, [0.9, 0.1, 0.4], torch.ones(3, 4))
        assert not outcome.quantities["removed"].any()


def test_cffl_takes_removed_sites_back_where_only_they_come():
    method = CFFL(coef=0.5)
    state, _ = with_dice(method, method.start(torch.zeros(4), 2, Layout.of(4)), [0.9, 0.01], torch.ones(2, 4))
    assert state.removed.tolist() == [False, True]
    candidates = CandidateResults(torch.tensor([0.1]).double(), torch.zeros(1, 0))
    reports = Reports(torch.ones(2), torch.tensor([False, True]), {}, candidates)
    state, outcome = method.round(state, torch.tensor([[0.0] * 4, [1.0] * 4]), reports)
    assert outcome.weights.tolist() == [0, 1]
    assert not state.removed.any()


def test_released_cffl_expels_all_but_the_best_of_six_near_equal_sites_and_the_resolved_form_does_not():
    """Standalone Dice of six prostate sites as constant scores: the released loop has two stable ends."""
    dice, updates = [0.867, 0.855, 0.862, 0.899, 0.798, 0.910], torch.ones(6, 5)
    remaining = {}
    for name, method in (
        ("released", CFFL(alpha=5.0, reputation="released")),
        ("tamed", CFFL(alpha=4.0, reputation="released")),
        ("resolved", CFFL()),
    ):
        state = method.start(torch.zeros(5), 6, Layout.of(5))
        for _ in range(60):
            state, outcome = with_dice(method, state, dice, updates)
        remaining[name] = int(6 - outcome.quantities["removed"].sum())
    assert remaining == {"released": 1, "tamed": 6, "resolved": 6}


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


# FedAVE

FEDAVE_PAIRS = [
    (FedAVE(), {}),
    (FedAVE(form="paper", tau=0.5), {"form": "paper", "tau": 0.5}),
    (FedAVE(form="released", bins=4), {"form": "released", "bins": 4}),
    (FedAVE(alpha=0.5, beta=3.0), {"alpha": 0.5, "beta": 3.0}),
    (FedAVE(distributions="none"), {"in_score": False, "in_quota": False}),
    (FedAVE(distributions="reputation"), {"in_quota": False}),
    (FedAVE(distributions="quota", form="paper"), {"in_score": False, "form": "paper"}),
]


@pytest.mark.parametrize(("method", "options"), FEDAVE_PAIRS, ids=names_of(FEDAVE_PAIRS))
@given(rounds=random_rounds)
@few
def test_fedave_is_the_reference(method, options, rounds):
    def server_losses(model):
        """One loss amid its bin for each that the server counted there."""
        counts = evaluated(rounds, model, method.bins).losses[0].tolist()
        return [(place + 0.5) / method.bins for place, count in enumerate(counts) for _ in range(int(count))]

    own = own_losses_of(rounds)
    expected = reference.fedave(*given_to(rounds), dice_of(rounds), own, server_losses, **options)
    for (reports, outcome), round in zip(play(method, rounds), expected, strict=True):
        present = reports.present.nonzero().flatten().tolist()
        assert_at_sites(outcome.contribution, round["score"], present)
        assert_at_sites(outcome.quantities["divergence"], round["divergence"], present)
        assert outcome.reputation.tolist() == pytest.approx(round["r"], abs=1e-9)
        assert torch.equal(outcome.weights, reports.data_share)
        assert_models(outcome.models, round["models"])


def test_a_site_reports_its_losses_as_a_histogram():
    losses = torch.tensor([0.0, 0.05, 0.1, 0.99, 1.0])
    view = SiteView(torch.zeros(2), lambda: losses)
    reported = FedAVE(bins=10).report(view)
    assert reported == {f"loss_bin_{b}": {0: 2.0, 1: 1.0, 9: 2.0}.get(b, 0.0) for b in range(10)}
    assert histogram(losses, 1).tolist() == [5]


def test_the_divergence_of_worked_numbers():
    p, q = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64), torch.full((2, 2), 0.5, dtype=torch.float64)
    expected = [0.0, 0.9 * math.log(1.8) + 0.1 * math.log(0.2)]
    assert divergence(p, q).tolist() == pytest.approx(expected, abs=1e-12)


def test_fedave_evaluates_trained_models_then_received_ones():
    method, updates = FedAVE(), torch.arange(1.0, 9.0).view(2, 4)
    state = method.start(torch.ones(4), 2, Layout.of(4))
    candidates = method.candidates(state, updates, Reports(torch.ones(2), torch.tensor([True, True])))
    assert torch.equal((candidates.mixtures @ candidates.models.double())[:2], 1 + updates.double())
    assert torch.equal((candidates.mixtures @ candidates.models.double())[2:], torch.ones(2, 4).double())
    assert candidates.shares.tolist() == [[1, 0], [0, 1], [0, 0], [0, 0]]
    assert candidates.bins == 10


# q-FedAvg


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("rule", ["weights", "exact"])
@given(rounds=random_rounds)
@few
def test_qfedavg_is_the_reference(q, rule, rounds):
    start, _, updates = given_to(rounds)
    method = QFedAvg(q, rule, L=0.5)
    expected = reference.qfedavg(start, updates, own_losses_of(rounds), q=q, exact=rule == "exact", lipschitz=0.5)
    for (reports, outcome), round in zip(play(method, rounds), expected, strict=True):
        present = reports.present.nonzero().flatten().tolist()
        assert_at_sites(outcome.quantities["loss"], round["loss"], present)
        assert_at_sites(outcome.contribution, round["weights"], present)
        assert outcome.weights.tolist() == pytest.approx(round["weights"], abs=1e-9)
        assert_models(outcome.models, round["w_next"])


def test_a_site_without_a_loss_counts_with_the_mean_of_the_others():
    method = QFedAvg()
    state = method.start(torch.zeros(2), 4, Layout.of(2))
    losses = torch.tensor([0.2, math.nan, 0.4, 0.9], dtype=torch.float64)
    reports = Reports(torch.ones(4), torch.tensor([True, True, True, False]), {"loss": losses})
    _, outcome = method.round(state, torch.zeros(4, 2), reports)
    assert outcome.weights.tolist() == pytest.approx([2 / 9, 3 / 9, 4 / 9, 0], abs=1e-9)


def test_a_large_q_finds_the_worst_served_site_without_underflow():
    method = QFedAvg(q=1000.0)
    reports = Reports(torch.ones(2), torch.tensor([True, True]), {"loss": torch.tensor([0.1, 0.2]).double()})
    _, outcome = method.round(method.start(torch.zeros(2), 2, Layout.of(2)), torch.zeros(2, 2), reports)
    assert outcome.weights.tolist() == pytest.approx([0, 1])


# FedCI and ECI


@pytest.mark.parametrize("truncation", [0.0, 0.01])
@given(rounds=random_rounds)
@few
def test_fedci_is_the_reference(truncation, rounds):
    expected = reference.fedci(*given_to(rounds), dice_of(rounds), truncation)
    for (reports, outcome), round in zip(play(FedCI(truncation), rounds), expected, strict=True):
        assert_at_sites(outcome.contribution, round["values"], reports.present.nonzero().flatten().tolist())
        assert outcome.weights.tolist() == pytest.approx(round["weights"], abs=1e-9)
        assert_models(outcome.models, round["w_next"])


@pytest.mark.parametrize("truncation", [0.0, 0.01])
@given(rounds=random_rounds)
@few
def test_eci_is_the_reference(truncation, rounds):
    expected = reference.eci(*given_to(rounds), dice_of(rounds), truncation)
    for (reports, outcome), round in zip(play(ECI(truncation), rounds), expected, strict=True):
        present = reports.present.nonzero().flatten().tolist()
        assert_at_sites(outcome.contribution, round["values"], present)
        assert_at_sites(outcome.quantities["quota"], round["quota"], present)
        assert torch.equal(outcome.weights, reports.data_share)
        assert_models(outcome.models, round["models"])


@pytest.mark.parametrize("method", [FedCI(), ECI()], ids=["fedci", "eci"])
def test_the_shapley_values_of_a_round_sum_to_what_all_gain_over_nobody(method):
    for reports, outcome in play(method, make_rounds(n=5, absences=True)):
        gained = reports.candidates.dice[-1] - reports.candidates.dice[0]
        assert outcome.contribution.nansum().item() == pytest.approx(gained.item(), abs=1e-12)
        assert len(reports.candidates.dice) == 2 ** int(reports.present.sum())


def test_coalitions_are_means_by_images_and_so_are_their_statistics():
    method, updates = FedCI(), torch.tensor([[1.0, 0.0], [9.0, 9.0], [0.0, 4.0]])
    reports = Reports(torch.tensor([10.0, 99.0, 30.0]).double(), torch.tensor([True, False, True]))
    candidates = method.candidates(method.start(torch.ones(2), 3, Layout.of(2)), updates, reports)
    assert (candidates.mixtures @ candidates.models.double()).tolist() == [[1, 1], [2, 1], [1, 5], [1.25, 4]]
    assert candidates.shares.tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 1], [0.25, 0, 0.75]]
    assert candidates.mixtures.sum(dim=1).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("method", [FedCI(), ECI()], ids=["fedci", "eci"])
def test_more_than_twelve_sites_are_refused(method):
    method.start(torch.zeros(2), 12, Layout.of(2))
    with pytest.raises(ValueError, match=r"13 sites.*merge sites"):
        method.start(torch.zeros(2), 13, Layout.of(2))


# All


def test_trained_models_of_one_model_and_of_one_per_site():
    updates, present = torch.arange(6.0).view(3, 2), torch.tensor([True, False, True])
    assert trained_models(torch.ones(2), updates, present).tolist() == [[1, 2], [5, 6]]
    assert trained_models(10 * updates, updates, present).tolist() == [[0, 11], [44, 55]]
    assert updates[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("cffl", {"theta": 0.0}, "theta"),
        ("cffl", {"theta": 1.5}, "theta"),
        ("cffl", {"clip": 0.0}, "clip"),
        ("cffl", {"alpha": 0.0}, "alpha"),
        ("cffl", {"alpha": math.nan}, "alpha"),
        ("cffl", {"alpha_growth": -1}, "alpha_growth"),
        ("cffl", {"coef": -0.1}, "coef"),
        ("cffl", {"reputation": "paper"}, "sinh_first, released"),
        ("cffl", {"aggregation": "median"}, "share, mean, sum"),
        ("cffl", {"reward": "none"}, "sparse, global"),
        ("cffl", {"reward": "global", "keep_own": True}, "keep_own"),
        ("cffl", {"reward": "global", "aggregation": "sum"}, "aggregation"),
        ("fedave", {"tau": 0.0}, "tau"),
        ("fedave", {"alpha": 1.5}, "alpha"),
        ("fedave", {"beta": 0.0}, "beta"),
        ("fedave", {"bins": 0}, "bins"),
        ("fedave", {"smoothing": 0.0}, "smoothing"),
        ("fedave", {"kl_floor": 0.0}, "kl_floor"),
        ("fedave", {"floor": 0.0}, "floor"),
        ("fedave", {"form": "mine"}, "resolved, paper, released"),
        ("fedave", {"mask": "none"}, "global, per_tensor"),
        ("qfedavg", {"q": -1.0}, "q="),
        ("qfedavg", {"L": 0.0}, "L="),
        ("qfedavg", {"rule": "mine"}, "weights, exact"),
        ("fedci", {"truncation": -0.1}, "truncation"),
        ("eci", {"truncation": math.nan}, "truncation"),
    ],
)
def test_unusable_parameters_are_named(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        METHODS[name].method(**parameters)


def test_one_huge_and_one_zero_update_leave_fedave_at_the_huge_ones_scale():
    rounds = make_rounds(n=3)
    rounds.updates[0, 0], rounds.updates[0, 1] = 0.0, rounds.updates[0, 1] * 1e20
    assert outcomes(FedAVE(), rounds)[0].models.isfinite().all()
