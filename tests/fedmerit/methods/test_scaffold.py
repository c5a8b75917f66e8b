"""SCAFFOLD against its slow reference, absent sites, its optimiser; worked numbers are read by test_oracles.py."""

import pytest
import torch
from oracles import tensor
from quadratics import descended, made_up, mean, played

from fedmerit.configuration.run import TASKS, make_configuration
from fedmerit.core import Layout, Reports
from fedmerit.errors import BadInput
from fedmerit.methods.scaffold import SCAFFOLD


@pytest.mark.parametrize("seed", [1, 2])
def test_scaffold_is_the_reference(seed):
    content, equal = made_up(seed), [1 / 3] * 3
    w, c, own = content["start"], [0.0] * 4, [[0.0] * 4 for _ in range(3)]
    for _, outcome, _, _ in played(SCAFFOLD(eta_g=0.7), content):
        trained, new = [], []
        for i in range(3):
            shift = [a - b for a, b in zip(c, own[i], strict=True)]
            trained.append(descended(content, i, w, lambda at, shift=shift: shift))
            length = content["steps"] * content["lr"]
            new.append([own[i][k] - c[k] + (w[k] - trained[i][k]) / length for k in range(4)])
        w = [x + 0.7 * (y - x) for x, y in zip(w, mean(trained, equal), strict=True)]
        c = [x + y - z for x, y, z in zip(c, mean(new, equal), mean(own, equal), strict=True)]
        own = new
        assert torch.allclose(outcome.models, tensor(w), rtol=0, atol=1e-9)
        assert torch.allclose(outcome.vectors["control"], tensor(c), rtol=0, atol=1e-9)


def test_scaffold_counts_absent_sites_in_the_control():
    """c ← c + |S|/N mean over S."""
    method = SCAFFOLD()
    state = method.start(torch.zeros(1), 4, Layout.of(1))
    here = torch.tensor([True, True, False, False])
    sent = {"control": torch.tensor([[1.0], [3.0], [0.0], [0.0]])}
    reports = Reports(torch.ones(4).double(), here, vectors=sent)
    state, outcome = method.round(state, torch.tensor([[2.0], [4.0], [0.0], [0.0]]), reports)
    assert state.control.tolist() == outcome.vectors["control"].tolist() == [1.0]
    assert outcome.models.tolist() == [3.0]


def test_scaffold_takes_sgd_alone():
    with pytest.raises(BadInput, match=r"optimizer=adam: method scaffold needs sgd; add --set optimizer=sgd"):
        make_configuration("scaffold", "prostate", 3, 0, TASKS["prostate"], {})
    made = make_configuration("scaffold", "prostate", 3, 0, TASKS["prostate"], {"optimizer": "sgd"})
    assert made.build_method() == SCAFFOLD()
