"""Neurons: what belongs to each, what the loss says of each, and training without some of them."""

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from fedmerit.contract import flat
from fedmerit.contract.vectors import parameter_mask
from fedmerit.schema.configuration.settings import TASKS, Network, Training
from fedmerit.schema.site_folder import open_sites
from fedmerit.seeds import random_seed
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.monai import neurons
from fedmerit.trainers.monai.local_training import train
from fedmerit.trainers.monai.neurons import loss_increases
from fedmerit.trainers.monai.prediction import soft_dice_losses
from fedmerit.trainers.monai.samples import Slices

KINDS = [
    pytest.param({"residual_units": units, "norm": norm}, id=f"{units} {norm}")
    for units in (0, 1, 2)
    for norm in ("batch", "instance", "group")
]
SOME = [  # every number of units and every norm once in `make test`
    pytest.param(*kind.values, id=kind.id, marks=() if place in (0, 4, 8) else pytest.mark.slow)
    for place, kind in enumerate(KINDS)
]


def find_network(task="prostate", **changes):
    """Of 4, 8 and 16 channels, with other BatchNorm statistics and norms than those it begins with."""
    network = initial_network(Network(**TASKS[task] | {"architecture": "unet", "width": 4, "depth": 3} | changes), 0)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in (*network.named_parameters(), *network.named_buffers()):
            if ".N." in name and value.ndim:
                value.copy_(torch.rand(value.shape, generator=random) + 0.5)
    return network


def images_of(count, channels=1, labels=1, size=16):
    random = torch.Generator().manual_seed(2)
    masks = (torch.rand(count, labels, size, size, generator=random) > 0.6).float()
    masks[0, 0] = 0  # an image without the organ
    return list(zip(torch.randn(count, channels, size, size, generator=random), masks, strict=True))


def without(network, neuron):
    """A copy of the network with all that belongs to a neuron set to 0."""
    result = copy.deepcopy(network)
    keep = torch.arange(neurons.count(network)) != neuron
    flat.load(
        result, flat.get_parameters(network) * parameter_mask(keep, neurons.owners(network)), flat.get_buffers(network)
    )
    return result


def total_loss(network, images):
    with torch.no_grad():
        losses = [soft_dice_losses(network.eval()(image[None]), mask[None]) for image, mask in images]
    return float(torch.cat(losses).double().sum())


@pytest.mark.parametrize(("architecture", "width", "count"), [("dynunet", 8, 856), ("unet", 16, 1712)])
def test_neurons_of_the_recipes_networks(architecture, width, count):
    network = initial_network(Network(**TASKS["prostate"], architecture=architecture, width=width), 0)
    assert neurons.count(network) == count
    owners = neurons.owners(network)
    assert owners.shape == flat.get_parameters(network).shape
    assert owners.dtype == torch.int32
    assert torch.equal(owners.unique(), torch.arange(-1, count, dtype=torch.int32))


@pytest.mark.parametrize("kind", KINDS)
def test_a_neuron_is_filter_bias_and_norm_of_a_channel(kind):
    network = find_network(**kind)
    owners = flat.named(network, neurons.owners(network))
    found = {layer.convolution: layer for layer in neurons.layers(network)}
    for name, module in network.named_modules():
        if not isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            continue
        if name.startswith("model.2"):  # the last block makes the logits
            assert name not in found
            assert (owners[f"{name}.weight"] == -1).all()
            continue
        layer, weight = found[name], owners[f"{name}.weight"]
        by_channel = weight.transpose(0, 1) if isinstance(module, nn.ConvTranspose2d) else weight
        assert by_channel.shape[0] == module.out_channels == layer.count
        for channel, row in enumerate(by_channel):
            assert (row == layer.first + channel).all()
        of_channels = list(range(layer.first, layer.first + layer.count))
        assert owners[f"{name}.bias"].tolist() == of_channels
        if layer.norm and kind["norm"] != "instance":
            assert owners[f"{layer.norm}.weight"].tolist() == owners[f"{layer.norm}.bias"].tolist() == of_channels
        if layer.norm and kind["norm"] == "batch":
            assert neurons.buffer_owners(network)[f"{layer.norm}.running_var"].tolist() == of_channels
    assert all((owner == -1).all() for name, owner in owners.items() if ".A." in name)  # PReLU's, of all channels
    norms = [name for name, module in network.named_modules() if name.endswith(".N") and not name.startswith("model.2")]
    assert sorted(layer.norm for layer in found.values() if layer.norm) == sorted(norms)


