"""VPDL: a site and its peers, of networks of few weights."""

import pytest
import torch
from tiny_peers import BAD, GOOD, data, view

from fedmerit.core import Reports
from fedmerit.distillation import divergence
from fedmerit.methods.vpdl import VPDL


def test_vpdl_takes_all_peers_alike():
    method = VPDL(warmup=1, lambda0=2.0)
    assert method.sharing(method.start(torch.zeros(1), 3, [1])) is None
    state, _ = method.round(
        method.start(torch.zeros(1), 3, [1]), torch.zeros(3, 1), Reports(torch.ones(3), torch.ones(3).bool())
    )
    sharing = method.sharing(state)
    assert (sharing.probability == 1).all()
    assert (sharing.weights == 0.5).all()
    held = view({"good": 0.5, "bad": 0.5}, round=1)
    images = data()[0][0]
    own = held.network(images).detach()
    both = sum(float(divergence(own, network(images), method.T, "own_peer")) for network in (GOOD, BAD))
    assert float(method.learn_from(held).loss(images, own)) == pytest.approx(both, rel=1e-6)


def test_every_site_goes_on_from_what_it_trained_and_nobody_has_contributed():
    method, start = VPDL(warmup=0), torch.tensor([1.0, 2.0])
    updates = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 3.0]])
    reports = Reports(torch.tensor([10.0, 0.0, 30.0]).double(), torch.tensor([True, False, True]))
    state, outcome = method.round(method.start(start, 3, [2]), updates, reports)
    assert outcome.models.tolist() == state.models.tolist() == [[2, 2], [1, 2], [1, 5]]
    assert outcome.weights.tolist() == [0.25, 0, 0.75]
    assert outcome.contribution.tolist() == pytest.approx([0, torch.nan, 0], nan_ok=True)
    _, outcome = method.round(state, updates, reports)
    assert outcome.models.tolist() == [[3, 2], [1, 2], [1, 8]]


def test_it_needs_a_round_in_which_sites_learn_from_each_other():
    assert VPDL().needs.rounds == 9
    assert VPDL(warmup=0).needs.rounds == 1


def test_a_site_that_nobody_shared_with_has_nothing_added_to_its_loss():
    term = VPDL(warmup=0).learn_from(view({}, round=1))
    assert float(term.loss(data()[0][0], torch.zeros(4, 1, 5, 5))) == 0.0
