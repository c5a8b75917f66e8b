"""Methods that reward with parts of the aggregate, against their slow references; and the verbs they share."""

import math
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import reference_rewards
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from rounds import Rounds, as_numbers, few, make_rounds, outcomes, play, random_rounds

from fedmerit.core import Layout, Reports
from fedmerit.games import shapley
from fedmerit.methods import cgsv
from fedmerit.methods.cgsv import CGSV, cosine_game, sampled_shapley
from fedmerit.methods.data_weighted import DataWeighted
from fedmerit.methods.euclidean import Euclidean, distances_to_sum
from fedmerit.methods.rffl import RFFL
from fedmerit.methods.round_robin import RoundRobin
from fedmerit.vectors import (
    BLOCK,
    cosine_to_sum,
    distances,
    gram,
    keep_largest,
    keep_largest_per_tensor,
    norms_outside,
    quota_counts,
    remember,
    reshare,
    reward,
)


def expected_of(reference, rounds, **parameters):
    start = [0.0] * rounds.updates.shape[2]
    return reference(start, rounds.samples.tolist(), as_numbers(rounds), **parameters)


def assert_equals(outcome, round):
    """Every column that the reference has; a site that sat out has no contribution."""
    assert outcome.weights.tolist() == pytest.approx(round["weights"], abs=1e-9)
    for i, value in enumerate(outcome.contribution.tolist()):
        assert value == pytest.approx(round["contribution"].get(i, math.nan), abs=1e-9, nan_ok=True)
    if "reputation" in round:
        assert outcome.reputation.tolist() == pytest.approx(round["reputation"], abs=1e-9)
    if "quota" in round:
        assert outcome.quantities["quota"].tolist() == pytest.approx(round["quota"], abs=1e-9)
    for model, numbers in zip(outcome.models, round["models"], strict=True):
        assert model.tolist() == pytest.approx(numbers, abs=1e-9)


# The methods against their references


@pytest.mark.parametrize(
    "parameters",
    [{}, {"alpha": 0.5, "beta": 3.0, "gamma": 0.5, "floor": 0.0}, {"beta": 1e7, "floor": 0.1}],
    ids=["default", "paper", "altruistic"],
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


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"coef": 0.9, "warmup": 1},
        {"alpha": 0.1, "coef": 0.99, "warmup": 0, "boost": False},
        {"gamma": 2.0, "coef": 0.9, "warmup": 1, "keep_own": True},
    ],
    ids=["default", "strict", "at once", "keep own"],
)
@given(rounds=random_rounds)
@few
def test_rffl_is_the_reference(parameters, rounds):
    expected = expected_of(reference_rewards.rffl, rounds, **parameters)
    for outcome, round in zip(outcomes(RFFL(**parameters), rounds), expected, strict=True):
        assert_equals(outcome, round)
        assert outcome.quantities["removed"].nonzero().flatten().tolist() == round["removed"]


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


@pytest.mark.parametrize("turns", ["pass", "one"])
@given(rounds=random_rounds)
@few
def test_round_robin_is_the_reference(turns, rounds):
    expected, states = expected_of(reference_rewards.round_robin, rounds, turns=turns), []
    played = play(RoundRobin(turns), rounds, states)
    for (_, outcome), state, round in zip(played, states, expected, strict=True):
        assert_equals(outcome, round)
        assert state.server.tolist() == pytest.approx(round["server"], abs=1e-9)


# CGSV


def unit_products(n, seed=0, common=0.5):
    """(n, n) cosines of n vectors with something in common, and (n,) weights."""
    random = torch.Generator().manual_seed(seed)
    vectors = torch.randn(n, 30, generator=random, dtype=torch.float64)
    vectors = vectors + common * torch.randn(30, generator=random, dtype=torch.float64)
    weights = torch.rand(n, generator=random, dtype=torch.float64)
    return gram(vectors / vectors.norm(dim=1, keepdim=True)), weights / weights.sum()


