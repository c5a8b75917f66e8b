"""Indicators: length, staleness, direction, response, profile; worked by hand or compared with a slow reference."""

import math

import numpy as np
import pytest
import torch

from fedmerit.core import Outcome, Reports
from fedmerit.guard import indicators
from fedmerit.guard.guard import Enrolled, Guard
from fedmerit.guard.history import History
from fedmerit.guard.indicators import PROFILE_BLOCK, RESPONSE_MEMORY, Responses
from fedmerit.guard.settings import GuardSettings
from fedmerit.vectors import gram

NAN = math.nan
FOUR = torch.ones(4, dtype=torch.bool)
NOT_FOUR = ~FOUR
UNKNOWN = torch.full((4,), NAN).double()


def numbers(*values):
    return torch.tensor(values).double()


@pytest.mark.parametrize(("length", "short"), [(0.0, True), (0.09, True), (0.11, False), (50.0, False)])
def test_an_update_under_a_twentieth_of_the_others_median_is_short(length, short):
    assert indicators.is_too_short(numbers(1, 2, 3, length), FOUR).tolist() == [False, False, False, short]


def test_who_is_absent_or_has_one_other_to_compare_with_is_not_short():
    assert not indicators.is_too_short(numbers(1, 2, 3, 0), torch.tensor([True, True, True, False])).any()
    assert not indicators.is_too_short(numbers(1, 0, 0, 0), torch.tensor([True, False, False, True])).any()


@pytest.mark.parametrize(
    ("cosines", "last"),
    [
        ((0.1, 0.1, 0.2, 0.9), True),  # 0.1 away, the others 0.9
        ((0.1, 0.1, 0.2, 0.5), False),  # as near as half of what there is
        ((0.85, 0.85, 0.8, 0.9), False),  # all go on as before
        ((0.1, 0.1, 0.2, NAN), False),
    ],
)
def test_the_step_that_the_model_last_took_is_stale(cosines, last):
    assert indicators.is_stale(numbers(*cosines), UNKNOWN, UNKNOWN, FOUR).tolist() == [False, False, False, last]


def test_an_update_sent_again_is_stale():
    to_own = numbers(0.5, 0.98, NAN, 0.995)
    assert indicators.is_stale(UNKNOWN, to_own, UNKNOWN, FOUR).tolist() == [False, False, False, True]
    assert not indicators.is_stale(UNKNOWN, to_own, UNKNOWN, NOT_FOUR).any()


def test_who_has_nothing_in_common_with_its_own_last_update_is_stale_where_the_others_have():
    """A quarter of 0.2 is 0.05; of 0.04, nothing can be told."""
    assert indicators.is_stale(UNKNOWN, UNKNOWN, numbers(0.2, 0.2, 0.2, 0.04), FOUR).tolist() == [
        False,
        False,
        False,
        True,
    ]
    assert not indicators.is_stale(UNKNOWN, UNKNOWN, numbers(0.2, 0.2, 0.2, 0.06), FOUR).any()
    assert not indicators.is_stale(UNKNOWN, UNKNOWN, numbers(0.04, 0.04, 0.04, -0.3), FOUR).any()


@pytest.mark.parametrize(
    ("direction", "accused", "sign"),
    [(0.09, False, True), (0.11, False, False), (0.11, True, True), (0.21, True, False), (NAN, True, False)],
)
def test_under_a_quarter_of_the_others_is_elsewhere_and_under_a_half_while_a_verdict_stands(direction, accused, sign):
    against = torch.tensor([False, False, False, accused])
    found = indicators.is_other_direction(numbers(0.4, 0.4, 0.4, direction), FOUR, against)
    assert found.tolist() == [False, False, False, sign]


def test_where_the_others_have_nothing_in_common_nobody_is_elsewhere():
    late = numbers(0.01, 0.02, 0.01, -0.5)
    assert not indicators.is_direction_comparable(late, FOUR).any()
    assert not indicators.is_other_direction(late, FOUR, NOT_FOUR).any()
    some = torch.tensor([True, True, True, False])
    assert indicators.is_direction_comparable(numbers(0.4, 0.4, 0.4, NAN), some).tolist() == some.tolist()


