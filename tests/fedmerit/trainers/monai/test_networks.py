"""Networks: built, saved, checked before a run, how many numbers they hold, and their BatchNorm statistics."""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedmerit.contract import flat
from fedmerit.errors import BadInput
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.configuration.settings import TASKS, Network
from fedmerit.trainers.factory import initial_network, load_network, load_weights
from fedmerit.trainers.monai import network_checks, neurons
from fedmerit.trainers.monai.evaluation import estimate_statistics, has_statistics
from fedmerit.trainers.monai.network_checks import (
    MAPS,
    check_image_size,
    count_feature_maps,
    count_parameters,
    require_repeatable,
)
from fedmerit.trainers.monai.networks import CONSTRUCTORS, output_modules, working_network
from fedmerit.trainers.saved_networks import read_description, save_network
from fedmerit.trust import allow

WIDTHS = {"segresnet": 8, "swinunetr": 12}


@pytest.fixture(autouse=True)
def own_networks():
    """A person named those below."""
    allow(f"{__name__}:Trained", f"{__name__}:Noisy")


def description(architecture, **changes):
    depth = {"basicunet": 5}.get(architecture, 3)
    return Network(1, ("disc", "cup"), architecture, WIDTHS.get(architecture, 4), depth, **changes)


@pytest.mark.parametrize("architecture", CONSTRUCTORS)
def test_every_architecture_gives_a_logit_map_per_label_and_comes_back_from_disk(architecture, tmp_path):
    network = description(architecture)
    built = initial_network(network, 0).eval()
    image = torch.randn(1, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    logits = built(image)
    assert logits.shape == (1, 2, 64, 64)
    save_network(tmp_path, "global", built, network)
    assert read_description(tmp_path) == (network, None)
    loaded = load_network(tmp_path)
    assert not loaded.training
    assert torch.equal(loaded(image), logits)


@pytest.mark.parametrize("architecture", CONSTRUCTORS)
def test_hidden_neurons_are_all_but_the_outputs(architecture):
    built = initial_network(description(architecture), 0)
    outputs = {module for block in output_modules(built) for module in block.modules()}
    convolutions = [module for module in built.modules() if isinstance(module, neurons.CONVOLUTIONS)]
    hidden = [module for module in convolutions if module not in outputs]
    assert 0 < len(hidden) == len(neurons.layers(built))
    owners = neurons.owners(built)
    assert len(owners) == len(flat.get_parameters(built))
    assert set(owners.tolist()) >= set(range(neurons.count(built)))


@pytest.mark.parametrize("architecture", ["dynunet", "basicunet"])
def test_affine_instance_norms_are_computed_as_group_norms_of_one_channel(architecture):
    """The same names, shapes and function as MONAI's own; gradients too."""
    ours = initial_network(description(architecture), 0).train()
    assert not any(isinstance(module, torch.nn.InstanceNorm2d) for module in ours.modules())
    theirs = copy.deepcopy(ours)
    for parent in list(theirs.modules()):
        for name, norm in parent.named_children():
            if isinstance(norm, torch.nn.GroupNorm):
                assert norm.num_groups == norm.num_channels
                setattr(parent, name, torch.nn.InstanceNorm2d(norm.num_channels, norm.eps, affine=True))
    generator = torch.Generator().manual_seed(0)
    state = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator) for name, value in ours.state_dict().items()
    }
    images = torch.randn(3, 1, 32, 32, generator=generator)
    gradients = []
    for network in (ours, theirs):
        network.load_state_dict(state)
        network(images).square().mean().backward()
        gradients.append(torch.cat([part.grad.flatten() for part in network.parameters() if part.grad is not None]))
    assert torch.allclose(*gradients, rtol=1e-3, atol=1e-5 * float(gradients[1].abs().max()))


def test_a_thread_has_one_network_to_work_with():
    cpu, small = torch.device("cpu"), Network(1, ("prostate",), architecture="unet", width=4, depth=3)
    own = working_network(small, cpu)
    assert working_network(replace(small), cpu) is own
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(working_network, small, cpu).result() is not own
    assert working_network(replace(small, width=8), cpu) is not own


