"""Shapley values from sampled permutations.

Least-squares values: exact with all coalitions, near with some, refused with too few.
"""

import math

import numpy as np
import pytest
from games_reference import airport, gloves, random_game, shapley_by_permutations, table, voting

from fedmerit.contract import semivalues
from fedmerit.contract.semivalues import EMPTY_COALITION, Sampling, coefficients, combine, shapley_weights
from fedmerit.errors import BadInput
from fedmerit_evaluation.ground_truth.shapley_approximations import coalitions_to_train, least_squares_values


def train_on_demand(rules, game, stop=10**9):
    """Give a sampling what it asks for, a coalition at a time; the estimate and the coalitions in order."""
    known, order = {EMPTY_COALITION: game[EMPTY_COALITION]}, []
    while (estimate := rules.estimate(known)).needed and len(order) < stop:
        order.append(estimate.needed[0])
        known[order[-1]] = game[order[-1]]
    return estimate, known, order


def saturating(players, seed):
    """Utility that grows ever less with more sites, with some noise: what training looks like."""
    random = np.random.default_rng(seed)
    worth = dict(zip(sorted(players), random.uniform(0.1, 1, len(players)), strict=True))
    return table(players, lambda one: 1 - math.exp(-sum(worth[name] for name in one)) if one else 0.0)


def test_sampling_comes_to_the_exact_values_within_its_standard_errors():
    game = random_game("ABCDEF", 2)
    exact = semivalues.shapley(game)
    within, means = [], []
    for seed in range(40):
        rules = Sampling(tuple("ABCDEF"), seed=seed, truncation=0, precision=0, fewest=60, most=60)
        estimate = rules.estimate(game)
        assert estimate.permutations == 60
        assert estimate.values.sum() == pytest.approx(game[frozenset("ABCDEF")])
        within += list(np.abs(estimate.values - exact) <= 3 * estimate.standard_errors)
        means.append(estimate.values)
    assert np.mean(within) >= 0.98  # 0.9957 of t with 59 degrees of freedom
    over_seeds = np.std(means, axis=0, ddof=1) / math.sqrt(len(means))
    assert (np.abs(np.mean(means, axis=0) - exact) <= 3 * over_seeds).all()


def test_the_standard_error_is_that_of_the_mean():
    game = random_game("ABC", 6)
    rules = Sampling(tuple("ABC"), truncation=0, precision=0, fewest=7, most=7)
    marginals = []
    for number in range(7):
        order, joined, row = rules.order(number), EMPTY_COALITION, {}
        for name in order:
            row[name], joined = game[joined | {name}] - game[joined], joined | {name}
        marginals.append([row[name] for name in "ABC"])
    estimate = rules.estimate(game)
    assert estimate.values == pytest.approx(np.mean(marginals, axis=0))
    assert estimate.standard_errors == pytest.approx(np.std(marginals, axis=0, ddof=1) / math.sqrt(7))


def test_sampling_asks_for_coalitions_and_resumes_where_it_was():
    game = saturating("ABCDEFG", 1)
    rules = Sampling(tuple("ABCDEFG"), seed=3, truncation=0.05, precision=0.02, fewest=10, most=200, batch=4)
    whole, known, order = train_on_demand(rules, game)
    assert order[0] == frozenset("ABCDEFG")
    assert len(order) == len(set(order)) < 127  # each once, and not all
    assert whole.ended.endswith("no standard error above 0.02")
    assert whole.standard_errors.max() <= 0.02
    assert whole.permutations % 4 == 0

    _, part, _ = train_on_demand(rules, game, stop=9)
    while needed := rules.estimate(part).needed:  # another day, all that is needed at once
        part |= {one: game[one] for one in needed}
    again = rules.estimate(part)
    assert set(part) == set(known)
    assert again.values.tolist() == whole.values.tolist()
    assert again.standard_errors.tolist() == whole.standard_errors.tolist()


def test_a_batch_is_trained_side_by_side():
    game = saturating("ABCDE", 1)
    rules = Sampling(tuple("ABCDE"), truncation=0, batch=6)
    first = rules.estimate({EMPTY_COALITION: 0.0})
    assert first.needed == (frozenset("ABCDE"),)
    assert np.isnan(first.values).all()
    second = rules.estimate({EMPTY_COALITION: 0.0, frozenset("ABCDE"): game[frozenset("ABCDE")]})
    assert set(second.needed) == {frozenset(rules.order(number)[:1]) for number in range(6)}


def test_truncation_costs_at_most_its_tolerance_in_sum():
    game = saturating("ABCDEF", 4)
    rules = Sampling(tuple("ABCDEF"), truncation=0.1, precision=0, fewest=30, most=30)
    estimate, _, order = train_on_demand(rules, game)
    missed = game[frozenset("ABCDEF")] - estimate.values.sum()
    assert 0 <= missed <= 0.1
    exact = Sampling(tuple("ABCDEF"), truncation=0, precision=0, fewest=30, most=30)
    assert len(order) < len(train_on_demand(exact, game)[2])


