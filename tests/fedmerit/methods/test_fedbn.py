"""FedBN against its slow reference, and what counts as a norm."""

import pytest
import torch
from comparing import assert_models
from hypothesis import given
from monai.networks.nets import DynUNet
from rounds import as_numbers, few, layout, make_rounds, outcomes, random_rounds

from fedmerit.configuration.run import Network
from fedmerit.core import Layout, Reports
from fedmerit.federation.network_layout import read_layout
from fedmerit.methods.fedavg import FedAvg, FedBN
from fedmerit.trainers.monai_trainer.networks import build_network


def reference(rounds, norms):
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
    for outcome, expected in zip(outcomes(FedBN(), rounds), reference(rounds, norms), strict=True):
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