def test_new_directions_are_cosines_to_the_mean_of_the_others_without_the_step():
    """Updates (5, 40), the last one that step but for a trace, so nothing of it is new; the fourth is in no mean."""
    random = torch.Generator().manual_seed(0)
    step = torch.randn(40, generator=random).double()
    updates = torch.randn(5, 40, generator=random).double() + step
    updates[4] = 3 * step + 1e-4 * updates[0]
    count = torch.tensor([True, True, True, False, True])
    for before in (None, step):
        inner, squared = (None, 0.0) if before is None else (updates @ before, float(before @ before))
        found = indicators.residual_cosines(updates @ updates.T, inner, squared, count)
        new = updates if before is None else updates - torch.outer(updates @ step, step) / (step @ step)
        some = [i for i in range(5) if new[i].norm() > 1e-3 * updates[i].norm()]
        assert some == (list(range(5)) if before is None else list(range(4)))
        for i in range(5):
            others = sum(new[j] / new[j].norm() for j in some if j not in (i, 3))
            expected = float(torch.cosine_similarity(new[i], others, dim=0)) if i in some else 0.0
            assert float(found[i]) == pytest.approx(expected, abs=1e-9)


def test_beside_its_own_step_is_what_is_new_since_the_sites_last_update():
    """Sites 0 and 1 in the plane: (1, 1) after (1, 0) brings (0, 1), (0, 2) and a trace after (0, 1) nothing.

    To the first the others' mean is (0, 1): a cosine of 1. The third is none of the others, and brings (1, 0) after
    (0, 1) beside their (1, 1) / √2 + (0, 1): 0.7071 / √(0.5 + 1.7071²) = 0.3827.
    """
    before, now = numbers([1, 0], [0, 1], [0, 1]), numbers([1, 1], [1e-5, 2], [1, 0])
    found = indicators.residual_own_cosines(now, before, torch.tensor([True, True, False]))
    assert found.tolist() == pytest.approx([1, 0, math.cos(math.radians(67.5))], abs=1e-5)


SITES, SIZE, ROUNDS = 6, 8000, 9
THREE = torch.ones(3, dtype=torch.bool)


def test_responses_are_cosines_over_all_pairs_of_rounds_of_fading_weight():
    random = torch.Generator().manual_seed(0)
    updates = torch.randn(5, 3, 4, generator=random).double()
    parts = updates * torch.tensor([0.5, 0.3, 0.2]).double()[None, :, None]
    alone = torch.tensor([False, False, True])
    found, places = Responses.none(3, 4), [torch.zeros(3, 4).double()]
    for t, now in enumerate(updates):
        if t:
            expected = []
            for i in range(3):
                # a site on its own model compares a round by the model after it
                pairs = [(now[i] - updates[s][i], places[t][i] - places[s + int(alone[i])][i]) for s in range(t)]
                weights = [RESPONSE_MEMORY ** (t - 1 - s) for s in range(t)]
                along = sum(w * float(change @ way) for w, (change, way) in zip(weights, pairs, strict=True))
                changes = sum(w * float(change @ change) for w, (change, _) in zip(weights, pairs, strict=True))
                ways = sum(w * float(way @ way) for w, (_, way) in zip(weights, pairs, strict=True))
                expected.append(-along / math.sqrt(changes * ways) if ways else math.nan)
            assert found.cosines(now).tolist() == pytest.approx(expected, nan_ok=True)
        found = found.after(now, parts[t], THREE, alone)
        others = parts[t].sum(dim=0) - parts[t]
        places.append(places[t] + torch.where(alone[:, None], now, others))


def test_who_was_away_is_compared_over_the_whole_way():
    ones = torch.ones(2, 1).double()
    found = Responses.none(2, 1).after(ones, ones, torch.ones(2).bool(), torch.zeros(2).bool())
    found = found.after(0 * ones, torch.tensor([[2.0], [0.0]]), torch.tensor([True, False]), torch.zeros(2).bool())
    assert (found.counts.tolist(), found.places[1].tolist()) == ([1.5, 1.0], [-3.0])


