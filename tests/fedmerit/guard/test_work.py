"""Scores, e-values and evidence: worked out explicitly, against slow references, and their error rates."""

import math

import pytest
import torch
from scipy.stats import chi2, ncx2

from fedmerit.guard import work
from fedmerit.guard.work import (
    LEAST_WORK,
    PLAIN_WORK,
    ROUNDS,
    WIDTH,
    Evidence,
    Known,
    log_e_values,
    pair_scores,
    sketch,
)

SIX = torch.ones(6, dtype=torch.bool)
SIZE = 800


def rounds_of(count, sites=6, relation=0.4, seed=0):
    """Updates (sites, SIZE) of rounds: a direction of the round, which each site takes with its own sign, and noise."""
    random = torch.Generator().manual_seed(seed)
    signs = torch.where(torch.arange(sites) % 2 == 0, 1.0, -1.0)
    for _ in range(count):
        common = torch.randn(SIZE, generator=random)
        yield relation * signs[:, None] * common + torch.randn(sites, SIZE, generator=random)


def evidence_of(rounds, change=lambda number, updates: updates, rate=0.01, present=lambda number: SIX):
    """The evidence after every round."""
    rounds = list(rounds)
    known, evidence, found = Known.nothing(len(rounds[0])), Evidence.none(len(rounds[0])), []
    bound, step = math.log(len(rounds[0]) * len(rounds) / rate), None
    for number, updates in enumerate(rounds):
        here = present(number)
        updates = change(number, updates.clone()) * here[:, None]
        known, scores = known.measure(updates, here, step, 7)
        evidence = evidence.after(log_e_values(scores), bound, False)
        step = updates.mean(dim=0)
        found.append(evidence)
    return found


def test_scores_are_of_what_remains_beside_what_is_known():
    random = torch.Generator().manual_seed(0)
    updates, known = torch.randn(3, 40, generator=random), torch.randn(5, 40, generator=random)
    known[4] = known[0] + known[1]  # twice the same
    found = pair_scores(updates, known, torch.tensor([True, True, False]))
    basis = torch.linalg.qr(known[:4].double().T).Q
    rest = updates.double() - updates.double() @ basis @ basis.T
    products = rest[0] * rest[1]
    expected = float(products.sum() / products.square().sum().sqrt())
    assert found[0, 1].item() == pytest.approx(expected)
    assert found[1, 0].item() == pytest.approx(expected)
    assert found.diagonal()[:2].tolist() == [0, 0]
    assert found[2].isnan().all()


def test_what_is_known_has_no_score():
    known = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    updates = torch.stack([known[0] - 2 * known[3], torch.zeros(50), torch.ones(50)])
    assert pair_scores(updates, known, torch.ones(3).bool())[:2].eq(0).all()


def test_scores_of_unrelated_updates_are_standard_normal():
    scores = torch.stack([pair_scores(one, one[:0], SIX)[0, 1:] for one in rounds_of(300, relation=0.0)])
    assert float(scores.mean()) == pytest.approx(0, abs=0.1)
    assert float(scores.std()) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("total", "degrees", "least"), [(0.5, 2, 3.0), (4.0, 5, 0.7), (300.0, 9, 40.0), (30.0, 19, 80.0)]
)
def test_the_ratio_is_that_of_the_two_densities(total, degrees, least):
    expected = chi2.logpdf(total, degrees) - ncx2.logpdf(total, degrees, least)
    assert work._log_ratio(total, degrees, least) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("shown", "least"), [(3.0, 2 * LEAST_WORK * 8), (5.0, 2 * PLAIN_WORK), (900.0, 2 * PLAIN_WORK)]
)
def test_e_values_compare_a_site_with_the_others_of_the_round(shown, least):
    """Three sites: the others' score with each other has λ = 2 (shown² - 1); √(2k) = 2 bounds what it asks."""
    scores = torch.tensor([[0.0, shown, 1], [shown, 0, -2], [1, -2, 0]]).double()
    expected = chi2.logpdf(5, 2) - ncx2.logpdf(5, 2, least)
    assert float(log_e_values(scores)[2]) == pytest.approx(expected, rel=1e-6)
    scores[2, :2] = scores[:2, 2] = 0
    assert log_e_values(scores)[2] == math.inf
    assert not log_e_values(torch.zeros(3, 3).double()).any()  # nobody has anything new
    few = torch.full((4, 4), torch.nan).double()
    few[:2, :2] = 0
    assert not log_e_values(few).any()


