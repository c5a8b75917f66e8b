"""Ditto against its slow reference, and what its own models begin with; worked numbers are read by test_oracles.py."""

import pytest
import torch
from oracles import tensor
from quadratics import descended, made_up, mean, played, shares

from fedmerit.capabilities import Trained, TrainingView
from fedmerit.methods.ditto import Ditto


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
    assert given == [
        ([0.0], None),
        ([0.0], received),
        ([10.0], None),
        ([1.0], {"mean": torch.tensor(2)}),
    ]
