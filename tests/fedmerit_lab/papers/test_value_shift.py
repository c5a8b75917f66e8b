"""Theorem 3.2 of FedCE on points of the plane: what is computed, by hand, and which bound holds."""

from itertools import permutations

import numpy as np
import pytest

from fedmerit_lab.papers import value_shift
from fedmerit_lab.papers.value_shift import GAMMAS, lipschitz, supports, table, value, wasserstein


def test_a_value_is_the_mean_over_all_draws(monkeypatch):
    monkeypatch.setattr(value_shift, "OTHERS", 2)
    points, client = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.5, 0.5]])
    means = [[1, 0], [0.5, 0.5], [0.5, 0.5], [0, 1]]
    by_hand = np.mean([((np.array(mean) - client[0]) ** 2).sum() / 4 for mean in means])
    assert value(GAMMAS["error (Eq. 3)"], points, client) == pytest.approx([by_hand])


def test_the_constants_are_the_largest_slopes(monkeypatch):
    monkeypatch.setattr(value_shift, "OTHERS", 2)
    space = np.array([[1.0, 0.0], [0.0, 1.0], [-0.5, 0.2]])
    gamma = GAMMAS["times (Eq. 4)"]
    client, other = 0.0, 0.0
    for fixed in space:
        for a, b in permutations(space, 2):
            for c in space:
                slope = [gamma((fixed + c) / 2, a) - gamma((fixed + c) / 2, b)]
                slope += [gamma((fixed + a) / 2, c) - gamma((fixed + b) / 2, c)]
                client, other = (
                    max(old, abs(new) / np.linalg.norm(a - b)) for old, new in zip((client, other), slope, strict=True)
                )
    assert lipschitz(gamma, space) == pytest.approx((client, other))


def test_the_distance_is_that_of_the_best_pairs():
    first, second = supports(0.7)
    best = min(np.linalg.norm(first - second[list(order)], axis=1).mean() for order in permutations(range(5)))
    assert wasserstein(first, second) == pytest.approx(best)
    assert wasserstein(first, first[::-1]) == 0


def test_the_theorem_holds_as_proved_and_fails_as_printed(monkeypatch):
    monkeypatch.setattr(value_shift, "TURNS", (0.5,))
    found = table().set_index("Contribution")
    assert (found["Within it, as proved"] == "yes").all()
    assert found["Within it, as printed"].to_dict() == {
        name: "no" if name == "of the others alone" else "yes" for name in GAMMAS
    }
    assert found.loc["of the others alone", "Difference, largest"] > 0.1