@pytest.mark.parametrize("n", range(1, 8))
def test_the_cosine_game_is_the_cosine_of_every_coalition(n):
    products, weights = unit_products(n)
    game = cosine_game(products, weights)
    assert len(game) == 2**n
    assert game[0] == 0
    for size in range(1, n + 1):
        for coalition in combinations(range(n), size):
            who = torch.zeros(n, dtype=torch.float64)
            who[list(coalition)] = weights[list(coalition)]
            norms = (who @ products @ who).sqrt() * (weights @ products @ weights).sqrt()
            entry = game[sum(1 << i for i in coalition)]
            assert entry == pytest.approx(float(who @ products @ weights / norms), abs=1e-12)


def test_the_cosine_game_does_not_depend_on_the_norm_of_the_updates():
    products, weights = unit_products(5)
    assert torch.allclose(cosine_game(products * 1e12, weights), cosine_game(products, weights), rtol=0, atol=1e-12)


def test_updates_that_cancel_are_worth_nothing():
    signs = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    weights = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    game = cosine_game(signs[:, None] * signs, weights)
    assert game.tolist() == pytest.approx([0, 1, -1, 0, 1, 1, 1, 1])  # {0, 1} is entry 3
    for weight in (0.1, 0.2, 0.3, 0.7):  # 3 w - w - 2 w leaves rounding
        parts = torch.tensor([3 * weight, weight, 2 * weight, 1.0], dtype=torch.float64)
        signs4 = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
        assert cosine_game(signs4[:, None] * signs4, parts / parts.sum())[7] == 0
        assert (cosine_game(signs4[:3, None] * signs4[:3], parts[:3] / parts[:3].sum()) == 0).all()  # u_N is zero


def test_the_exact_values_of_a_game_sum_to_one_and_nobody_without_weight_has_any():
    products, weights = unit_products(6)
    weights[2] = 0
    values = shapley(cosine_game(products, weights))
    assert values.sum().item() == pytest.approx(1, abs=1e-12)
    assert values[2].item() == pytest.approx(0, abs=1e-12)


def test_sampled_values_agree_with_the_exact_ones_within_their_errors():
    products, weights = unit_products(9)
    exact = shapley(cosine_game(products, weights))
    deviations = []
    for seed in range(60):
        values, errors = sampled_shapley(products, weights, 400, torch.Generator().manual_seed(seed))
        assert values.sum().item() == pytest.approx(1, abs=1e-12)
        assert (errors > 0).all()
        deviations.append((values - exact) / errors)
    deviations = torch.stack(deviations)  # of 540 normal numbers
    assert 0.9 < deviations.std() < 1.1
    assert deviations.mean().abs() < 0.15


