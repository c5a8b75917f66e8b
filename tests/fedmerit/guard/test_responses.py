"""Responses: by hand, as pairs of rounds say them; of honest sites, of an outlier, and of updates that are none."""

import math

import pytest
import torch

from fedmerit.core import Outcome, Reports
from fedmerit.guard import indicators
from fedmerit.guard.guard import Enrolled, Guard, RoundReplies
from fedmerit.guard.history import History
from fedmerit.guard.indicators import RESPONSE_MEMORY, Responses
from fedmerit.guard.settings import GuardSettings
from fedmerit.vectors import gram

SITES, SIZE, ROUNDS = 6, 8000, 9
ALL = torch.ones(3, dtype=torch.bool)


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
        found = found.after(now, parts[t], ALL, alone)
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
        history, ruling = guard.rule(history, RoundReplies(updates, reports, step))
        weights = ruling.reports.data_share
        step = weights.float() @ updates
        outcome = Outcome(weights, weights, weights, models[ruling.counted.nonzero()[0, 0]] + step)
        history = guard.after(history, ruling, outcome)
        models = ruling.settled(outcome, models).models.expand(SITES, -1)
    return history


def test_a_site_that_makes_its_own_way_is_not_judged_by_it():
    ones = torch.ones(2, 1).double()
    found = Responses.none(2, 1).after(ones, ones, torch.ones(2).bool(), torch.zeros(2).bool())
    found = found.of(torch.tensor([True, False]))
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
        history, ruling = guard.rule(history, RoundReplies(updates, reports))
        weights = torch.tensor([1.0, 0, 0, 0]).double()
        history = guard.after(
            history, ruling, Outcome(weights, weights, weights, updates if "per" in kind else updates[0])
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
