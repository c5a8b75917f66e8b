"""The ensemble of local models."""

import pytest
import torch
from torch import nn

from fedmerit.errors import BadInput
from fedmerit_evaluation.studies.comparison import Ensemble, prepare
from fedmerit_evaluation.studies.study import parse_methods


def test_ensemble_probabilities_are_mean_of_members():
    members = [nn.Conv2d(1, 2, 3, padding=1) for _ in range(3)]
    members[0].mirrored = True
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    ensemble = Ensemble(members)
    expected = torch.stack([torch.sigmoid(member(images)) for member in members]).mean(dim=0)
    torch.testing.assert_close(torch.sigmoid(ensemble(images)), expected)
    assert ensemble.mirrored
    assert not hasattr(ensemble, "patch")
    masks = torch.cat([100 * torch.ones(1), -100 * torch.ones(1)])  # sure members do not make it infinite
    assert torch.isfinite(torch.logit(torch.sigmoid(masks), eps=1e-7)).all()


def test_ensemble_needs_standalone(sites, tmp_path):
    items = parse_methods("fedavg,ensemble")
    with pytest.raises(BadInput, match="--methods ensemble: standalone is not compared; name it among the methods"):
        prepare(tmp_path / "out", items, [0], {}, {"sites": sites, "rounds": 1, "engine": "local"})
    with pytest.raises(BadInput, match="method 'ensemble': unknown"):
        parse_methods("ensemble:members=2")