@pytest.mark.parametrize("kind", SOME)
def test_what_leaves_a_neuron_without_its_parameters_is_zero(kind):
    network, image = find_network(**kind), images_of(2)[1][0][None]
    for layer in neurons.layers(network)[::2]:
        for train_mode in (False, True):
            spoilt = without(network, layer.first + 1).train(train_mode)
            seen = neurons._outputs(spoilt, image)
            for name in layer.modules:
                assert not seen[spoilt.get_submodule(name)][:, 1].any()
            filtered = seen[spoilt.get_submodule(layer.convolution)]
            assert filtered[:, [0, *range(2, layer.count)]].abs().amax(dim=(0, 2, 3)).all()


@pytest.mark.parametrize("kind", [*SOME, {"architecture": "dynunet", "norm": "own"}])
def test_exact_importance_is_that_of_a_naive_loop(kind):
    task = "fundus" if kind["norm"] == "group" else "prostate"
    network = find_network(task, **kind)
    images = images_of(2, TASKS[task]["in_channels"], len(TASKS[task]["labels"]))
    increases, base = loss_increases(network, images, "exact"), total_loss(network, images)
    assert increases.shape == (neurons.count(network),)
    assert increases.dtype == torch.float64
    some = range(0, neurons.count(network), 3)
    expected = [total_loss(without(network, neuron), images) - base for neuron in some]
    assert increases[some].tolist() == pytest.approx(expected, abs=1e-5)  # of float32
    assert max(map(abs, expected)) > 1e-3


@pytest.mark.parametrize("kind", SOME)
def test_first_order_importance_is_the_slope_of_the_loss(kind):
    """Where what leaves a neuron shrinks: its norm's γ and β, or the filter and bias where there is no norm."""
    network, eps = find_network(**kind).double(), 1e-7  # PReLU has a kink nearby
    images = [(image.double(), mask.double()) for image, mask in images_of(3)]
    increases = loss_increases(network, images, "taylor")
    assert increases.shape == (neurons.count(network),)
    for layer in neurons.layers(network):
        if kind["norm"] == "instance" and layer.norm:
            continue  # nothing of it can shrink
        for channel in (0, layer.count - 1):
            losses = []
            for factor in (1 - eps, 1 + eps):
                changed = copy.deepcopy(network)
                module = changed.get_submodule(layer.modules[-1])
                with torch.no_grad():
                    weight = module.weight.transpose(0, 1) if isinstance(module, nn.ConvTranspose2d) else module.weight
                    weight[channel] *= factor
                    module.bias[channel] *= factor
                losses.append(total_loss(changed, images))
            slope = (losses[0] - losses[1]) / (2 * eps)
            assert float(increases[layer.first + channel]) == pytest.approx(slope, rel=1e-3, abs=1e-7)
    assert increases.abs().max() > 1e-3


@pytest.mark.parametrize("order", ["exact", "taylor"])
def test_a_network_is_left_as_it_was(order):
    network, image = find_network(), images_of(2)[1][0][None]
    before, state = network.eval()(image), copy.deepcopy(network.state_dict())
    loss_increases(network, images_of(2), order)
    assert torch.equal(network(image), before)
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    assert not any("forward" in vars(module) or module._forward_hooks for module in network.modules())
    assert not any(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("order", ["exact", "taylor"])
def test_sites_in_several_threads_do_not_disturb_each_other(order):
    networks = [find_network(residual_units=units) for units in (0, 1, 2, 0)]
    single = [loss_increases(network, images_of(2), order) for network in networks]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda network: loss_increases(network, images_of(2), order), networks))
    assert all(map(torch.equal, single, together))


@pytest.mark.parametrize(
    "kind", [{}, {"norm": "instance"}, {"norm": "group", "residual_units": 0}], ids=["batch", "instance", "group"]
)
def test_what_a_site_does_not_hold_stays_zero_in_training(sites: Path, kind):
    network = initial_network(Network(**TASKS["prostate"] | {"architecture": "unet", "width": 4, "depth": 3} | kind), 0)
    held = torch.rand(neurons.count(network), generator=torch.Generator().manual_seed(0)) > 0.4
    mask = parameter_mask(held, neurons.owners(network))
    start, statistics = flat.get_parameters(network) * mask, flat.get_buffers(network)
    flat.load(network, start, statistics)
    slices = Slices(open_sites(sites)[0].cases("training"))
    parameters = neurons.owned_parameters(network, held)
    train(network, slices, Training(augmentation="none"), 1e-3, random_seed(0), parameters)
    trained = flat.get_parameters(network)
    assert not mask.all()
    assert (trained[~mask] == 0).all()
    moved = trained[mask] != start[mask]
    assert moved.double().mean() > 0.5  # filters of dropped channels' inputs have no gradient
    for name, owner in neurons.buffer_owners(network).items():
        if name.endswith("running_mean") and (owner >= 0).all():
            dropped = ~held[owner.long()]
            means = network.get_buffer(name)
            assert (means[dropped] == 0).all()
            assert (means[~dropped] != 0).any()
