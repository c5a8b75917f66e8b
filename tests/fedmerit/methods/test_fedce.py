import math
from dataclasses import replace

import pytest
import reference
import torch
from hypothesis import given
from rounds import as_numbers, few, make_rounds, outcomes, play, random_rounds

from fedmerit.contract.capabilities import OwnUpdate
from fedmerit.contract.method import Layout, Reports, SiteView
from fedmerit.methods.fedce import CLAIM_TOLERANCE, FedCE, cosine_to_others_mean
from fedmerit.methods.registry import build_method

NAN = math.nan


def reports(cosine, minus_error, samples=None, present=None):
    n = len(cosine)
    return Reports(
        torch.ones(n, dtype=torch.float64) if samples is None else torch.tensor(samples, dtype=torch.float64),
        torch.ones(n, dtype=torch.bool) if present is None else torch.tensor(present),
        {
            "cosine": torch.as_tensor(cosine, dtype=torch.float64),
            "minus_error": torch.tensor(minus_error, dtype=torch.float64),
        },
    )


def updates_of(seed, n=4, d=50):
    """(n, d) float32 with something in common."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=random) + torch.randn(d, generator=random)


def measure(method, model, previous, trained, weight, dice):
    """What a site that holds ``model`` reports; FedCE asks for no training losses."""
    return method.measure(SiteView(model, lambda: torch.zeros(1)), OwnUpdate(previous, trained, weight, dice))


def after_round_0(method, n=4, d=50):
    unknown = [NAN] * n
    return method.round(method.start(torch.zeros(d), n, Layout.of(d)), updates_of(0, n, d), reports(unknown, unknown))[
        0
    ]


ERRORS = [0.2, 0.3, 0.4, 0.5]


@pytest.mark.parametrize("combine", ["times", "plus"])
@pytest.mark.parametrize("claim", [-1.0, 1.0, 0.0])
def test_a_false_cosine_is_flagged_and_gains_nothing(combine, claim):
    method = FedCE(combine)
    state = after_round_0(method)
    honest = method.round(state, updates_of(1), reports(state.cosine, ERRORS))[1]
    assert not honest.quantities["flagged"].any()
    said = state.cosine.clone()
    said[2] = claim
    liar = method.round(state, updates_of(1), reports(said, ERRORS))[1]
    assert liar.quantities["flagged"].tolist() == [0, 0, 1, 0]
    assert torch.equal(liar.weights, honest.weights)
    assert torch.equal(liar.models, honest.models)
    assert torch.equal(liar.contribution, honest.contribution)


@pytest.mark.parametrize("spread", [0.02, 0.2, 1.0])
def test_a_lie_too_small_to_be_flagged_gains_nothing(spread):
    """Updates (4, 50) around a common one: with little spread, 1 - cosine is as small as what passes unflagged."""
    method = FedCE()
    random = torch.Generator().manual_seed(0)
    updates = torch.randn(50, generator=random) + spread * torch.randn(4, 50, generator=random)
    unknown = [NAN] * 4
    state, _ = method.round(method.start(torch.zeros(50), 4, Layout.of(50)), updates, reports(unknown, unknown))
    said = state.cosine.clone()
    said[2] -= 0.99 * CLAIM_TOLERANCE
    honest = method.round(state, updates, reports(state.cosine, ERRORS))[1]
    liar = method.round(state, updates, reports(said, ERRORS))[1]
    assert not liar.quantities["flagged"].any()
    assert liar.weights[2] - honest.weights[2] < 1e-9


def test_everybody_lying_is_everybody_honest():
    method = FedCE()
    state = after_round_0(method)
    honest = method.round(state, updates_of(1), reports(state.cosine, ERRORS))[1]
    liars = method.round(state, updates_of(1), reports([-1.0] * 4, ERRORS))[1]
    assert liars.quantities["flagged"].tolist() == [1, 1, 1, 1]
    assert torch.equal(liars.weights, honest.weights)


def test_a_site_that_sends_no_cosine_is_given_the_servers_and_not_flagged():
    method = FedCE()
    state = after_round_0(method)
    honest = method.round(state, updates_of(1), reports(state.cosine, ERRORS))[1]
    silent = method.round(state, updates_of(1), reports([NAN] * 4, ERRORS))[1]
    assert not silent.quantities["flagged"].any()
    assert torch.equal(silent.weights, honest.weights)


def test_the_cosine_a_float32_site_finds_is_not_flagged():
    """Small updates on large weights, (3, 10000): the models are float32, and so is what the site knows of them."""
    method, random = FedCE(), torch.Generator().manual_seed(0)
    model = torch.randn(10_000, generator=random)
    trained = model + 1e-3 * (torch.randn(10_000, generator=random) + torch.randn(3, 10_000, generator=random))
    unknown = [NAN] * 3
    state, outcome = method.round(
        method.start(model, 3, Layout.of(len(model))), trained - model, reports(unknown, unknown)
    )
    claims = [
        cosine_to_others_mean(outcome.models, model, own, float(weight))
        for own, weight in zip(trained, outcome.weights, strict=True)
    ]
    assert torch.allclose(torch.tensor(claims, dtype=torch.float64), state.cosine, rtol=0, atol=CLAIM_TOLERANCE / 10)
    for decimals, reported in ((6, False), (3, False), (2, True)):  # to which a site's gate may round: docs/privacy.md
        rounded = [round(claim, decimals) for claim in claims]
        _, outcome = method.round(state, trained - model, reports(rounded, [0.5] * 3))
        assert outcome.quantities["flagged"].any() == reported


def test_where_the_server_sees_no_update_the_sites_word_counts():
    """Encrypted, (n, 0): the same weights as of these cosines in the clear, and nobody is flagged."""
    method = FedCE()
    state = after_round_0(method)
    expected = method.round(state, updates_of(1), reports(state.cosine, ERRORS))[1]
    unseen = after_round_0(method, d=0)
    outcome = method.round(unseen, torch.zeros(4, 0), reports(state.cosine, ERRORS))[1]
    assert torch.equal(outcome.weights, expected.weights)
    assert torch.equal(outcome.contribution, expected.contribution)
    assert outcome.models.shape == (0,)
    assert not outcome.quantities["flagged"].any()


@pytest.mark.parametrize("combine", ["times", "plus"])
def test_an_unknown_minus_error_counts_as_the_mean_of_the_others(combine):
    method = FedCE(combine)
    state = after_round_0(method)
    unknown = method.round(state, updates_of(1), reports(state.cosine, [0.2, NAN, 0.4, 0.6]))[1]
    mean = method.round(state, updates_of(1), reports(state.cosine, [0.2, 0.4, 0.4, 0.6]))[1]
    assert torch.allclose(unknown.weights, mean.weights, rtol=0, atol=1e-12)
    assert unknown.contribution.isnan().tolist() == [False, True, False, False]


def test_with_no_minus_error_at_all_the_round_is_one_of_sample_shares():
    method = FedCE()
    state = after_round_0(method)
    after, outcome = method.round(state, updates_of(1), reports([NAN] * 4, [NAN] * 4, [1, 2, 3, 4]))
    assert outcome.weights.tolist() == [0.1, 0.2, 0.3, 0.4]
    assert torch.equal(after.gamma_accumulated, state.gamma_accumulated)


def test_a_site_that_comes_back_keeps_what_it_accumulated():
    """Site 0 sits out round 2: its reputation stays in proportion, its weight is 0, and in round 3 it counts again."""
    method = FedCE()
    state, first = method.round(after_round_0(method), updates_of(1), reports([NAN] * 4, ERRORS))
    there = torch.tensor([[0.0], [1], [1], [1]])
    away = reports([NAN] * 4, [NAN, 0.3, 0.4, 0.5], present=[False, True, True, True])
    state, second = method.round(state, updates_of(2) * there, away)
    assert second.weights[0] == 0
    assert state.gamma_accumulated[0] == first.contribution[0]
    assert state.cosine[0].isnan()
    _, third = method.round(state, updates_of(3), reports([NAN] * 4, [NAN, 0.3, 0.4, 0.5]))
    assert third.weights[0] > 0
    claiming = method.round(state, updates_of(3), reports([0.5, NAN, NAN, NAN], [NAN, 0.3, 0.4, 0.5]))[1]
    assert claiming.quantities["flagged"].tolist() == [1, 0, 0, 0]  # it has no update in this model to know one from
    assert torch.equal(claiming.weights, third.weights)


@pytest.mark.parametrize(
    ("combine", "error"),
    [("times", "absolute"), ("plus", "absolute"), ("cosine", "absolute"), ("error", "absolute"), ("times", "relative")],
)
@given(rounds=random_rounds)
@few
def test_fedce_is_the_reference(combine, error, rounds):
    n, d = rounds.updates.shape[1:]
    dice = [lambda model, centre=centre: 1 / (1 + math.dist(model, centre) ** 2) for centre in rounds.centres.tolist()]
    expected = reference.fedce(
        [0.0] * d, rounds.samples.tolist(), as_numbers(rounds), dice, combine, error == "relative"
    )
    for (reports, outcome), round in zip(play(FedCE(combine, error=error), rounds), expected, strict=True):
        assert outcome.weights.tolist() == pytest.approx(round["weights"], abs=1e-9)
        assert outcome.models.tolist() == pytest.approx(round["w_next"], abs=1e-9)
        for i in range(n):
            if round["minus_error"][i] is None:
                assert reports.values["minus_error"][i].isnan()
            else:
                assert reports.values["minus_error"][i] == pytest.approx(round["minus_error"][i], abs=1e-9)
                assert outcome.quantities["cosine"][i] == pytest.approx(round["cosine"][i], abs=1e-9)
        assert not outcome.quantities["flagged"].any()


@pytest.mark.parametrize("name", ["fedce", "fedce_nvflare"])
@pytest.mark.parametrize(("combine", "other"), [("cosine", "minus_error"), ("error", "cosine")])
def test_an_ablation_does_not_see_the_other_term(combine, other, name):
    method, updates = build_method(name, {"combine": combine}), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    shares = []
    for changed in (0.2, 0.9):
        state = method.start(torch.zeros(2), 3, Layout.of(2))
        own = torch.tensor([changed, 0.5, 0.5], dtype=torch.float64)
        for number in range(2):
            now = updates.clone()
            if other == "cosine":
                now[0] = torch.tensor([1.0, -changed])
            errors = own if other == "minus_error" else torch.full_like(own, 0.5) + torch.tensor([0.1, 0.0, 0.2])
            values = {"cosine": state.cosine, "minus_error": errors if number else torch.full_like(own, torch.nan)}
            reports = Reports(torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.bool), values)
            state, outcome = method.round(state, now, reports)
        shares.append(outcome.weights)
    assert torch.equal(*shares)
    assert outcome.weights.unique().numel() > 1  # the term it sees tells the sites apart


@pytest.mark.parametrize(("n", "d"), [(2, 1), (4, 3000)])
def test_identical_sites_of_unequal_sizes_weigh_the_same_once_contributions_count(n, d):
    """Rounding is no contribution."""
    rounds = make_rounds(n=1, d=d).of_sites(torch.zeros(n, dtype=torch.long))
    rounds = replace(rounds, samples=torch.arange(1.0, n + 1).double())
    for name in ("fedce", "fedce_nvflare"):
        for outcome in outcomes(build_method(name, {}), rounds)[1:]:
            assert torch.allclose(outcome.weights, torch.full((n,), 1 / n, dtype=torch.float64), rtol=0, atol=1e-4)