def test_sampling_follows_its_seed():
    products, weights = unit_products(5)
    first, again, other = (
        sampled_shapley(products, weights, 10, torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_site_alone_has_the_whole_game_with_no_error():
    values, errors = sampled_shapley(torch.ones(1, 1).double(), torch.ones(1), 10, torch.Generator())
    assert values.tolist() == [1]
    assert errors.tolist() == [0]


def test_beyond_the_exact_sites_permutations_are_sampled(monkeypatch):
    rounds = make_rounds(n=6, absences=True, dtype=torch.float64)
    exact = outcomes(CGSV(contribution="exact"), rounds)[0]
    monkeypatch.setattr(cgsv, "EXACT_SITES", 1)
    sampled, again = (outcomes(CGSV(contribution="exact", permutations=4000), rounds) for _ in range(2))
    here = rounds.present[0]
    errors = sampled[0].quantities["standard_error"]
    assert (errors[here] > 0).all()
    assert (errors[~here] == 0).all()
    assert ((sampled[0].contribution - exact.contribution)[here].abs() < 4.5 * errors[here]).all()
    for ours, theirs in zip(sampled, again, strict=True):
        assert torch.equal(ours.models, theirs.models)


def test_every_round_samples_permutations_of_its_own(monkeypatch):
    monkeypatch.setattr(cgsv, "EXACT_SITES", 1)
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


@pytest.mark.parametrize("method", [CGSV(), CGSV(contribution="exact"), RFFL(), RFFL(keep_own=True)])
def test_absent_sites_keep_reputation_and_model(method):
    rounds = make_rounds(n=5, rounds=6, absences=True)
    before = None
    for reports, outcome in play(method, rounds):
        if before is not None:
            absent = ~reports.present
            assert torch.equal(outcome.reputation[absent], before.reputation[absent])
            assert torch.equal(outcome.models[absent], before.models[absent])
            assert (outcome.quantities["quota"][absent] == 0).all()
        before = outcome


@pytest.mark.parametrize("method", [CGSV(), RFFL()])
def test_newcomers_alone_start_by_sample_shares(method):
    rounds = make_rounds(rounds=3, dtype=torch.float64)
    present = torch.tensor([[True, True, False, False], [False, False, True, True], [True, True, True, True]])
    rounds = Rounds(rounds.samples, rounds.updates * present[:, :, None], present, rounds.centres)
    first, second, third = outcomes(method, rounds)
    assert torch.allclose(second.weights[2:], rounds.samples[2:] / rounds.samples[2:].sum())
    assert torch.equal(second.reputation[:2], first.reputation[:2])
    assert third.reputation.sum().item() == pytest.approx(1, abs=1e-12)


# RFFL


def opposed(rounds=4, n=4, d=10):
    """Rounds in which the last site uploads the opposite of what the others have in common."""
    made = make_rounds(n=n, d=d, rounds=rounds, dtype=torch.float64)
    random = torch.Generator().manual_seed(5)
    common = torch.randn(rounds, 1, d, generator=random, dtype=torch.float64)
    updates = common + 0.1 * made.updates
    updates[:, -1] *= -1
    return Rounds(torch.ones(n, dtype=torch.float64), updates, made.present, made.centres)


@pytest.mark.parametrize("warmup", [0, 2])
def test_an_opposed_site_is_removed_after_the_warmup_and_trains_on_alone(warmup):
    rounds = opposed()
    model = torch.zeros(10, dtype=torch.float64)
    for number, outcome in enumerate(outcomes(RFFL(warmup=warmup), rounds)):
        removed = number >= warmup
        assert outcome.quantities["removed"].tolist() == [0, 0, 0, removed]
        if removed:
            model = model + rounds.updates[number, 3]
            assert outcome.reputation[3] == 0
        if number > warmup:
            assert outcome.weights[3] == 0
        assert outcome.quantities["quota"][3] == 0
        assert torch.allclose(outcome.models[3], model, rtol=0, atol=1e-12)
        assert outcome.contribution[3] < 0
        assert outcome.reputation.sum().item() == pytest.approx(1, abs=1e-12)


def test_the_warmup_counts_the_rounds_of_each_site():
    """A site that comes late is not judged by its first round."""
    rounds = opposed()
    rounds.present[:2, 3] = False
    rounds.updates[:2, 3] = 0
    removed = [outcome.quantities["removed"][3].item() for outcome in outcomes(RFFL(warmup=1), rounds)]
    assert removed == [0, 0, 0, 1]


def test_where_only_removed_sites_come_nobody_is_rewarded():
    rounds = opposed()
    rounds.present[2, :3] = False
    rounds.updates[2, :3] = 0
    before, outcome, after = outcomes(RFFL(warmup=0), rounds)[1:]
    assert outcome.weights.tolist() == [0, 0, 0, 1]
    assert torch.equal(outcome.reputation, before.reputation)
    assert torch.equal(outcome.models[:3], before.models[:3])
    assert torch.allclose(outcome.models[3], before.models[3] + rounds.updates[2, 3], rtol=0, atol=1e-12)
    assert after.weights[3] == 0


def test_one_of_the_sites_present_always_stays():
    rounds = make_rounds(n=5, rounds=6, absences=True)
    for outcome in outcomes(RFFL(alpha=0.0, coef=0.99, warmup=0), rounds):
        assert (outcome.quantities["removed"] < 1).any()
        assert outcome.weights.sum().item() == pytest.approx(1, abs=1e-12)


def test_rffl_clips_long_updates_alone():
    rounds = make_rounds(n=1, dtype=torch.float64)
    update = rounds.updates[0, 0]
    for gamma, size in ((0.5, 0.5), (1e6, update.norm())):
        model = outcomes(RFFL(gamma=gamma), rounds)[0].models[0]
        assert torch.allclose(model, update / update.norm() * size, rtol=0, atol=1e-12)


def test_without_the_clamp_a_negative_reputation_is_a_negative_weight():
    first, second = outcomes(RFFL(clamp=False, boost=False), opposed(rounds=2))
    assert first.reputation[3] < 0
    assert torch.allclose(second.weights, first.reputation)
    assert (second.quantities["quota"] >= 0).all()


# The baselines


def test_identical_updates_have_no_distance_to_their_sum():
    """In exact arithmetic; rounding would decide who downloads more."""
    weights = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    for seed in range(10):
        updates = make_rounds(seed, n=1, d=3000).updates[0].repeat(3, 1)
        assert distances_to_sum(gram(updates), weights).tolist() == [0, 0, 0]
    outcome = outcomes(Euclidean(), make_rounds(n=1).of_sites(torch.zeros(3, dtype=torch.long)))[0]
    assert outcome.quantities["quota"].tolist() == pytest.approx([1, 1, 1], abs=1e-12)


def test_distances_are_those_of_the_vectors():
    updates = make_rounds(n=4, d=20, dtype=torch.float64).updates[0]
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    expected = (updates - weights @ updates).norm(dim=1)
    assert torch.allclose(distances_to_sum(gram(updates), weights), expected, rtol=0, atol=1e-12)


def test_one_download_per_round_goes_around():
    states = []
    play(RoundRobin(turns="one"), make_rounds(n=3, rounds=6), states)
    assert [int(state.served.argmax()) for state in states] == [0, 1, 2, 0, 1, 2]


# Parameters


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (CGSV, {"contribution": "loo"}),
        (CGSV, {"reward": "dense"}),
        (CGSV, {"mask": "random"}),
        (CGSV, {"alpha": 1.1}),
        (CGSV, {"alpha": math.nan}),
        (CGSV, {"beta": 0.0}),
        (CGSV, {"beta": math.inf}),
        (CGSV, {"gamma": 0.0}),
        (CGSV, {"gamma": math.nan}),
        (CGSV, {"floor": -1e-3}),
        (CGSV, {"permutations": 1}),
        (RFFL, {"mask": "random"}),
        (RFFL, {"alpha": -0.1}),
        (RFFL, {"gamma": -1.0}),
        (RFFL, {"coef": 1.0}),
        (RFFL, {"coef": math.nan}),
        (RFFL, {"warmup": -1}),
        (DataWeighted, {"ratio": "sum"}),
        (RoundRobin, {"turns": "two"}),
    ],
)
def test_parameters_out_of_range_are_refused(method, parameters):
    (name,) = parameters
    with pytest.raises(ValueError, match=f"^{name}=.*: expected"):
        replace(method(), **parameters)


