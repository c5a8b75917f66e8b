"""FedMGDA+ against its quadratic program, solved by another algorithm on the vectors themselves."""

import numpy as np
import pytest
import torch
from comparing import assert_at_sites, given_to
from hypothesis import given
from rounds import few, make_rounds, play, random_rounds
from scipy.optimize import minimize

from fedmerit.contract.method import Layout, Reports
from fedmerit_lab.methods.fedmgda import FedMGDAPlus, shortest_mixture


def shortest(vectors, prior, epsilon):
    """The least length of a mixture of vectors with weights near the prior, by sequential least squares."""
    found = minimize(
        lambda x: ((x @ vectors) ** 2).sum(),
        prior,
        bounds=[(max(p - epsilon, 0), min(p + epsilon, 1)) for p in prior],
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return float(np.linalg.norm(found.x @ vectors))


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
@given(rounds=random_rounds)
@few
def test_fedmgda_of_random_rounds_is_algorithm_1(epsilon, rounds):
    model, samples, of_rounds = given_to(rounds)
    model = np.array(model)
    for (_, outcome), updates in zip(play(FedMGDAPlus(epsilon), rounds), of_rounds, strict=True):
        here = [i for i, update in enumerate(updates) if update is not None]
        lengths = np.array([np.linalg.norm(updates[i]) for i in here])
        vectors = np.array([updates[i] for i in here]) / lengths[:, None]
        prior = np.array([samples[i] for i in here]) / sum(samples[i] for i in here)
        weights = outcome.weights[here].numpy()
        assert_at_sites(outcome.contribution, dict(zip(here, weights, strict=True)), here)
        assert (abs(weights - prior) <= epsilon + 1e-12).all()
        assert (weights >= 0).all()
        assert np.linalg.norm(weights @ vectors) <= shortest(vectors, prior, epsilon) + 1e-5
        model = model + prior @ lengths * (weights @ vectors)
        assert torch.allclose(outcome.models, torch.from_numpy(model), rtol=0, atol=1e-9)


def test_fedmgda_with_epsilon_1_hurts_no_site():
    updates = make_rounds(3, n=3, d=12).updates[0]
    updates[2] = -0.2 * updates[0] + 0.05 * updates[1]  # against the first
    reports = Reports(torch.tensor([8.0, 1.0, 1.0]), torch.ones(3, dtype=torch.bool))
    method = FedMGDAPlus(epsilon=1.0)
    _, outcome = method.round(method.start(torch.zeros(12), 3, Layout.of(12)), updates, reports)
    assert (updates @ outcome.models > -1e-5).all()
    assert (updates @ (reports.data_share.float() @ updates)).min() < 0


def test_shortest_mixture_of_equal_vectors_shares_their_weight():
    prior = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert shortest_mixture(vectors @ vectors.T, prior, 1.0).tolist() == pytest.approx([0.25, 0.25, 0.5], abs=1e-6)


def test_fedmgda_with_its_own_step_length_scales_the_step():
    updates = make_rounds(1).updates[0]
    reports = Reports(torch.ones(4), torch.ones(4, dtype=torch.bool))
    steps = []
    for eta in (0.5, 1.0):
        method = FedMGDAPlus(eta=eta)
        steps.append(method.round(method.start(torch.zeros(12), 4, Layout.of(12)), updates, reports)[1].models)
    assert torch.allclose(2 * steps[0], steps[1])
