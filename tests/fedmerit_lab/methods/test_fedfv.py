"""FedFV against its algorithms, vector by vector."""

import math

import pytest
import torch
from comparing import assert_at_sites, assert_models, given_to, own_losses_of
from hypothesis import given
from rounds import few, make_rounds, play, random_rounds

from fedmerit.contract.method import Layout, Reports
from fedmerit_lab.methods.fedfv import FedFV


def dot(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True))


def off(vector, other):
    """The vector projected onto the plane normal to the other, if they conflict."""
    return [a - dot(vector, other) / dot(other, other) * b for a, b in zip(vector, other, strict=True)]


def mean(vectors):
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def fair_step(updates, losses, last, ago, alpha, tau):
    """Algorithms 1 to 3 on updates by site; ``last`` and ``ago`` of the absent ones."""
    order = sorted(updates, key=lambda i: losses[i])
    kept = order[math.ceil((len(order) - 1) * (1 - alpha)) :] if alpha else []
    projected = []
    for i in order:
        vector = updates[i]
        for j in order:
            if i not in kept and j != i and dot(vector, updates[j]) < 0:
                vector = off(vector, updates[j])
        projected.append(vector)
    step = mean(projected)
    for rounds in range(tau, 0, -1):
        conflicts = [last[k] for k in last if ago[k] == rounds and dot(step, last[k]) < 0]
        total = [sum(column) for column in zip(*conflicts, strict=True)]
        if conflicts and dot(step, total) < 0:
            step = off(step, total)
    length = math.sqrt(dot(mean(list(updates.values())), mean(list(updates.values()))))
    scale = length / math.sqrt(dot(step, step)) if dot(step, step) > 0 else 1
    return [scale * x for x in step]


@pytest.mark.parametrize(("alpha", "tau"), [(0.1, 1), (0.0, 0), (0.5, 2), (1.0, 3)])
@given(rounds=random_rounds)
@few
def test_fedfv_of_random_rounds_is_algorithms_1_to_3(alpha, tau, rounds):
    model, _, of_rounds = given_to(rounds)
    last, ago = {}, {}
    for (_, outcome), updates in zip(play(FedFV(alpha=alpha, tau=tau), rounds), of_rounds, strict=True):
        here = {i: update for i, update in enumerate(updates) if update is not None}
        losses = {i: own_losses_of(rounds)(i, model) for i in here}
        losses = {i: sum(of_site) / len(of_site) for i, of_site in losses.items()}
        absent = {i: update for i, update in last.items() if i not in here}
        step = fair_step(here, losses, absent, ago, alpha, tau)
        model = [w + x for w, x in zip(model, step, strict=True)]
        last |= here
        ago = {i: 1 if i in here else ago[i] + 1 for i in last}
        assert_at_sites(outcome.quantities["loss"], losses, here)
        assert outcome.weights[list(here)].tolist() == pytest.approx([1 / len(here)] * len(here))
        assert_models(outcome.models, model)


def test_fedfv_without_conflicts_is_the_plain_mean():
    updates = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    reports = Reports(torch.tensor([5.0, 1.0, 1.0]), torch.ones(3, dtype=torch.bool), {"loss": torch.rand(3).double()})
    method = FedFV()
    _, outcome = method.round(method.start(torch.zeros(2), 3, Layout.of(2)), updates, reports)
    assert outcome.models.tolist() == pytest.approx([2 / 3, 1.0])


def test_fedfv_of_a_conflict_keeps_the_worst_served_site_from_harm():
    updates = torch.tensor([[4.0, 0.0], [-1.0, 1.0]])  # the plain mean, (1.5, .5), is against the second
    reports = Reports(torch.ones(2), torch.tensor([True, True]), {"loss": torch.tensor([0.1, 0.9]).double()})
    method = FedFV()
    _, outcome = method.round(method.start(torch.zeros(2), 2, Layout.of(2)), updates, reports)
    assert float(updates[1] @ updates.mean(dim=0)) < 0 < float(updates[1] @ outcome.models)
    assert float(outcome.models.norm()) == pytest.approx(float(updates.mean(dim=0).norm()))


def test_fedfv_of_losses_in_the_order_of_any_site_does_not_depend_on_it():
    rounds = make_rounds(2, n=5)
    order = torch.tensor([4, 2, 0, 3, 1])
    ours, theirs = (play(FedFV(tau=2), one)[-1][1].models for one in (rounds, rounds.of_sites(order)))
    assert torch.allclose(ours, theirs, atol=1e-5)
