"""Models evaluated once on the same images, however often they are asked for."""

from dataclasses import replace

import pytest
import torch

from fedmerit import flat
from fedmerit.configuration.run import TASKS, Network, RunConfiguration
from fedmerit.federation import model_evaluation
from fedmerit.federation.model_evaluation import Evaluations, evaluate_models
from fedmerit.trainers.monai_trainer.data import SiteFolder
from fedmerit.trainers.monai_trainer.networks import initial_network
from fedmerit.trainers.monai_trainer.overlaps import mean_dice
from fedmerit.trainers.monai_trainer.prediction import evaluate
from fedmerit.wire.messages import Evaluation

NETWORK = Network(**TASKS["prostate"], architecture="unet", width=2, depth=2)  # with batch norms
CONFIG = RunConfiguration("fedavg", "prostate", rounds=1, seed=0, network=NETWORK)


@pytest.fixture(scope="module")
def cases(sites):
    return SiteFolder(sites / "site1").cases("validation")


@pytest.fixture
def passes(monkeypatch):
    """The number of slices that the network sees in a pass, one for each evaluation."""
    seen = []
    for name in ("evaluate", "evaluate_with_losses"):
        original = getattr(model_evaluation, name)
        monkeypatch.setattr(model_evaluation, name, lambda *rest, of=original: seen.append(len(rest[1])) or of(*rest))
    return seen


def task(models, mixtures, bins=0):
    buffers = flat.get_buffers(initial_network(NETWORK, 0))
    shares = torch.ones(len(mixtures), 1, dtype=torch.float64)
    return Evaluation(
        0, "validation", models, torch.tensor(mixtures, dtype=torch.float64), (buffers,), shares, bins=bins
    )


def test_equal_candidates_are_evaluated_once_with_the_numbers_of_each_alone(cases, passes):
    network = initial_network(NETWORK, 0)
    first, second = (flat.get_parameters(initial_network(NETWORK, seed)) for seed in (0, 1))
    asked = task(torch.stack([first, second, first]), [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0, 0.5]], bins=4)
    together = evaluate_models(network, cases, asked, CONFIG)
    assert len(passes) == 2
    assert together.overlaps[0] == together.overlaps[2] == together.overlaps[3] != together.overlaps[1]
    assert torch.equal(together.losses[0], together.losses[2])
    for place in range(4):
        alone = replace(asked, mixtures=asked.mixtures[place][None], shares=asked.shares[:1])
        found = evaluate_models(network, cases, alone, CONFIG)
        assert found.overlaps == (together.overlaps[place],)
        assert torch.equal(found.losses[0], together.losses[place])


def test_what_was_found_before_is_remembered_by_model_statistics_and_images(cases, passes):
    network, known = initial_network(NETWORK, 0), Evaluations(CONFIG)
    model, buffers = flat.get_parameters(network), flat.get_buffers(network)
    first = known.of(network, model, buffers, cases)
    asked = task(model[None], [[1]])
    assert evaluate_models(network, cases, asked, CONFIG, evaluations=known).overlaps == (first.overlaps,)
    assert len(passes) == 1
    other = {name: value + 1 for name, value in buffers.items()}
    flat.load(network, model, other)
    assert known.of(network, model, other, cases).overlaps == tuple(evaluate(network, cases, NETWORK.labels))
    model[0] += 1
    known.of(network, model, buffers, cases)
    known.of(network, model, buffers, cases[:-1])
    assert len(passes) == 4
    assert all(0 <= mean_dice(found.overlaps) <= 1 for found in known._found.values())


def test_no_more_than_the_last_are_remembered(cases, passes, monkeypatch):
    monkeypatch.setattr(model_evaluation, "KEPT", 2)
    network, known = initial_network(NETWORK, 0), Evaluations(CONFIG)
    buffers = flat.get_buffers(network)
    models = [flat.get_parameters(network) + step for step in range(3)]
    for place in (0, 1, 0, 2, 0, 1):  # the last: forgotten, as it was asked for before the others
        known.of(network, models[place], buffers, cases)
    assert len(passes) == 4
