"""Least-squares values: exact with all coalitions, near with some, refused with too few."""

import numpy as np
import pytest
from games_reference import airport, gloves, random_game, shapley_by_permutations, table, voting

from fedmerit.errors import BadInput
from fedmerit_evaluation.ground_truth.semivalues import EMPTY_COALITION, coefficients, combine, shapley_weights
from fedmerit_evaluation.ground_truth.shapley_approximations import coalitions_to_train, least_squares_values

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
