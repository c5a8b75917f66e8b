"""FedAvg, its variants and the baselines, against slow references or worked out explicitly; what counts as a norm."""

import math

import pytest
import reference
import torch
from comparing import assert_models
from hypothesis import given
from monai.networks.nets import DynUNet
from oracles import tensor
from quadratics import descended, mean, played, shares, synthetic
from rounds import as_numbers, few, layout, make_rounds, outcomes, random_rounds

from fedmerit.contract.capabilities import PoolsImages, Trained, TrainingView
from fedmerit.contract.method import Layout, Reports
from fedmerit.methods.fedavg import FedAdam, FedAvg, FedAvgM, FedBN, Pooled, SiloBN, Standalone
from fedmerit.methods.proximal import Ditto, FedProx
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.settings import Network
from fedmerit.trainers.factory import build_network, read_layout


def test_every_site_continues_from_its_own_model_and_an_absent_one_keeps_what_it_has():
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


@given(rounds=random_rounds)
@few
def test_fedavg_is_the_reference(rounds):
    d = rounds.updates.shape[2]
    expected = reference.fedavg([0.0] * d, rounds.samples.tolist(), as_numbers(rounds))
    for outcome, model in zip(outcomes(FedAvg(), rounds), expected, strict=True):
        assert outcome.models.tolist() == pytest.approx(model, abs=1e-12)


def test_silobn_is_fedavg_with_statistics_of_each_sites_own():
    rounds = make_rounds(absences=True)
    for ours, theirs in zip(outcomes(SiloBN(), rounds), outcomes(FedAvg(), rounds), strict=True):
        assert (ours.statistics, theirs.statistics) == ("own", "models")
        assert torch.equal(ours.models, theirs.models)
        assert torch.equal(ours.weights, theirs.weights)


def fedbn_reference(rounds, norms):
    """The sites' models after each round: lists."""
    n, samples = len(rounds.samples), rounds.samples.tolist()
    models = [[0.0] * len(norms) for _ in range(n)]
    for updates in as_numbers(rounds):
        total = sum(samples[i] for i in range(n) if updates[i])
        for k, norm in enumerate(norms):
            here = [i for i in range(n) if updates[i]]
            mean = sum(samples[i] / total * updates[i][k] for i in here)
            for i in range(n):
                models[i][k] += (updates[i][k] if updates[i] else 0.0) if norm else mean
        yield [list(model) for model in models]


@given(rounds=random_rounds)
@few
def test_fedbn_is_the_reference(rounds):
    norms = layout(rounds.updates.shape[2]).in_norms.tolist()
    for outcome, expected in zip(outcomes(FedBN(), rounds), fedbn_reference(rounds, norms), strict=True):
        assert_models(outcome.models, expected)
        assert outcome.statistics == "own"


def test_without_norms_it_is_fedavg_with_statistics_of_its_own(monkeypatch):
    monkeypatch.setattr("rounds.layout", Layout.of)
    rounds = make_rounds()
    for ours, theirs in zip(outcomes(FedBN(), rounds), outcomes(FedAvg(), rounds), strict=True):
        assert torch.equal(ours.models, theirs.models.repeat(4, 1))


def test_of_a_site_that_started_elsewhere_the_norms_are_its_own_and_the_rest_is_everybodys():
    rounds, method, places = make_rounds(), FedBN(), layout(12)
    state = method.start(torch.zeros(12), 4, places)
    models = torch.zeros(4, 12)
    models[0] = 5.0  # the first: the others' mean is built on its row
    reports = Reports(rounds.samples, torch.ones(4).bool())
    _, expected = method.round(state, rounds.updates[0], reports)
    _, outcome = method.round(method.restart_from(state, models), rounds.updates[0], reports)
    assert torch.equal(outcome.models, expected.models + models * places.in_norms)


def dynunet():
    affine = ("instance", {"affine": True})
    return DynUNet(2, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[4, 8, 16], norm_name=affine)


