"""Pooled: FedAvg of one and the same update; the training itself is tested on the local engine."""

import torch

from fedmerit.capabilities import PoolsImages
from fedmerit.core import Layout, Reports
from fedmerit.methods.pooled import Pooled
from fedmerit.methods.registry import METHODS


def test_the_model_moves_by_the_update_that_all_sites_send_whatever_their_images():
    method, model = Pooled(), torch.tensor([1.0, -2.0, 0.5]).double()
    update = torch.tensor([0.25, 0.0, -4.0]).double()
    reports = Reports(torch.tensor([1.0, 1000.0, 7.0]).double(), torch.ones(3, dtype=torch.bool))
    _, outcome = method.round(method.start(model, 3, Layout.of(3)), update.repeat(3, 1), reports)
    assert torch.allclose(outcome.models, torch.tensor([1.25, -2.0, -3.5]).double(), rtol=0, atol=1e-15)
    assert outcome.weights.tolist() == [1 / 1008, 1000 / 1008, 7 / 1008]
    assert outcome.contribution.tolist() == [0, 0, 0]


def test_nobody_is_credited_and_of_who_is_away_nothing_is_known():
    method, present = Pooled(), torch.tensor([True, False])
    reports = Reports(torch.ones(2).double(), present)
    _, outcome = method.round(method.start(torch.zeros(2).double(), 2, Layout.of(2)), torch.eye(2).double(), reports)
    assert outcome.contribution[0] == 0
    assert outcome.contribution[1].isnan()


def test_no_other_method_has_all_images_in_one_place_and_it_can_do_with_one_site():
    assert [name for name, kind in METHODS.items() if issubclass(kind, PoolsImages)] == ["pooled"]
    assert Pooled().needs.sites == 1
