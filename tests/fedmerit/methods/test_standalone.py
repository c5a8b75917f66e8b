"""Standalone, worked by hand."""

import pytest
import torch

from fedmerit.core import Layout, Reports
from fedmerit.methods.standalone import Standalone


def test_every_site_goes_on_from_its_own_model_and_an_absent_one_keeps_what_it_has():
    method = Standalone()
    state = method.start(torch.tensor([1.0, 2.0]), 3, Layout.of(2))
    assert state.models.tolist() == [[1, 2]] * 3
    images = torch.tensor([10.0, 20.0, 30.0]).double()
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
    state, outcome = method.round(state, first, Reports(images, torch.tensor([True, True, True])))
    assert outcome.models.tolist() == [[2, 2], [1, 3], [6, 7]]
    here = torch.tensor([True, False, True])
    second = torch.tensor([[0.5, 0.0], [0.0, 0.0], [-1.0, 0.0]])
    state, outcome = method.round(state, second, Reports(images, here))
    assert outcome.models.tolist() == state.models.tolist() == [[2.5, 2], [1, 3], [5, 7]]
    assert outcome.statistics == "models"  # BatchNorm's too
    assert outcome.weights.tolist() == [0.25, 0, 0.75]
    assert outcome.reputation.tolist() == [0, 0, 0]
    assert outcome.contribution.tolist() == pytest.approx([0, torch.nan, 0], nan_ok=True)