def test_the_sign_needs_others_who_respond_more_than_by_chance():
    said, nobody, size = torch.tensor([0.4, 0.4, 0.4, -0.21]).double(), torch.zeros(4).bool(), 10_000
    here = ~nobody
    assert indicators.is_opposed(said, here, size, nobody).tolist() == [False, False, False, True]
    for less in (-0.19, 0.0):  # half of the others' is not reached; who does not respond is no attacker
        assert not indicators.is_opposed(said.clamp(min=less), here, size, nobody).any()
    assert indicators.is_opposed(said.clamp(min=-0.11), here, size, torch.tensor([False, False, False, True]))[3]
    assert not indicators.is_opposed(said, here, 300, nobody).any()  # 8 / √300 = .46
    assert not indicators.is_opposed(said, torch.tensor([True, False, False, True]), size, nobody).any()


def played(change, until=ROUNDS, rounds=ROUNDS, site=5):
    """Sites that pull one model to optima of their own, with noise; the fourth's is elsewhere. The history after."""
    draw = torch.Generator().manual_seed(3)
    optima = torch.randn(SIZE, generator=draw) + 0.7 * torch.randn(SITES, SIZE, generator=draw)
    optima[3] = 1.3 * torch.randn(SIZE, generator=draw) - 0.25 * optima.mean(dim=0)
    guard, history, step = Guard(GuardSettings("on"), Enrolled.nothing(SITES)), History.empty(SITES), None
    models = torch.zeros(SITES, SIZE)
    for number in range(rounds):
        updates = 0.2 * (optima - models + torch.randn(SITES, SIZE, generator=draw))
        if number < until:
            updates[site] = change(updates[site], number)
        reports = Reports(torch.ones(SITES).double(), torch.ones(SITES).bool(), products=gram(updates))
        history, admission = guard.admit(history, updates, reports, step)
        weights = admission.reports.data_share
        step = weights.float() @ updates
        outcome = Outcome(weights, weights, weights, models[admission.counted.nonzero()[0, 0]] + step)
        history = guard.after(history, admission, outcome)
        models = admission.divide_outcome(outcome, models).models.expand(SITES, -1)
    return history


def test_a_site_that_makes_its_own_way_is_not_judged_by_it():
    ones = torch.ones(2, 1).double()
    found = Responses.none(2, 1).after(ones, ones, torch.ones(2).bool(), torch.zeros(2).bool())
    found = found.keep(torch.tensor([True, False]))
    assert found.cosines(0 * ones).isfinite().tolist() == [True, False]


@pytest.mark.parametrize("kind", ["a model per site", "one site is the model"])
def test_the_guard_knows_no_response_where_others_do_not_move_the_model(kind):
    guard, history, draw = (
        Guard(GuardSettings("on"), Enrolled.nothing(4)),
        History.empty(4),
        torch.Generator().manual_seed(1),
    )
    for _ in range(3):
        updates = torch.randn(4, 50, generator=draw)
        reports = Reports(torch.ones(4).double(), torch.ones(4).bool(), products=gram(updates))
        history, admission = guard.admit(history, updates, reports)
        weights = torch.tensor([1.0, 0, 0, 0]).double()
        history = guard.after(
            history, admission, Outcome(weights, weights, weights, updates if "per" in kind else updates[0])
        )
    assert history.response.isnan().tolist() == [True] + ["per" in kind] * 3


def half(update, number):
    return update * torch.where(torch.arange(SIZE) % 2 == 0, 1.0, -1.0)


def test_honest_sites_respond_and_so_does_an_outlier():
    history = played(lambda update, number: update)
    assert history.response.min() > 0.5 * history.response.median()
    assert not history.verdicts.against.any()
    assert history.verdicts.standing[2, 3]  # another direction is all there is


def turned(update, number):
    return -update


def test_reversed_signs_are_judged_and_only_they():
    assert played(turned).verdicts.against.tolist() == [False] * 5 + [True]


def test_half_the_signs_reversed_look_like_a_site_that_does_not_respond_and_are_not_judged():
    history = played(half)
    assert abs(history.response[5]) < 0.4 * history.response[:5].median()
    assert not history.verdicts.against.any()


def test_who_stops_is_paid_again():
    assert played(turned, until=5, rounds=7).verdicts.against[5]
    assert not played(turned, until=5, rounds=14).verdicts.against.any()


