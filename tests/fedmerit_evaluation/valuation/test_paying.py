"""Paying by an estimator: what goes to the wrong hospital, what moves with the seed, what hospitals reach."""

import numpy as np
import pytest

from fedmerit_evaluation.ground_truth.reliability import Resampled
from fedmerit_lab.benchmarks.budget_allocation import (
    EQUAL,
    RETRAINING,
    Outcome,
    between_seeds,
    budget_table,
    leave_one_seed_out,
    misallocated_share,
    shares,
)


def test_pay_is_a_share_of_what_is_above_nothing():
    assert shares(np.array([3.0, -1.0, 1.0])).tolist() == [0.75, 0, 0.25]
    assert np.isnan(shares(np.array([-1.0, 0.0]))).all()


def test_what_two_divisions_give_to_other_sites():
    assert misallocated_share(np.array([0.5, 0.5, 0]), np.array([0.2, 0.5, 0.3])) == pytest.approx(0.3)
    assert misallocated_share(np.array([1.0, 0]), np.array([0.0, 1])) == 1
    assert between_seeds(np.array([[1.0, 1], [1, 0], [0, 5]])) == pytest.approx((0.5 + 0.5 + 1) / 3)
    assert np.isnan(between_seeds(np.ones((1, 2))))


def test_a_seed_is_held_against_the_mean_of_the_others():
    """Of 1:0, 1:0 and 0:4 the others' means are 1:4, 1:4 and 1:0, so that 4/5, 4/5 and all go elsewhere."""
    assert leave_one_seed_out(np.array([[1.0, 0], [1, 0], [0, 4]])) == pytest.approx((0.8 + 0.8 + 1) / 3)
    assert np.isnan(leave_one_seed_out(np.ones((1, 2))))


def test_a_row_for_each_way_to_pay_the_best_first_and_retraining_itself_beside():
    of_seeds = np.repeat(np.array([[0.3, 0.1, 0.0], [0.1, 0.3, 0.0]])[:, :, None], 2, axis=2)  # on the mean .2, .2, 0
    truth = Resampled(["A", "B", "C"], [0, 1], of_seeds, np.full((2, 3, 2, 1), np.nan))
    said = {"wrong": np.array([[0.0, 0, 1], [0, 0, 1]]), "right": np.array([[2.0, 2, -9], [2, 2, -9]])}
    together, alone = np.array([[0.8, 0.6, 0.7], [0.9, 0.5, 0.7]]), np.full((2, 3), 0.5)
    outcomes = dict.fromkeys(said, Outcome(together, alone))
    table = budget_table("asis", truth, said, outcomes, {"wrong": 0.5, "right": 0})
    assert list(table.frame["Paid by"]) == ["right", "wrong", EQUAL, RETRAINING]
    rows = table.frame.set_index("Paid by")
    wrong = rows["To the wrong hospital [%]"]
    assert wrong[["right", "wrong", EQUAL]].to_list() == pytest.approx([0, 100, 100 / 3])
    assert wrong[RETRAINING] == pytest.approx(50)
    assert rows["Moves from seed to seed [%]"].to_list() == pytest.approx([0, 0, 0, 50])
    assert rows.loc["right", "Mean Dice [%]"] == pytest.approx(70)
    assert rows.loc["right", "Gain over alone [points]"] == pytest.approx(20)
    assert rows.loc["right", "Worst hospital [%]"] == pytest.approx(55)
    assert rows.loc["wrong", "Cost [trainings]"] == 0.5
    assert table.name == "paying-asis"