@pytest.mark.parametrize(("norm", "mark"), [("batch", "adn.N."), ("group", "adn.N."), ("instance", "-"), ("", ".norm")])
def test_norms_are_found_in_every_network(norm, mark):
    """MONAI's U-Net calls them adn.N, where they have parameters; its DynUNet norm1 and so on."""
    network = build_network(Network(1, ("a", "b"), "unet", width=4, depth=3, norm=norm)) if norm else dynunet()
    found = read_layout(network)
    named = [name for name, is_norm in zip(found.names, found.norms, strict=True) if is_norm]
    assert named == [name for name in found.names if mark in name]
    assert bool(named) == (norm != "instance")
    sizes = dict(zip(found.names, found.tensor_sizes, strict=True))
    assert int(found.in_norms.sum()) == sum(sizes[name] for name in named)


@pytest.mark.parametrize("seed", [1, 2])
def test_fedavgm_is_the_reference(seed):
    content = synthetic(seed)
    w, m = content["start"], [0.0] * 4
    for _, outcome, _, _ in played(FedAvgM(beta=0.5), content):
        after = mean([descended(content, i, w) for i in range(3)], shares(content))
        m = [0.5 * past + a - x for past, a, x in zip(m, after, w, strict=True)]
        w = [x + step for x, step in zip(w, m, strict=True)]
        assert torch.allclose(outcome.models, tensor(w), rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", [1, 2])
def test_fedadam_is_the_reference(seed):
    content = synthetic(seed)
    w, m, v = content["start"], [0.0] * 4, [0.2**2] * 4
    for _, outcome, _, _ in played(FedAdam(eta=0.3, tau=0.2), content):
        after = mean([descended(content, i, w) for i in range(3)], shares(content))
        for k in range(4):
            step = after[k] - w[k]
            m[k] = 0.9 * m[k] + 0.1 * step
            v[k] = 0.99 * v[k] + 0.01 * step**2
        w = [w[k] + 0.3 * m[k] / (math.sqrt(v[k]) + 0.2) for k in range(4)]
        assert torch.allclose(outcome.models, tensor(w), rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", [1, 2])
def test_fedprox_is_the_reference(seed):
    content, mu = synthetic(seed), 0.7
    w = content["start"]
    for _, outcome, _, _ in played(FedProx(mu), content):

        def pull(at, w=w):
            return [mu * (x - y) for x, y in zip(at, w, strict=True)]

        w = mean([descended(content, i, w, pull) for i in range(3)], shares(content))
        assert torch.allclose(outcome.models, tensor(w), rtol=0, atol=1e-9)
        assert torch.allclose(outcome.weights, tensor(shares(content)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", [1, 2])
def test_ditto_is_the_reference(seed):
    content, strength = synthetic(seed), 0.6
    w, own = content["start"], [content["start"]] * 3
    for _, outcome, results, _ in played(Ditto(strength), content):

        def pull(at, w=w):
            return [strength * (x - y) for x, y in zip(at, w, strict=True)]

        own = [descended(content, i, own[i], pull) for i in range(3)]
        w = mean([descended(content, i, w) for i in range(3)], shares(content))
        assert torch.allclose(outcome.models, tensor(w), rtol=0, atol=1e-9)
        assert torch.allclose(torch.stack([one.own.parameters for one in results]), tensor(own), rtol=0, atol=1e-9)


def test_ditto_continues_from_its_own_model_and_statistics():
    given = []

    def train(start, buffers=None, penalty=None, shift=None):
        given.append((start.tolist(), buffers))
        return Trained(start + 1, {"mean": torch.tensor(len(given))}, 0.0, 1, 0.1)

    received, own = {"mean": torch.tensor(0)}, None
    for model in (0.0, 10.0):
        made = Ditto().train(TrainingView(torch.tensor([model]), received, {}, {}, own, train)).own
        own = made.parameters, made.buffers
    assert given == [([0.0], None), ([0.0], received), ([10.0], None), ([1.0], {"mean": torch.tensor(2)})]