# The verbs of core


vectors = st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.5]), min_size=1, max_size=12)


@given(vector=vectors, counts=st.lists(st.integers(0, 12), max_size=4))
@few
def test_keep_largest_takes_the_largest_magnitudes_ties_to_the_lower_index(vector, counts):
    counts = [min(count, len(vector)) for count in counts]
    masks = keep_largest(torch.tensor(vector), counts)
    assert masks.shape == (len(counts), len(vector))
    assert masks.dtype == torch.bool
    for mask, count in zip(masks, counts, strict=True):
        assert mask.nonzero().flatten().tolist() == reference_rewards.largest(vector, count)


def test_keep_largest_of_many_entries():
    vector = torch.randn(10_001, generator=torch.Generator().manual_seed(0))
    vector[5000:] = vector[:5001].flip(0)  # every magnitude twice
    counts = [0, 1, 4999, 5000, 10_000, 10_001]
    kept = vector.clone()
    for mask, count in zip(keep_largest(vector, counts), counts, strict=True):
        assert mask.nonzero().flatten().tolist() == reference_rewards.largest(vector.tolist(), count)
    assert torch.equal(vector, kept)


@given(
    vector=vectors,
    quotas=st.lists(st.sampled_from([0.0, 1e-6, 0.02, 0.3, 0.5, 0.9, 1.0]), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 11), max_size=3),
)
@example(vector=[1.0, 2.0, 3.0], quotas=[1.0, 0.0, 0.01], cuts=[1])  # a tensor of one element
@few
def test_keep_largest_per_tensor_is_the_released_rule(vector, quotas, cuts):
    places = sorted({cut for cut in cuts if cut < len(vector)} | {0, len(vector)})
    sizes = [stop - start for start, stop in pairwise(places)]
    masks = keep_largest_per_tensor(torch.tensor(vector), torch.tensor(quotas, dtype=torch.float64), sizes)
    for mask, quota in zip(masks, quotas, strict=True):
        assert mask.nonzero().flatten().tolist() == reference_rewards.largest_per_tensor(vector, quota, sizes)


