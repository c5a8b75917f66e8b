"""Theorems 1 and 2 of FedSAC on quadratic losses: by hand, and where they hold."""

import numpy as np
import pytest

from fedmerit_lab.papers.submodel_bounds import HELD, NEURONS, Problem, convergence, excess, held, order


def test_theorem_1_holds_of_one_curvature_near_the_minimum():
    at_minimum = order(1.0, 0.0, draws=10)
    assert at_minimum == {
        "nearer model [%]": 100,
        "lower loss [%]": 100,
        "Eq. 16 met [%]": 100,
        "of these lower loss [%]": 100,
    }
    near = order(1.0, 0.1, draws=20)
    assert near["of these lower loss [%]"] == 100
    assert near["Eq. 16 met [%]"] < 100


def test_theorem_1_fails_of_other_losses_and_far_from_the_minimum():
    assert order(100.0, 0.0, draws=30)["of these lower loss [%]"] < 100
    far = order(1.0, 1.0, draws=10)
    assert far["nearer model [%]"] == 100
    assert far["lower loss [%]"] < 80
    assert np.isnan(far["of these lower loss [%]"])


def test_the_least_loss_has_no_gradient():
    problem = Problem.draw(2)
    gradients = problem.gradients(np.broadcast_to(problem.least, (len(HELD), 1, NEURONS)))
    assert np.abs(gradients.mean(axis=0)).max() < 1e-12
    away = problem.least + 0.1
    by_hand = np.mean(
        [(away - c) @ h @ (away - c) / 2 for h, c in zip(problem.curvatures, problem.centres, strict=True)]
    )
    assert problem.loss(away) == pytest.approx(by_hand)


def test_submodels_are_nested_or_drawn_by_their_share():
    random = np.random.default_rng(0)
    nested = held("nested", 2, random)
    assert nested.sum(axis=2)[:, 0].tolist() == [3, 6, 9, 12]
    assert (nested[1:] >= nested[:-1]).all()
    assert held("drawn", 2000, random).mean(axis=(1, 2)) == pytest.approx(np.array(HELD), abs=0.02)
    assert held("whole", 1, random).all()


def test_the_bound_by_hand_and_where_it_fails():
    found = excess("whole", 1, rounds=(3,)).iloc[0]
    problem = Problem.draw(0)
    b = 4 * 0.1 + 12 * float(problem.loss(problem.least))
    expected = 2 / (15 + 3) * (2 * b + 16 / 2 * float((problem.least**2).sum()))
    assert found["Theorem 2: at most"] == pytest.approx(expected)
    table = convergence(rounds=(10, 400)).set_index(["Submodels", "Local steps", "Rounds"])
    assert (table.xs("whole models")["Within it"] == "yes").all()
    nested = table.loc[("nested, for good", 1)]["Loss above the least"]
    assert nested[400] > 1  # it stops there, while the bound falls
    assert table.loc[("whole models", 1, 400), "Loss above the least"] < 1e-3
    assert table.loc[("nested, for good", 1, 400), "Within it"] == "no"