def test_two_that_share_a_direction_do_not_vouch_for_each_other():
    scores = torch.full((6, 6), 4.0).double().fill_diagonal_(0)
    scores[4:] = scores[:, 4:] = 0.5
    scores[4, 5] = scores[5, 4] = 60
    assert (log_e_values(scores)[4:] > 1).all()
    assert (log_e_values(scores)[:4] < 0).all()


def test_honest_sites_of_either_sign_have_no_verdict_and_a_free_rider_has_one():
    assert not any(one.against.any() for one in evidence_of(rounds_of(15)))

    def noise(number, updates):
        updates[5] = torch.randn(SIZE, generator=torch.Generator().manual_seed(900 + number))
        return updates

    assert evidence_of(rounds_of(15), noise)[-1].against.tolist() == [False] * 5 + [True]


def old(number, updates, kept=[]):  # noqa: B006
    kept.append(updates.mean(dim=0))
    if number > 1:
        updates[5] = 3 * kept[0] - kept[1] + 0.3 * torch.randn(SIZE, generator=torch.Generator().manual_seed(number))
    return updates


def test_old_steps_of_the_model_under_noise_are_no_work():
    assert evidence_of(rounds_of(15), old)[-1].against.tolist() == [False] * 5 + [True]


def test_a_verdict_needs_three_rounds_and_three_with_work_end_it():
    none = torch.zeros(2).double()
    idle, works = torch.tensor([math.inf, -50]).double(), none - 50
    evidence, bound = Evidence.none(2), math.log(2 * 20 / 0.01)
    for number in range(9):
        evidence = evidence.after(idle, bound, False)
        assert evidence.against.tolist() == [number >= ROUNDS - 1, False]
    again = evidence
    for number in range(4):
        again = again.after(works, bound, False)
        assert again.against.tolist() == [number < ROUNDS - 1, False]
    assert evidence.after(none, bound, False).against[0]  # an absent site stands as it stood
    assert again.after(works, bound, True).against.tolist() == [False, False]
    assert evidence.after(works, bound, True).after(works, bound, True).after(works, bound, True).against[0]


@pytest.mark.parametrize(("every", "judged"), [(2, True), (3, True), (5, False)])
def test_who_sends_nothing_in_one_round_of_a_few_is_judged(every, judged):
    evidence = Evidence.none(1)
    for number in range(20):
        rests = number % every == every - 1
        evidence = evidence.after(torch.tensor([math.inf if rests else -50.0]).double(), math.log(20 / 0.01), False)
        if evidence.against[0]:
            break
    assert bool(evidence.against[0]) == judged


def cosines(rows):
    units = rows.double() / rows.double().norm(dim=1, keepdim=True)
    return units @ units.T


def test_a_sketch_keeps_cosines():
    random = torch.Generator().manual_seed(0)
    updates = torch.randn(3 * WIDTH + 5, generator=random) + torch.randn(5, 3 * WIDTH + 5, generator=random)
    found = sketch(updates, 7)
    assert found.shape == (5, WIDTH)
    assert torch.allclose(cosines(found), cosines(updates), rtol=0, atol=0.04)  # four times what is usual
    assert torch.equal(found, sketch(updates, 7))
    assert not torch.equal(found, sketch(updates, 8))
    assert torch.equal(sketch(updates[:, :9], 7).abs(), updates[:, :9].abs())