def test_quota_counts_are_floors_that_forgive_rounding():
    quotas = torch.tensor([0.0, 0.29999999999999999, 0.1 + 0.2, 0.35, 0.999, 1.0, -0.5], dtype=torch.float64)
    assert quota_counts(quotas, 10) == [0, 3, 3, 3, 9, 10, 0]
    assert quota_counts(torch.tensor([0.7 * (1 - 1e-16), 1 + 1e-12], dtype=torch.float64), 10) == [7, 10]
    assert quota_counts(torch.tensor([0.5]), 1) == [0]


@given(utilities=st.integers(1, 5).flatmap(lambda n: st.lists(st.floats(-10, 10), min_size=2**n, max_size=2**n)))
@few
def test_shapley_is_the_mean_over_all_orders(utilities):
    utilities = [0.0, *utilities[1:]]
    n = len(utilities).bit_length() - 1
    expected = reference_rewards.by_orders(n, lambda who: utilities[sum(1 << i for i in who)])
    values = shapley(torch.tensor(utilities, dtype=torch.float64))
    assert values.tolist() == pytest.approx(expected, abs=1e-9)
    assert values.sum().item() == pytest.approx(utilities[-1], abs=1e-9)


def test_shapley_takes_what_nobody_is_worth_off():
    assert shapley(torch.tensor([2.0, 5.0], dtype=torch.float64)).tolist() == [3]


def test_shapley_of_an_additive_game_is_what_each_brings():
    worth = torch.tensor([1.0, -2.0, 0.5, 4.0], dtype=torch.float64)
    utilities = torch.zeros(1, dtype=torch.float64)
    for value in worth:
        utilities = torch.cat([utilities, utilities + value])
    assert shapley(utilities).tolist() == pytest.approx(worth.tolist(), abs=1e-12)


def test_remember_mixes_past_and_present_and_keeps_what_absent_sites_have():
    memory, now = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([5.0, 6.0, math.nan]).double()
    present = torch.tensor([True, True, False])
    assert remember(memory, now, 0.75, present).tolist() == [2, 3, 3]


