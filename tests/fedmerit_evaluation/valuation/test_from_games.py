"""Multi-round values of games with known values, and their axioms: null player, symmetry, efficiency up to drift."""

import re
from dataclasses import replace

import numpy as np
import pytest
from games_reference import random_game, shapley_by_permutations
from observing import Rounds

from fedmerit.contract.semivalues import EMPTY_COALITION, format_spec
from fedmerit.errors import BadInput
from fedmerit_evaluation.valuation.estimators import (
    LocalOnlyValues,
    MultiRoundValues,
    benefit_matrix,
    efficiency_gap,
    local_only_dice,
    shapley_matrix,
)
from fedmerit_evaluation.valuation.observed_run import RoundGame
from fedmerit_lab.valuation.estimators import LeaveOneOutLossValues, OneRoundValues

SITES = ["A", "B", "C", "D"]
GRAND = frozenset(SITES)


def round_of(game, number=0, counts=1.0):
    """A game of utilities (n,), by who tested."""
    return RoundGame(number, {one: np.asarray(line)[:, None] for one, line in game.items()}, np.array([counts]))


def run_of(*rounds, samples=(1, 1, 1, 1)):
    return Rounds(rounds, SITES, samples)


@pytest.fixture
def rounds():
    return [round_of(random_game(SITES, seed, (4,)), seed) for seed in range(3)]


def test_values_are_the_sum_of_the_rounds_shapley_values_by_permutations(rounds):
    expected = sum(
        shapley_by_permutations({one: line[:, 0] for one, line in round.utilities.items()}, SITES) for round in rounds
    )
    run = run_of(*rounds)
    np.testing.assert_allclose(MultiRoundValues().values(run)[:, 0], expected.mean(axis=1))
    off = expected[~np.eye(4, dtype=bool)].reshape(4, 3)
    np.testing.assert_allclose(MultiRoundValues(voice="others").values(run)[:, 0], off.mean(axis=1))


def test_the_last_rounds_only(rounds):
    np.testing.assert_allclose(
        MultiRoundValues(last=1).values(run_of(*rounds)), MultiRoundValues().values(run_of(rounds[-1]))
    )
    np.testing.assert_allclose(
        MultiRoundValues(last=9).values(run_of(*rounds)), MultiRoundValues().values(run_of(*rounds))
    )


@pytest.mark.parametrize("estimator", [MultiRoundValues, LeaveOneOutLossValues])
def test_rounds_are_drawn_from_those_that_count(rounds, estimator):
    """Of the last round only there is nothing to draw, however often it came among all three."""
    counted = [RoundGame(one.round, one.utilities, np.array([1.0, 0.0, 3.0])) for one in rounds]
    values = estimator(last=1).values(run_of(*counted))
    np.testing.assert_allclose(values, np.repeat(estimator().values(run_of(rounds[-1])), values.shape[1], axis=1))
    np.testing.assert_allclose(estimator(last=3).values(run_of(*counted))[:, 1], 0)


def test_rounds_weighed_by_progress_or_level():
    """Two additive rounds: the first gains 4 from 0, the second nothing from 4."""
    first = round_of({one: np.full(4, float(len(one))) for one in random_game(SITES, 0)})
    second = round_of({one: np.full(4, 4.0) + ("A" in one) - ("B" in one) for one in random_game(SITES, 0)}, 1)
    run = run_of(first, second)
    np.testing.assert_allclose(MultiRoundValues().values(run)[:, 0], [2, 0, 1, 1], atol=1e-12)
    np.testing.assert_allclose(MultiRoundValues(weigh="progress").values(run)[:, 0], [2, 2, 2, 2], atol=1e-12)
    np.testing.assert_allclose(MultiRoundValues(weigh="level").values(run)[:, 0], [2, -2, 0, 0], atol=1e-12)