DYNUNET, SWINUNETR, BASICUNET = (
    Network(1, ("disc", "cup"), architecture, width, depth)
    for architecture, width, depth in [("dynunet", 4, 3), ("swinunetr", 12, 3), ("basicunet", 4, 5)]
)


def test_a_network_without_parameters_that_train_is_refused(monkeypatch):
    monkeypatch.setattr(
        network_checks, "initial_network", lambda network, seed: nn.Conv2d(1, 1, 1).requires_grad_(False)
    )
    with pytest.raises(BadInput, match="architecture=frozen: has no parameters that train"):
        check_image_size(Network(1, ("disc",), "frozen"), (32, 32))


def test_the_size_of_images_follows_the_depth(monkeypatch):
    """Which is known of MONAI's networks without building one: every site asks."""
    monkeypatch.setattr(network_checks, "initial_network", None)
    check_image_size(DYNUNET, (8, 12))
    with pytest.raises(BadInput, match="multiples of 4"):
        check_image_size(DYNUNET, (10, 12))
    with pytest.raises(BadInput, match=r"dynunet of depth 3 needs .* run with --set depth"):
        check_image_size(DYNUNET, (10, 12))
    with pytest.raises(BadInput, match=r"swinunetr needs multiples of 32, at least 64; prepare with another --size$"):
        check_image_size(SWINUNETR, (48, 48))
    with pytest.raises(BadInput, match=r"swinunetr needs multiples of 32x32x32; choose another$"):
        check_image_size(replace(SWINUNETR, patch=(8, 16, 16)), (64, 64))


def test_a_network_of_one_depth_has_no_other():
    check_image_size(BASICUNET, (32, 32))
    with pytest.raises(BadInput, match="depth=4: basicunet has 5 levels; leave it out"):
        check_image_size(replace(BASICUNET, depth=4), (32, 32))


class Trained(nn.Module):
    """Right in evaluation; in training it gives what is wrong with it."""

    def __init__(self, in_channels, out_channels, wrong):
        super().__init__()
        self.head, self.wrong = nn.Conv2d(in_channels, out_channels, 1), wrong

    def forward(self, images):
        """Logits, or else."""
        logits = self.head(images)
        of = {
            "dict": lambda: {"logits": logits},
            "loss": lambda: (logits, logits.mean()),
            "labels": lambda: [logits, logits[:, :1]],
            "small-first": lambda: [logits[..., ::2, ::2], logits],
            "empty": list,
        }
        return of[self.wrong]() if self.training else logits


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        ("dict", "makes dict of two images in training"),
        ("loss", r"makes \(2, 2, 16, 16\), \(\) of two images"),
        ("labels", r"makes \(2, 2, 16, 16\), \(2, 1, 16, 16\) of two images"),
        ("small-first", r"makes \(2, 2, 8, 8\), \(2, 2, 16, 16\) of two images"),
        ("empty", "makes nothing of two images"),
    ],
)
def test_what_cannot_be_trained_on_is_reported_before_a_run(wrong, reported):
    network = Network(1, ("disc", "cup"), f"{__name__}:Trained", arguments={"wrong": wrong})
    with pytest.raises(
        BadInput, match=rf"{reported}.*; expected logits of shape \(2, 2, 16, 16\), or a list of logits"
    ):
        check_image_size(network, (16, 16))


class Noisy(nn.Conv2d):
    """Adds noise to its logits in training."""

    def __init__(self):
        super().__init__(1, 1, 1)

    def forward(self, images):
        logits = super().forward(images)
        return logits + torch.randn_like(logits) if self.training else logits


