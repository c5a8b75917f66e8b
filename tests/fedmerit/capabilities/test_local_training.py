"""What a method can add to how a site trains."""

import pytest
import torch

from fedmerit.capabilities import LocalResult, Trained, TrainsLocally, towards
from fedmerit.methods.registry import METHODS

LOCAL = {name: kind for name, kind in METHODS.items() if issubclass(kind, TrainsLocally)}


def test_the_term_towards_a_point_and_its_gradient():
    """0.3/2 (2² + 1²) = 0.75; the gradient is 0.3 (w - point)."""
    w = torch.tensor([3.0, -1.0], requires_grad=True)
    loss = towards(torch.tensor([1.0, 0.0], dtype=torch.float64), 0.3)(w)
    assert (float(loss.detach()), loss.dtype) == (pytest.approx(0.75), torch.float32)
    loss.backward()
    torch.testing.assert_close(w.grad, torch.tensor([0.6, -0.3]))
    assert float(towards(w.detach(), 5.0)(w.detach())) == 0


def test_by_default_nothing_is_sent_beside_updates_and_any_optimiser_will_do():
    plain = TrainsLocally()
    assert (plain.vectors, plain.keeps_own_model, plain.optimizers) == ((), False, ())
    with pytest.raises(NotImplementedError):
        plain.train(None)
    result = LocalResult(Trained(torch.zeros(2), {}, 0.5, 3, 0.1))
    assert (result.vectors, result.kept, result.own) == ({}, {}, None)


def test_who_uses_which_part_of_it():
    assert set(LOCAL) == {"fedprox", "scaffold", "ditto"}
    assert [name for name, kind in LOCAL.items() if kind.vectors] == ["scaffold"]
    assert [name for name, kind in LOCAL.items() if kind.keeps_own_model] == ["ditto"]
    assert [name for name, kind in LOCAL.items() if kind.optimizers] == ["scaffold"]