def test_what_a_site_is_worth_by_itself_is_the_dice_of_its_model_on_everybody_or_on_the_others():
    """Of two evaluations the last; in it A's model reaches .8 on its own patients and .2, .3, .4 on the others'."""
    models = {"A": [0.8, 0.2, 0.3, 0.4], "B": [0.5, 0.9, 0.5, 0.5], "C": [0, 0, 0, 0], "D": [np.nan, 0.4, 0.6, 0.8]}
    game = {frozenset([site]): np.array(dice) for site, dice in models.items()}
    run = run_of(round_of(dict.fromkeys(game, np.ones(4))), round_of(game, 1))
    np.testing.assert_allclose(LocalOnlyValues().values(run)[:, 0], [0.425, 0.6, 0, 0.6])
    np.testing.assert_allclose(LocalOnlyValues(voice="others").values(run)[:, 0], [0.3, 0.5, 0, 0.5])


def test_a_site_that_adds_nothing_is_worth_nothing_and_those_who_add_alike_alike():
    game = {one: np.full(4, float(len(one - {"D"})) ** 0.5) for one in random_game(SITES, 0)}
    for estimator in (
        MultiRoundValues(),
        MultiRoundValues(kind="leave_one_out"),
        OneRoundValues(),
        LeaveOneOutLossValues(),
    ):
        values = estimator.values(run_of(round_of(game)))[:, 0]
        assert values[3] == pytest.approx(0)
        assert values[0] == pytest.approx(values[1]) == pytest.approx(values[2])
        assert values[0] > 0


def test_values_sum_to_the_gain_of_the_run_less_the_drift_of_its_rounds(rounds):
    """Each round's sum to v(N) - v(nobody); where a round begins elsewhere than the last one ended, they drift."""
    run = run_of(*rounds)
    gained = rounds[-1].on_average(GRAND)[0] - rounds[0].on_average(EMPTY_COALITION)[0]
    assert MultiRoundValues().values(run).sum() == pytest.approx(gained - efficiency_gap(run))
    assert efficiency_gap(run) != 0
    onward = [rounds[0]]
    for after in rounds[1:]:
        shift = onward[-1].utilities[GRAND] - after.utilities[EMPTY_COALITION]
        onward.append(
            RoundGame(after.round, {one: line + shift for one, line in after.utilities.items()}, after.counts)
        )
    assert efficiency_gap(run_of(*onward)) == pytest.approx(0)


def test_a_site_that_missed_a_round_has_no_part_in_it():
    there = ["A", "B", "D"]
    game = {one: np.append(line, np.nan) for one, line in random_game(there, 5, (3,)).items()}  # D's patients were not
    values = MultiRoundValues().values(run_of(round_of(game)))[:, 0]
    expected = shapley_by_permutations({one: line[:3] for one, line in game.items()}, there).mean(axis=1)
    np.testing.assert_allclose(values, [expected[0], expected[1], 0, expected[2]])


def test_leave_one_out_loss_is_weighted_by_their_shares_of_images_and_never_by_the_sites_own_patients():
    utilities = {GRAND - {site}: np.full(4, 0.5) for site in "BCD"}
    utilities |= {GRAND: np.array([0.9, 0.8, 0.7, 0.6]), frozenset("BCD"): np.array([0.0, 0.7, 0.7, 0.5])}
    run = run_of(round_of(utilities), samples=(70, 10, 20, 30))
    assert LeaveOneOutLossValues().values(run)[0, 0] == pytest.approx((10 * 0.1 + 20 * 0.0 + 30 * 0.1) / 60)


@pytest.mark.parametrize(
    "estimator", [MultiRoundValues(voice="others"), OneRoundValues(voice="others"), LeaveOneOutLossValues()]
)
def test_of_who_earns_as_one_nobody_speaks_for_the_other(estimator):
    """A and B are one player, whom their own patients only are better off with: to the others it is worth nothing."""
    game = {one: np.array([0.1 + 0.5 * ("A" in one)] * 2 + [0.3, 0.3]) for one in random_game(["A", "C", "D"], 0)}
    one = replace(round_of(game), parts={"A": {"A": 0.5, "B": 0.5}})
    values = estimator.values(run_of(one))[:, 0]
    np.testing.assert_allclose(values[:2], 0, atol=1e-12)


