"""FedAvgM, FedAdam, FedProx and Ditto against their slow references; test_oracles.py reads their worked numbers."""

import math

import pytest
import torch
from oracles import tensor
from quadratics import descended, made_up, mean, played, shares

from fedmerit.capabilities import Trained, TrainingView
from fedmerit.methods.fedavg import FedAdam, FedAvgM
from fedmerit.methods.proximal import Ditto, FedProx


@pytest.mark.parametrize("seed", [1, 2])
def test_fedavgm_is_the_reference(seed):
    content = made_up(seed)
    w, m = content["start"], [0.0] * 4
    for _, outcome, _, _ in played(FedAvgM(beta=0.5, eta=0.8), content):
        after = mean([descended(content, i, w) for i in range(3)], shares(content))
        m = [0.5 * past + a - x for past, a, x in zip(m, after, w, strict=True)]
        w = [x + 0.8 * step for x, step in zip(w, m, strict=True)]
        assert torch.allclose(outcome.models, tensor(w), rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", [1, 2])
def test_fedadam_is_the_reference(seed):
    content = made_up(seed)
    w, m, v = content["start"], [0.0] * 4, [0.2**2] * 4
    for _, outcome, _, _ in played(FedAdam(beta1=0.6, beta2=0.7, eta=0.3, tau=0.2), content):
        after = mean([descended(content, i, w) for i in range(3)], shares(content))
        for k in range(4):
            step = after[k] - w[k]
            m[k] = 0.6 * m[k] + 0.4 * step
            v[k] = 0.7 * v[k] + 0.3 * step**2
        w = [w[k] + 0.3 * m[k] / (math.sqrt(v[k]) + 0.2) for k in range(4)]
        assert torch.allclose(outcome.models, tensor(w), rtol=0, atol=1e-9)


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


@pytest.mark.parametrize("seed", [1, 2])
def test_ditto_is_the_reference(seed):
    content, strength = made_up(seed), 0.6
    w, own = content["start"], [content["start"]] * 3
    for _, outcome, results, _ in played(Ditto(strength), content):

        def pull(at, w=w):
            return [strength * (x - y) for x, y in zip(at, w, strict=True)]

        own = [descended(content, i, own[i], pull) for i in range(3)]
        w = mean([descended(content, i, w) for i in range(3)], shares(content))
        assert torch.allclose(outcome.models, tensor(w), rtol=0, atol=1e-9)
        assert torch.allclose(torch.stack([one.own.parameters for one in results]), tensor(own), rtol=0, atol=1e-9)


def test_ditto_goes_on_from_its_own_model_and_statistics():
    given = []

    def train(start, buffers=None, penalty=None, shift=None):
        given.append((start.tolist(), buffers))
        return Trained(start + 1, {"mean": torch.tensor(len(given))}, 0.0, 1, 0.1)

    received, own = {"mean": torch.tensor(0)}, None
    for model in (0.0, 10.0):
        made = Ditto().train(TrainingView(torch.tensor([model]), received, {}, {}, own, train)).own
        own = made.parameters, made.buffers
    assert given == [([0.0], None), ([0.0], received), ([10.0], None), ([1.0], {"mean": torch.tensor(2)})]