BLOCKS = 1000
PROFILE_SIZE = BLOCKS * PROFILE_BLOCK + 5  # what is beyond the last block is in no profile
FIVE = torch.ones(5, dtype=torch.bool)
NOT_FIVE = ~FIVE


def profiled(sites=5, seed=0):
    """Updates that are long in the same blocks, whatever their entries; the last site's half as much so."""
    random = torch.Generator().manual_seed(seed)
    scale = torch.randn(BLOCKS, generator=random).exp()
    scales = scale.expand(sites, -1).clone()
    scales[-1] = scale.sqrt() * torch.randn(BLOCKS, generator=random).mul(0.5).exp()
    entries = torch.randn(sites, PROFILE_SIZE, generator=random)
    entries[:, : BLOCKS * PROFILE_BLOCK] *= scales.repeat_interleave(PROFILE_BLOCK, dim=1)
    return entries


def noise(like, seed=9):
    return torch.randn(len(like), generator=torch.Generator().manual_seed(seed)) * like.norm() / len(like) ** 0.5


def test_likeness_is_the_median_correlation_of_lengths_of_blocks():
    updates = profiled()
    lengths = np.linalg.norm(
        updates[:, : BLOCKS * PROFILE_BLOCK].double().numpy().reshape(5, BLOCKS, PROFILE_BLOCK), axis=2
    )
    correlations = np.corrcoef(lengths)
    expected = [np.median(np.delete(row, place)) for place, row in enumerate(correlations)]
    assert indicators.likeness(updates, FIVE).tolist() == pytest.approx(expected, abs=1e-6)
    away = torch.tensor([True, True, False, True, True])
    expected = [np.median(np.delete(row, [place, 2])) for place, row in enumerate(correlations)]
    expected[2] = math.nan
    assert indicators.likeness(updates, away).tolist() == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_noise_shows_the_sign_and_an_honest_outlier_does_not():
    updates = profiled()
    assert not indicators.is_unlike(indicators.likeness(updates, FIVE), FIVE, PROFILE_SIZE, NOT_FIVE).any()
    updates[1] = noise(updates[1])
    found = indicators.likeness(updates, FIVE)
    assert abs(found[1]) < 0.1
    assert indicators.is_unlike(found, FIVE, PROFILE_SIZE, NOT_FIVE).tolist() == [False, True, False, False, False]


def test_nothing_sent_and_nothing_there_are_flat():
    updates = profiled()
    updates[0], updates[1] = 0, 1
    assert indicators.likeness(updates, FIVE)[:2].tolist() == [0, 0]
    assert indicators.likeness(torch.zeros(5, 3), FIVE).tolist() == [0] * 5  # a model of less than a block


def test_of_others_who_have_little_in_common_nothing_is_told():
    said = torch.tensor([0.6, 0.6, 0.6, 0.6, 0.05]).double()
    last = [False] * 4 + [True]
    assert indicators.is_unlike(said, FIVE, BLOCKS * PROFILE_BLOCK, NOT_FIVE).tolist() == last
    for likeness, size in ((said.clamp(max=0.39), BLOCKS * PROFILE_BLOCK), (said, 40 * PROFILE_BLOCK)):  # 4 / √40 = .63
        assert not indicators.is_unlike(likeness, FIVE, size, NOT_FIVE).any()
        assert not indicators.is_profile_comparable(likeness, FIVE, size).any()
    assert not indicators.is_unlike(
        said, torch.tensor([True, False, False, False, True]), BLOCKS * PROFILE_BLOCK, NOT_FIVE
    ).any()


@pytest.mark.parametrize(
    ("likeness", "accused", "sign"), [(0.14, False, True), (0.16, False, False), (0.29, True, True)]
)
def test_under_a_quarter_of_the_others_and_under_a_half_while_a_verdict_stands(likeness, accused, sign):
    said = torch.tensor([0.6, 0.6, 0.6, 0.6, likeness]).double()
    against = torch.tensor([False] * 4 + [accused])
    assert indicators.is_unlike(said, FIVE, BLOCKS * PROFILE_BLOCK, against).tolist() == [False] * 4 + [sign]