@pytest.mark.parametrize("truncation", [0.0, 0.1])
def test_an_estimate_is_a_sum_of_utilities(truncation):
    """Its coefficients give it back, and what it would be for other utilities of the same coalitions."""
    game = random_game(tuple("ABCDE"), 4)
    rules = Sampling(tuple("ABCDE"), seed=1, truncation=truncation, precision=0, fewest=8, most=8)
    parts = rules.estimate(game).coefficients
    assert np.allclose(semivalues.combine(game, parts), rules.estimate(game).values, atol=1e-12)
    assert set(parts) <= set(game)
    assert EMPTY_COALITION in parts
    doubled = {one: np.stack([np.asarray(value), 2 * np.asarray(value)]) for one, value in game.items()}
    assert np.allclose(semivalues.combine(doubled, parts)[:, 1], 2 * rules.estimate(game).values)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"sites": ()}, "sites none"),
        ({"sites": ("A", "A")}, "each once"),
        ({"truncation": -0.1}, "truncation"),
        ({"precision": math.nan}, "precision"),
        ({"fewest": 1}, "fewest 1"),
        ({"most": 3}, "most 3"),
        ({"batch": 0}, "batch 0"),
    ],
)
def test_rules_of_sampling_that_cannot_be(change, word):
    with pytest.raises(BadInput, match=word):
        Sampling(**{"sites": ("A", "B"), **change})


def test_utilities_that_sampling_cannot_use():
    with pytest.raises(BadInput, match="coalition nobody"):
        Sampling(("A", "B")).estimate({})
    with pytest.raises(BadInput, match=r"coalition A: its utility is nan"):
        Sampling(("A", "B")).estimate({EMPTY_COALITION: 0.0, frozenset("A"): math.nan})


GAMES = {
    "gloves": gloves(["A", "B"], ["C"]),
    "airport": airport({"A": 3, "B": 8, "C": 11, "D": 13}),
    "voting": voting({"A": 4, "B": 2, "C": 1, "D": 1}, 5),
    "random": random_game("ABCDE", 1, (3,)),
    "two": table("AB", lambda one: float(len(one)) ** 2),
    "one": table("A", lambda one: 2.0 * len(one)),
}


@pytest.mark.parametrize("name", GAMES)
def test_with_all_coalitions_they_are_the_shapley_values(name):
    game = GAMES[name]
    players = sorted(frozenset().union(*game))
    np.testing.assert_allclose(least_squares_values(game), shapley_by_permutations(game, players), atol=1e-12)


def test_ten_sites_have_no_rounding_in_their_values():
    """What all have in common is no direction of the regression: rounding would be blown up there."""
    sites = "ABCDEFGHIJ"
    worth = dict(zip(sites, np.linspace(1, 4, 10), strict=True))
    game = table(worth, lambda one: float(np.sqrt(sum(worth[name] for name in sorted(one)))))
    exact = combine(game, coefficients(list(sites), shapley_weights))
    np.testing.assert_allclose(least_squares_values(game), exact, atol=1e-12)
    for most in (40, 200, 800):
        found = least_squares_values(some(game, list(sites), most, 0))
        assert found.sum() == pytest.approx(game[frozenset(sites)], abs=1e-12)


def some(game, sites, most, seed):
    chosen = coalitions_to_train(sites, most, seed)
    return {one: game[one] for one in [*chosen, EMPTY_COALITION]}


def test_with_some_of_an_additive_game_they_are_exact_and_efficient():
    worth = dict(zip("ABCDEFGHIJ", range(10), strict=True))
    game = table(worth, lambda one: float(sum(worth[name] for name in one)))
    part = some(game, list(worth), 40, 0)
    assert len(part) == 40
    np.testing.assert_allclose(least_squares_values(part, list(worth)), range(10), atol=1e-9)


def test_with_some_of_any_game_they_come_near_and_nearer():
    """Concave in what is there, as Dice is."""
    worth = dict(zip("ABCDEFGHIJ", np.linspace(1, 4, 10), strict=True))
    game = table(worth, lambda one: float(np.sqrt(sum(worth[name] for name in one))))
    exact = least_squares_values(game)
    errors = [
        np.mean([np.abs(least_squares_values(some(game, list(worth), most, seed)) - exact).max() for seed in range(5)])
        for most in (40, 400)
    ]
    assert errors[1] < 0.5 * errors[0] < 0.1 * np.ptp(exact)


def test_too_few_coalitions_are_refused():
    game = random_game("ABCD", 0)
    with pytest.raises(BadInput, match="do not determine the values"):
        least_squares_values({one: game[one] for one in (EMPTY_COALITION, frozenset("ABCD"), frozenset("A"))})
    with pytest.raises(BadInput, match="coalition A\\+B\\+C\\+D: no utility"):
        least_squares_values({one: game[one] for one in (EMPTY_COALITION, frozenset("A"))}, list("ABCD"))
    with pytest.raises(BadInput, match="expected 22 or more"):
        coalitions_to_train("ABCDEFGHIJ", 12, 0)
    with pytest.raises(BadInput, match="3 coalitions of 2 sites: expected 4 or more"):
        coalitions_to_train("AB", 3, 0)