def test_leave_one_out_takes_every_model_that_it_compares(rounds):
    """Of drawn coalitions some may lack; what was not evaluated is no loss of 0."""
    estimators = MultiRoundValues(kind="leave_one_out"), OneRoundValues(kind="leave_one_out")
    for gone in (GRAND - {"B"}, GRAND):
        drawn = {one: line for one, line in rounds[0].utilities.items() if one != gone}
        for estimator in estimators:
            with pytest.raises(BadInput, match=re.escape(f"round 0: coalition {format_spec(gone)}: not evaluated")):
                estimator.values(run_of(replace(rounds[0], utilities=drawn)))
    lone = round_of({frozenset(): np.full(4, 0.2), frozenset("A"): np.full(4, 0.5)})
    np.testing.assert_allclose(estimators[0].values(run_of(lone))[:, 0], [0.3, 0, 0, 0])


def test_without_a_site_that_has_all_the_weight_there_is_no_model_and_the_leave_one_out_loss_is_zero(rounds):
    utilities = {GRAND - {site}: np.full(4, 0.5) for site in "BCD"} | {GRAND: np.full(4, 0.5)}
    np.testing.assert_allclose(LeaveOneOutLossValues().values(run_of(round_of(utilities)))[:, 0], 0)
    two = {one: line for one, line in utilities.items() if one != GRAND - {"B"}}
    with pytest.raises(BadInput, match=r"B\+C\+D, A\+C\+D: not evaluated"):
        LeaveOneOutLossValues().values(run_of(round_of(two)))


def test_draws_of_rounds_count_as_often_as_drawn(rounds):
    twice = [RoundGame(one.round, one.utilities, np.array([2.0])) for one in rounds]
    np.testing.assert_allclose(
        MultiRoundValues().values(run_of(*twice)), 2 * MultiRoundValues().values(run_of(*rounds))
    )


def test_a_round_in_which_nobody_else_could_say_counts_as_one_without_the_site():
    one = {frozenset(): [0.2] + [np.nan] * 3, frozenset("A"): [0.6] + [np.nan] * 3}
    whole = round_of(random_game(SITES, 0, (4,)))
    for estimator in (MultiRoundValues(voice="others"), LeaveOneOutLossValues()):
        expected = estimator.values(run_of(whole))
        np.testing.assert_allclose(estimator.values(run_of(whole, round_of(one, 1))), expected)
        assert np.isnan(estimator.values(run_of(round_of(one)))[0, 0])


def test_who_gains_goes_by_the_rounds_in_which_a_site_said_something(rounds):
    """As values do: of one round that B's patients miss, its column has what the other rounds say."""
    missed = {one: np.where(np.array(SITES) == "B", np.nan, line[:, 0]) for one, line in rounds[1].utilities.items()}
    found = benefit_matrix(run_of(rounds[0], round_of(missed, 1)))
    first, second = (shapley_matrix(one, SITES)[..., 0] for one in rounds[:2])
    expected = first + np.where(np.array(SITES) == "B", 0.0, second)
    np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(benefit_matrix(run_of(*rounds[:2])), first + second)


def test_site_that_was_absent_when_local_models_were_rated_has_a_dice_of_zero():
    """A site cannot keep a payment from being computed by missing that round."""
    rated = round_of(
        {frozenset(): [0.1, 0.2, np.nan], frozenset("A"): [0.5, 0.6, np.nan], frozenset("B"): [0.7, 0.4, np.nan]}
    )
    np.testing.assert_array_equal(
        local_only_dice(rated, ["A", "B", "C"])[:, :, 0], [[0.5, 0.6, np.nan], [0.7, 0.4, np.nan], [0.0, 0.0, np.nan]]
    )
