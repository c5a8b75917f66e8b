"""FedProx against its slow reference; its worked numbers are read by test_oracles.py."""

import pytest
import torch
from oracles import tensor
from quadratics import descended, made_up, mean, played, shares

from fedmerit.methods.fedavg import FedAvg
from fedmerit.methods.fedprox import FedProx


@pytest.mark.parametrize("seed", [1, 2])
def test_fedprox_is_the_reference(seed):
    content, mu = made_up(seed), 0.7
    w = content["start"]
    for _, outcome, _, _ in played(FedProx(mu), content):

        def pull(at, w=w):
            return [mu * (x - y) for x, y in zip(at, w, strict=True)]

        w = mean([descended(content, i, w, pull) for i in range(3)], shares(content))
        assert torch.allclose(outcome.models, tensor(w), rtol=0, atol=1e-9)
        assert torch.allclose(outcome.weights, tensor(shares(content)), rtol=0, atol=1e-12)


def test_without_the_term_it_is_fedavg():
    content = made_up(3)
    for (_, ours, _, _), (_, theirs, _, _) in zip(
        played(FedProx(0.0), content), played(FedAvg(), content), strict=True
    ):
        assert torch.equal(ours.models, theirs.models)
