"""What a method is told of the network whose parameters are its vector."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from fedmerit import flat
from fedmerit.core import Layout
from fedmerit.training import neurons
from fedmerit.training.networks import output_modules

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm)  # _NormBase: of batch and instance norms


def layout_of(network: nn.Module, *, with_neurons: bool = False) -> Layout:
    """Of the network's trainable parameters; ``with_neurons``: an image is sent through to tell the owners.

    A norm is any layer that normalises: batch, instance, group or layer norm. Without parameters, as MONAI's instance
    norm has it by default, it leaves nothing in the vector.
    """
    parts = flat.trainable(network)
    sizes = tuple(parameter.numel() for parameter in parts.values())
    modules = dict(network.named_modules())
    norms = tuple(isinstance(modules[name.rpartition(".")[0]], NORMS) for name in parts)
    owners = neurons.owners(network) if with_neurons else torch.full((sum(sizes),), -1, dtype=torch.int32)
    return Layout(sizes, owners, tuple(parts), norms, _outputs(network))


def _convolutions(block: nn.Module) -> list[_ConvNd]:
    return [module for module in block.modules() if isinstance(module, _ConvNd)]


def _outputs(network: nn.Module) -> Tensor:
    """(labels, m) places in the vector of the weights and bias of the last convolution, by its output channels.

    The heads of deep supervision, which training alone has, do not count.
    """
    names = {module: name for name, module in network.named_modules()}
    candidates = _convolutions(output_modules(network)[0]) or _convolutions(network)
    if not candidates:  # a network of others may have none
        return torch.empty(0, 0, dtype=torch.long)
    last = candidates[-1]
    name = names[last]
    places = flat.named(network, torch.arange(sum(part.numel() for part in flat.trainable(network).values())))
    weight = places[f"{name}.weight"]
    rows = [(weight.transpose(0, 1) if last.transposed else weight).reshape(last.out_channels, -1)]
    if last.bias is not None:
        rows.append(places[f"{name}.bias"][:, None])
    return torch.cat(rows, dim=1)