def test_looking_at_a_network_of_others_draws_nothing():
    before = torch.get_rng_state()
    check_image_size(Network(1, ("disc",), f"{__name__}:Noisy"), (32, 32))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("architecture", "arguments", "reported"),
    [
        ("unet", {"dropout": 0.2}, "drops 0.2 at random"),
        ("segresnet", {"dropout_prob": 0.1}, "drops 0.1 at random"),
        ("swinunetr", {"dropout_path_rate": 0.3}, "at random"),
    ],
)
def test_layers_that_drop_at_random_are_refused(architecture, arguments, reported):
    plain = Network(1, ("disc",), architecture, width=12 if architecture == "swinunetr" else 8)
    drops = replace(plain, arguments=arguments)
    with pytest.raises(BadInput, match=reported):
        require_repeatable(drops, initial_network(drops, 0))
    require_repeatable(plain, initial_network(plain, 0))


def test_numbers_of_a_network():
    config = make_configuration("fedavg", "prostate", 1, 0, TASKS["prostate"], {})
    network, training = config.network, replace(config.training, batch_size=6)
    config = replace(config, training=training)
    assert count_feature_maps(config, (32, 48)) == MAPS * network.width * 32 * 48 * 6
    small = replace(config, training=replace(training, batch_size=1))
    assert count_feature_maps(small, (32, 48)) == MAPS * network.width * 32 * 48 * 4  # of evaluation
    of_volumes = replace(config, network=replace(network, patch=(8, 16, 16)))
    assert count_feature_maps(of_volumes, (32, 48)) == MAPS * network.width * 8 * 16 * 16 * 6
    assert count_parameters(config) < count_parameters(
        replace(config, network=replace(network, width=2 * network.width))
    )


def test_what_is_missing_or_spoiled_is_named(tmp_path):
    folder = tmp_path
    save_network(folder, "global", initial_network(DYNUNET, 0), DYNUNET)
    with pytest.raises(BadInput, match=r"Birch.pt: file not found; expected the model of a finished run"):
        load_network(folder, "Birch")
    (folder / "Birch.pt").write_bytes(b"no model")
    with pytest.raises(BadInput, match=r"Birch.pt: not a file of tensors"):
        load_network(folder, "Birch")
    with pytest.raises(BadInput, match=r"global.pt: not a model that model.json describes \(RuntimeError\)"):
        load_weights(folder / "global.pt", Network(1, ("disc",), "dynunet", 4, 3))
    (folder / "model.json").write_text('{"in_channels": 1}\n')
    with pytest.raises(BadInput, match=r"model.json: not what a run writes"):
        read_description(folder)


def images(count=40):
    return 3 + 2 * torch.randn(count, 1, 16, 16, generator=torch.Generator().manual_seed(0))


def test_statistics_are_those_of_the_images_whatever_was_remembered():
    network = nn.Sequential(nn.BatchNorm2d(1))
    network[0].running_mean.fill_(100)
    rows = images(48)  # three batches of one size: the mean of their means is that of all
    estimate_statistics(network, TensorDataset(rows, rows))
    torch.testing.assert_close(network[0].running_mean, rows.mean().view(1))
    torch.testing.assert_close(network[0].running_var, rows.var().view(1), rtol=1e-2, atol=0)
    assert network[0].momentum == 0.1  # as it was
    assert not network.training


def test_weights_stay_and_the_order_of_runs_does_not_matter():
    network = initial_network(Network(1, ("disc",), "unet", 2, 3), 0)
    weights = {name: value.clone() for name, value in network.named_parameters()}
    data = TensorDataset(images(), images())
    estimate_statistics(network, data)
    first = {name: value.clone() for name, value in network.named_buffers()}
    estimate_statistics(network, data)
    assert all(torch.equal(value, first[name]) for name, value in network.named_buffers())
    assert all(torch.equal(value, weights[name]) for name, value in network.named_parameters())


def test_without_batch_norm_there_is_nothing_to_estimate():
    network = initial_network(Network(1, ("disc",), "dynunet", 2, 3), 0)
    assert not has_statistics(network)
    estimate_statistics(network, TensorDataset(images(2), images(2)))
    assert has_statistics(initial_network(Network(1, ("disc",), "unet", 2, 3), 0))