def test_reshare_divides_what_the_present_sites_held():
    memory, amounts = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([3.0, 1.0, math.nan]).double()
    present = torch.tensor([True, True, False])
    assert reshare(memory, amounts, present).tolist() == pytest.approx([0.6, 0.2, 0.2])
    assert reshare(memory, torch.zeros(3), present).tolist() == pytest.approx([0.4, 0.4, 0.2])
    assert reshare(torch.zeros(3).double(), amounts, present).tolist() == pytest.approx([0.75, 0.25, 0])
    newcomers_were_alone = torch.tensor([1.0, 1.0, 0.0]).double()
    assert reshare(newcomers_were_alone, amounts, present).tolist() == pytest.approx([0.75, 0.25, 0])


def test_reward_adds_the_quota_of_an_update():
    models = torch.tensor([[1.0, 1.0, 1.0, 1.0]] * 3)
    update, quotas = torch.tensor([0.1, -4.0, 2.0, 0.3]), torch.tensor([0.0, 0.5, 1.0])
    expected = torch.tensor([[1, 1, 1, 1], [1, -3, 3, 1], [1.1, -3, 3, 1.3]])
    assert torch.allclose(reward(models, update, quotas), expected)
    per_tensor = torch.tensor([[1, 1, 1, 1], [1.1, -3, 3, 1], [1.1, -3, 3, 1]])
    assert torch.allclose(reward(models, update, quotas, [1, 3]), per_tensor)
    assert (models == 1).all()


@pytest.mark.parametrize("size", [7, BLOCK + 3])
def test_distances_and_what_masks_leave_out(size):
    random = torch.Generator().manual_seed(size)
    vectors, point = torch.randn(3, size, generator=random), torch.randn(size, generator=random)
    assert torch.allclose(distances(vectors, point), (vectors.double() - point.double()).norm(dim=1), rtol=1e-12)
    masks = torch.rand(3, size, generator=random) < 0.5
    masks[0] = True
    left_out = (point.double() * ~masks).norm(dim=1)
    assert torch.allclose(norms_outside(point, masks), left_out, rtol=1e-12)
    assert norms_outside(point, masks)[0] == 0


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
        best = int(found["quota"].where(present, -1.0).argmax())
        if mask == "global":
            assert found["reward_distance"][best] == 0
            assert torch.allclose(downloads[best], u_N, atol=1e-5)
        before, server = outcome.models, state.server


def test_cosine_to_sum_is_the_cosine_with_the_weighted_sum():
    updates = torch.randn(5, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = torch.tensor([0.5, 0.2, 0.2, 0.1, 0.0], dtype=torch.float64)
    total = weights @ updates
    expected = updates @ total / (updates.norm(dim=1) * total.norm())
    assert torch.allclose(cosine_to_sum(gram(updates), weights), expected, rtol=0, atol=1e-12)


def test_cosine_to_sum_is_zero_where_a_vector_is_zero_and_stays_within_one():
    updates = torch.tensor([[0.0, 0.0], [0.1, 0.3]])
    assert cosine_to_sum(gram(updates), torch.tensor([0.5, 0.5])).tolist() == pytest.approx([0, 1])
    assert cosine_to_sum(gram(updates), torch.tensor([1.0, 0.0])).tolist() == [0, 0]
    parallel = torch.randn(1, 1000, generator=torch.Generator().manual_seed(2)) * torch.tensor([[1.0], [3.0], [-1.0]])
    assert cosine_to_sum(gram(parallel), torch.ones(3)).abs().max() <= 1


@pytest.mark.parametrize("method", [CGSV(), CGSV(contribution="exact"), RFFL(), DataWeighted(), Euclidean()])
def test_a_round_in_which_nobody_moved_changes_no_model(method):
    state = method.start(torch.arange(5.0), 3, Layout.of(5))
    reports = Reports(torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([True, True, True]))
    _, outcome = method.round(state, torch.zeros(3, 5), reports)
    assert torch.equal(outcome.models, torch.arange(5.0).repeat(3, 1))
    assert outcome.contribution.isfinite().all()
