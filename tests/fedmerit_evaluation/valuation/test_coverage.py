"""Coverage: values in the game of the best local-only model, against every order in which sites may join."""

from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest

from fedmerit_evaluation.valuation.estimators import CoverageValues, coverage_matrix

DICE = np.array([[0.9, 0.1, 0.3], [0.5, 0.7, 0.3], [0.4, 0.2, 0.8]])  # of the model of row at column
SITES = ("Alder", "Birch", "Cedar")


def shapley_by_orders(at_site):
    """Mean over all orders of what each model adds to the best so far."""
    orders, values = list(permutations(range(len(at_site)))), [0.0] * len(at_site)
    for order in orders:
        best = 0.0
        for place in order:
            values[place] += max(at_site[place] - best, 0.0) / len(orders)
            best = max(best, at_site[place])
    return values


def lost_without(at_site):
    return [max(at_site) - max([*at_site[:i], *at_site[i + 1 :]], default=0.0) for i in range(len(at_site))]


def in_place_of_a_run(dice):
    """Instead of an `ObservedRun`: the models of sites, each tested at all sites, in one draw."""
    utilities = {frozenset([site]): row[:, None] for site, row in zip(SITES, dice, strict=True)}
    game = SimpleNamespace(utilities=utilities, parts={})
    return SimpleNamespace(sites=list(SITES), games=lambda observer: {"local_only": [game]}[observer])


@pytest.mark.parametrize(("kind", "literal"), [("shapley", shapley_by_orders), ("leave_one_out", lost_without)])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_coverage_matrix_of_random_dice_is_the_literal_game(kind, literal, n):
    dice = np.random.default_rng(n).integers(0, 6, (n, n, 4)) / 5  # with ties
    expected = np.stack([[literal(list(dice[:, site, draw])) for draw in range(4)] for site in range(n)])  # (t, D, i)
    np.testing.assert_allclose(coverage_matrix(dice, kind), np.moveaxis(expected, -1, 0), atol=1e-14)


def test_coverage_values_sum_to_the_mean_of_the_best_models():
    values = CoverageValues().values(in_place_of_a_run(DICE))
    assert values.sum() == pytest.approx((0.9 + 0.7 + 0.8) / 3)


def test_coverage_leave_one_out_is_the_lead_of_the_only_good_model():
    values = CoverageValues(kind="leave_one_out").values(in_place_of_a_run(DICE))
    assert values[:, 0] == pytest.approx([0.4 / 3, 0.5 / 3, 0.5 / 3])


def test_coverage_by_others_leaves_out_the_patients_of_a_site():
    values = CoverageValues(kind="leave_one_out", voice="others").values(in_place_of_a_run(DICE))
    assert values[:, 0] == pytest.approx([0, 0, 0])
    assert CoverageValues(voice="others").values(in_place_of_a_run(DICE))[0, 0] == pytest.approx((0.1 / 3 + 0.1) / 2)


@pytest.mark.parametrize("kind", ["shapley", "leave_one_out"])
def test_coverage_leaves_out_a_site_that_did_not_test(kind):
    dice = DICE.copy()
    dice[:, 1] = np.nan
    values = CoverageValues(kind=kind).values(in_place_of_a_run(dice))
    tested = coverage_matrix(DICE[:, [0, 2], None], kind).mean(axis=1)
    np.testing.assert_allclose(values, tested, atol=1e-14)
