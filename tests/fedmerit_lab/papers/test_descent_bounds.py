"""Theorem 3.3 of FedCE on quadratic losses: one step by hand, and what the table says of the theorem."""

import numpy as np
import pytest

from fedmerit_lab.papers.descent_bounds import AGGREGATIONS, Losses, contributions, run, table


@pytest.fixture(scope="module")
def losses():
    return Losses.draw(3)


def test_the_gradient_is_that_of_the_loss(losses):
    model, ahead = np.linspace(-1, 1, 8), np.eye(8)[2] * 1e-6
    slope = (losses.total(model + ahead) - losses.total(model - ahead)) / 2e-6
    assert losses.total_gradient(model)[2] == pytest.approx(slope, abs=1e-8)
    assert losses.shares.sum() == pytest.approx(1)


def test_one_step_is_gradient_descent(losses):
    first = next(run(losses, "FedAvg", 1, 1.0))
    gradient = losses.total_gradient(np.zeros(8))
    moved = -gradient / losses.smoothness
    assert first.change == pytest.approx(losses.total(moved) - losses.total(np.zeros(8)))
    assert first.bound == pytest.approx(-gradient @ gradient / losses.smoothness / 2)
    assert first.change < first.bound
    assert first.shorter
    assert not first.corollary  # A is 0


def test_contributions_are_fedces(losses):
    random = np.random.default_rng(0)
    updates, weights = random.normal(size=(4, 8)), losses.shares
    terms = []
    for site in range(4):
        others = [other for other in range(4) if other != site]
        mean = weights[others] @ updates[others] / weights[others].sum()
        cosine = updates[site] @ mean / np.linalg.norm(updates[site]) / np.linalg.norm(mean)
        error = losses.of(site, mean)
        terms.append(((1 - cosine), error / (1 + error)))
    product = np.prod(terms, axis=1)
    assert contributions(losses, np.zeros(8), updates, weights) == pytest.approx(product / product.sum())


def test_the_theorem_is_of_gradient_descent_and_not_of_fedces_weights():
    found = table(repeats=1).set_index(["Aggregation", "Local steps", "Rate x L"])
    assert set(found.index.get_level_values("Aggregation")) == set(AGGREGATIONS)
    assert (found.loc["as in the proof (Eq. 13)", "Within the bound [%]"] == 100).all()
    assert (found.loc[("FedCE", 1), "Within the bound [%]"] < 100).any()
    many = found[(found.index.get_level_values("Local steps") > 1) & (found.index.get_level_values("Rate x L") >= 1)]
    assert (many["Descent promised [%]"] == 0).all()
    assert (found.loc[("FedAvg", 2, 1.9), "Of these loss fell [%]"]) < 50  # where the corollary's condition is met
