"""FedAdam against its slow reference; its worked numbers are read by test_oracles.py."""

import math

import pytest
import torch
from oracles import tensor
from quadratics import descended, made_up, mean, played, shares

from fedmerit.methods.fedadam import FedAdam


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
