"""FedAvgM against its slow reference; its worked numbers are read by test_oracles.py."""

import pytest
import torch
from oracles import tensor
from quadratics import descended, made_up, mean, played, shares

from fedmerit.methods.fedavg import FedAvg
from fedmerit.methods.fedavgm import FedAvgM


@pytest.mark.parametrize("seed", [1, 2])
def test_fedavgm_is_the_reference(seed):
    content = made_up(seed)
    w, m = content["start"], [0.0] * 4
    for _, outcome, _, _ in played(FedAvgM(beta=0.5, eta=0.8), content):
        after = mean([descended(content, i, w) for i in range(3)], shares(content))
        m = [0.5 * past + a - x for past, a, x in zip(m, after, w, strict=True)]
        w = [x + 0.8 * step for x, step in zip(w, m, strict=True)]
        assert torch.allclose(outcome.models, tensor(w), rtol=0, atol=1e-9)


def test_without_momentum_it_is_fedavg():
    content = made_up(3)
    for (_, ours, _, _), (_, theirs, _, _) in zip(
        played(FedAvgM(0.0), content), played(FedAvg(), content), strict=True
    ):
        assert torch.allclose(ours.models, theirs.models, rtol=0, atol=1e-12)
