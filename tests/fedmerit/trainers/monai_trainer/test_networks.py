import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from fedmerit import flat
from fedmerit.configuration.run import Network
from fedmerit.errors import BadInput
from fedmerit.trainers.monai_trainer import neurons
from fedmerit.trainers.monai_trainer.networks import (
    ARCHITECTURES,
    build_network,
    estimate_cost,
    initial_network,
    output_modules,
    split_levels,
    working_network,
)
from fedmerit.trainers.monai_trainer.saved_networks import load_network, save_network

WIDTHS = {"segresnet": 8, "swinunetr": 12}


def description(architecture, **changes):
    depth = {"basicunet": 5}.get(architecture, 3)
    return Network(1, ("disc", "cup"), architecture, WIDTHS.get(architecture, 4), depth, **changes)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_gives_a_logit_map_per_label_and_comes_back_from_disk(architecture, tmp_path):
    network = description(architecture)
    built = initial_network(network, 0).eval()
    image = torch.randn(1, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    logits = built(image)
    assert logits.shape == (1, 2, 64, 64)
    save_network(tmp_path, "global", built, network)
    assert torch.equal(load_network(tmp_path)(image), logits)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hidden_neurons_are_all_but_the_outputs(architecture):
    built = initial_network(description(architecture), 0)
    outputs = {module for block in output_modules(built) for module in block.modules()}
    convolutions = [module for module in built.modules() if isinstance(module, neurons.CONVOLUTIONS)]
    hidden = [module for module in convolutions if module not in outputs]
    assert 0 < len(hidden) == len(neurons.layers(built))
    owners = neurons.owners(built)
    assert len(owners) == len(flat.get_parameters(built))
    assert set(owners.tolist()) >= set(range(neurons.count(built)))


def test_a_norm_belongs_to_the_convolution_it_follows():
    """In a DynUNet's block both convolutions are made before both norms."""
    layers = neurons.layers(initial_network(description("dynunet"), 0))
    pairs = {layer.convolution: layer.norm for layer in layers}
    assert pairs["input_block.conv1.conv"] == "input_block.norm1"
    assert pairs["input_block.conv2.conv"] == "input_block.norm2"


def test_a_neuron_left_out_changes_nothing_elsewhere():
    """Zero all that belongs to one neuron of a DynUNet: the channel behind its norm is zero, whatever the image."""
    built = initial_network(description("dynunet"), 0).eval()
    held = torch.ones(neurons.count(built), dtype=torch.bool)
    held[1] = False
    with torch.no_grad():
        for parameter, mask in neurons.owned_parameters(built, held).items():
            parameter.mul_(mask)
    seen = []
    built.input_block.norm1.register_forward_hook(lambda *arguments: seen.append(arguments[-1]))
    built(torch.randn(1, 1, 32, 32))
    assert not seen[0][0, 1].any()
    assert seen[0][0, 0].any()


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


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"architecture": "attentionunet", "norm": "batch"}, "norm=batch"),
        ({"architecture": "dynunet", "depth": 2}, "depth=2"),
        ({"architecture": "dynunet", "arguments": {"colour": 1}}, "colour"),
        ({"architecture": "swinunetr", "width": 5}, "width=5"),
    ],
)
def test_what_monai_refuses_is_told(changes, told):
    network = replace(description("unet"), **changes)
    with pytest.raises(BadInput, match=told):
        build_network(network)


def test_the_cost_is_that_of_the_network():
    network = Network(1, ("disc",), "unet", width=4, depth=3, residual_units=0)
    cost = estimate_cost(network, (32, 32))
    assert cost.parameters == len(flat.get_parameters(build_network(network)))
    assert cost.update_bytes == 4 * cost.parameters
    wide = estimate_cost(replace(network, width=8), (32, 32))
    larger = estimate_cost(network, (64, 64))
    assert larger.operations == 4 * cost.operations < wide.operations * 4


def test_levels_are_taken_apart():
    logits = torch.randn(2, 3, 8, 8)
    assert [level is logits for level in split_levels(logits, 4)] == [True]
    assert split_levels((logits, logits[..., ::2, ::2]), 4)[1].shape == (2, 3, 4, 4)
    stacked = split_levels(torch.stack([logits, -logits], dim=1), 4)
    assert torch.equal(stacked[0], logits)
    assert torch.equal(stacked[1], -logits)


def test_a_thread_has_one_network_to_work_with():
    cpu, small = torch.device("cpu"), Network(1, ("prostate",), architecture="unet", width=4, depth=3)
    own = working_network(small, cpu)
    assert working_network(replace(small), cpu) is own
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(working_network, small, cpu).result() is not own
    assert working_network(replace(small, width=8), cpu) is not own
