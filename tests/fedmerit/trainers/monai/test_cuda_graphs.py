"""Steps captured as graphs, on a CPU: in place of CUDA, recorded work is done again on the same tensors."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from one_in import one_in

from fedmerit.contract import flat
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.settings import Network, Training
from fedmerit.schema.site_folder import Case
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.monai import cuda_graphs, local_training
from fedmerit.trainers.monai.augmentation import Augmenter
from fedmerit.trainers.monai.evaluation import Evaluations
from fedmerit.trainers.monai.local_training import train
from fedmerit.trainers.monai.samples import Slices

NETWORK = Network(in_channels=1, labels=("disc", "cup"), architecture="unet", width=2, depth=3)
TRAINING = Training(batch_size=4, epochs=2, capture=True)


@pytest.fixture
def recorded(monkeypatch):
    """Have steps on the CPU captured; return the works that were recorded."""
    works = []

    def record(work, stream):
        works.append(work)
        return work

    class OfAllImages(Augmenter):
        """An augmenter that works as on a GPU."""

        def __init__(self, *of_round):
            super().__init__(*of_round)
            self.transforms_all = True

    monkeypatch.setattr(local_training, "Augmenter", OfAllImages)
    monkeypatch.setattr(local_training, "CAPTURING", {"cpu"})
    monkeypatch.setattr(cuda_graphs, "CAPTURING", {"cpu"})
    monkeypatch.setattr(cuda_graphs, "record", record)
    return works


@dataclass(frozen=True)
class Volume(Case):
    """A case that lies in memory."""

    image: np.ndarray = None
    label: np.ndarray = None


def volume(seed, slices):
    random = np.random.default_rng(seed)
    image = random.normal(size=(slices, 1, 16, 16)).astype(np.float32)
    return Volume("", "", "", "", image=image, label=(random.random((slices, 2, 16, 16)) < 0.3).astype(np.uint8))


def samples(slices=6):
    return Slices([volume(seed, slices) for seed in range(2)])


def rounds(training, network, count=3, batches=None):
    """Train some rounds; the trained models, the losses, and per round the number of forward passes."""
    models, losses = [], []
    for round in range(count):
        losses.append(train(network, batches or samples(), training, 1e-3 / (1 + round), seed=round))
        models.append(flat.get_parameters(network))
    return torch.stack(models), losses


@pytest.mark.parametrize("optimizer", one_in(2, ["adam", "adamw", "sgd"]))
def test_captured_and_eager_rounds_give_the_same_bits(recorded, optimizer):
    training = replace(TRAINING, optimizer=optimizer, momentum=0.9 if optimizer == "sgd" else 0.0, clip_norm=1.0)
    eager = rounds(replace(training, capture=False), initial_network(NETWORK, 0))
    assert not recorded
    captured = rounds(training, initial_network(NETWORK, 0))
    assert torch.equal(captured[0], eager[0])
    assert captured[1] == eager[1]
    assert len(recorded) == 1  # for all rounds


def test_each_shape_of_batches_has_a_graph(recorded):
    """Seven slices a patient: batches of 4, 4, 4 and 2."""
    training = replace(TRAINING, epochs=3)
    eager = rounds(replace(training, capture=False), initial_network(NETWORK, 0), batches=samples(7))
    captured = rounds(training, initial_network(NETWORK, 0), batches=samples(7))
    assert torch.equal(captured[0], eager[0])
    assert len(recorded) == 2


def logged_faults(monkeypatch):
    """Return a list to which the logged reasons go."""
    faults = []
    monkeypatch.setattr(cuda_graphs.log, "warning", lambda text, fault: faults.append(fault))
    return faults


def test_a_graph_that_gives_other_bits_is_not_replayed(recorded, monkeypatch):
    faults = logged_faults(monkeypatch)
    monkeypatch.setattr(cuda_graphs, "record", lambda work, stream: lambda: None)
    eager = rounds(replace(TRAINING, capture=False), initial_network(NETWORK, 0))
    captured = rounds(TRAINING, initial_network(NETWORK, 0))
    assert torch.equal(captured[0], eager[0])
    assert faults == ["a replayed step gave other bits"]


def test_a_step_that_cannot_be_captured_is_taken_with_one_warning(recorded, monkeypatch):
    def refuse(work, stream):
        work()  # as far as it comes
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    faults = logged_faults(monkeypatch)
    monkeypatch.setattr(cuda_graphs, "record", refuse)
    eager = rounds(replace(TRAINING, capture=False), initial_network(NETWORK, 0))
    captured = rounds(TRAINING, initial_network(NETWORK, 0))
    assert torch.equal(captured[0], eager[0])
    assert faults == ["operation not permitted when stream is capturing"]


def test_another_recipe_or_moved_parameters_begin_again(recorded):
    network = initial_network(NETWORK, 0)
    rounds(TRAINING, network, 1)
    rounds(replace(TRAINING, weight_decay=0.1), network, 1)
    assert len(recorded) == 2
    for parameter in network.parameters():
        parameter.data = parameter.data.clone()
    rounds(replace(TRAINING, weight_decay=0.1), network, 1)
    assert len(recorded) == 3


def test_a_loss_of_its_own_or_a_penalty_is_not_captured(recorded):
    train(
        initial_network(NETWORK, 0), samples(), TRAINING, 1e-3, 0, penalty=lambda parameters: parameters.square().sum()
    )
    train(initial_network(NETWORK, 0), samples(), TRAINING, 1e-3, 0, extra_loss=lambda images, logits: logits.mean())
    assert not recorded


def evaluate_candidates(config, cases, count=4):
    """Evaluate models that differ, in one network, and return the results and the losses of images."""
    network, evaluations = initial_network(config.network, 0), Evaluations(config)
    found = []
    for seed in range(count):
        model = initial_network(config.network, seed)
        parameters, buffers = flat.get_parameters(model), flat.get_buffers(model)
        evaluation = evaluations.evaluate(network, parameters, buffers, cases, losses=True)
        found.append((evaluation.overlaps, evaluation.losses.tolist()))
    assert "forward" not in vars(network)
    return found


@pytest.mark.parametrize("amp", [False, True])
def test_captured_and_eager_evaluation_give_the_same_results(recorded, amp):
    config = RunConfiguration(
        "fedavg", rounds=1, task="disc", seed=0, network=NETWORK, training=replace(TRAINING, amp=amp)
    )
    cases = [volume(seed, 3) for seed in range(4)]  # 12 slices: passes of two shapes
    eager = evaluate_candidates(replace(config, training=replace(config.training, capture=False)), cases)
    assert not recorded
    assert evaluate_candidates(config, cases) == eager
    assert len(recorded) == (1 if amp else 2)
    assert eager[0] != eager[1]


def test_a_captured_pass_with_other_bits_is_not_replayed(recorded, monkeypatch):
    faults = logged_faults(monkeypatch)
    monkeypatch.setattr(cuda_graphs, "record", lambda work, stream: lambda: None)
    config = RunConfiguration("fedavg", rounds=1, task="disc", seed=0, network=NETWORK, training=TRAINING)
    cases = [volume(0, 3)]
    eager = evaluate_candidates(replace(config, training=replace(TRAINING, capture=False)), cases)
    assert evaluate_candidates(config, cases) == eager
    assert faults == ["a replayed pass gave other bits"]


@pytest.mark.parametrize("changes", one_in(3, [{}, {"clip_norm": 1.0}, {"loss": "dice"}, {"momentum": 0.9}]))
def test_no_step_waits_for_what_a_gpu_has_computed(changes):
    """Tensors of the device "meta" have no values, so reading one raises; only the mean loss is read, at the end."""
    network, passes = initial_network(NETWORK, 0).to("meta"), []
    network.register_forward_pre_hook(lambda *_: passes.append(1))
    with pytest.raises(RuntimeError, match="meta"):
        train(network, samples(), Training(batch_size=4, optimizer="sgd", augmentation="none", **changes), 1e-3, 0)
    assert len(passes) == 3
