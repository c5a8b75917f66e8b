"""The neurons of a network: which parameters and statistics belong to each, and what the loss says of each.

A neuron is one output channel of a hidden convolution: its filter and bias, and the γ, β and running statistics of
that channel in the norm after it. What is in the output block of the network belongs to none: its channels are the
labels themselves (in a U-Net of residual units the transposed convolution there adds to the logits directly), and
without one of them a model knows nothing of that label.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.utils.data import DataLoader, Dataset

from fedmerit.contract import flat
from fedmerit.contract.method import Layout
from fedmerit.contract.vectors import parameter_mask
from fedmerit.trainers.monai.networks import output_modules
from fedmerit.trainers.monai.prediction import EVALUATION_BATCH, soft_dice_losses
from fedmerit.trainers.script.named_tensors import NORMS

GATED = 16  # neurons at a time: as many copies of the activations after them are in memory
TRANSPOSED = (nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, *TRANSPOSED)
FOLLOWING = (_NormBase, nn.GroupNorm)  # norms whose channels are those of the convolution before


@dataclass(frozen=True)
class Layer:
    """A hidden convolution, a neuron for each output channel."""

    first: int  # its first neuron
    count: int
    convolution: str  # name of the module
    norm: str | None  # likewise, of the norm after it

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of both."""
        return (self.convolution,) if self.norm is None else (self.convolution, self.norm)


def layers(network: nn.Module) -> list[Layer]:
    """Return the hidden convolutions, in the order of ``named_modules``."""
    if network not in _KNOWN:
        _KNOWN[network] = _layers(network)
    return _KNOWN[network]


_KNOWN: WeakKeyDictionary[nn.Module, list[Layer]] = WeakKeyDictionary()


def _layers(network: nn.Module) -> list[Layer]:
    last = {module for block in output_modules(network) for module in block.modules()}
    norms = _find_norms(network)
    names = {module: name for name, module in network.named_modules()}
    found: list[Layer] = []
    for module, name in names.items():
        if isinstance(module, CONVOLUTIONS) and module not in last:
            first = found[-1].first + found[-1].count if found else 0
            norm = norms.get(module)
            found.append(Layer(first, module.out_channels, name, None if norm is None else names[norm]))
    return found


def _find_norms(network: nn.Module) -> dict[nn.Module, nn.Module]:
    """Return, by convolution, the norm that its output goes into: seen on an image of zeros."""
    convolutions = [module for module in network.modules() if isinstance(module, CONVOLUTIONS)]
    if not convolutions:  # a network of others may have none
        return {}
    norms = [module for module in network.modules() if isinstance(module, FOLLOWING)]
    source: dict[int, nn.Module] = {}
    outputs: list[Tensor] = []  # kept, so that no other tensor takes an id
    found: dict[nn.Module, nn.Module] = {}

    def leaves(module: nn.Module, _: object, output: Tensor) -> None:
        outputs.append(output)
        source[id(output)] = module

    def enters(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if id(inputs[0]) in source:
            found[source[id(inputs[0])]] = module

    like = next(network.parameters())
    trained = network.training
    with ExitStack() as stack, torch.inference_mode():
        for convolution in convolutions:
            stack.callback(convolution.register_forward_hook(leaves).remove)
        for norm in norms:
            stack.callback(norm.register_forward_pre_hook(enters).remove)
        network.eval()(like.new_zeros(1, convolutions[0].in_channels, *_smallest(network)))
    network.train(trained)
    return found


def _smallest(network: nn.Module) -> tuple[int, ...]:
    """Return the sides of an image that the network takes."""
    sides: tuple[int, ...] = getattr(network, "smallest", (64, 64))
    return sides


def count(network: nn.Module) -> int:
    """Return the number H of neurons."""
    return sum(layer.count for layer in layers(network))


def owners(network: nn.Module) -> Tensor:
    """Return (d,) int32: the neuron of each trainable parameter, in the order of the vector; -1: none."""
    return flat.flatten(parts := _owners(network, flat.trainable(network)), list(parts))


def buffer_owners(network: nn.Module) -> dict[str, Tensor]:
    """Return, by buffer, the neuron of each entry; -1: none."""
    return _owners(network, dict(network.named_buffers()))


def _owners(network: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    result = {name: torch.full(tensor.shape, -1, dtype=torch.int32) for name, tensor in tensors.items()}
    for layer in layers(network):
        neurons = torch.arange(layer.first, layer.first + layer.count, dtype=torch.int32)
        for name in layer.modules:
            transposed = isinstance(network.get_submodule(name), TRANSPOSED)
            for part in ("weight", "bias", "running_mean", "running_var"):
                if (owner := result.get(f"{name}.{part}")) is not None:
                    channels = owner.transpose(0, 1) if transposed and part == "weight" else owner
                    channels.copy_(neurons.view(-1, *[1] * (channels.ndim - 1)))
    return result


def read_layout(network: nn.Module, with_neurons: bool) -> Layout:
    """Return the layout of the vector of trainable parameters.

    A norm is any layer that normalises: batch, instance, group or layer norm. Without parameters, as MONAI's instance
    norm has it by default, it leaves nothing in the vector. ``with_neurons``: one forward pass finds their parameters.
    """
    parts, modules = flat.trainable(network), dict(network.named_modules())
    sizes = tuple(parameter.numel() for parameter in parts.values())
    norms = tuple(isinstance(modules[name.rpartition(".")[0]], NORMS) for name in parts)
    if not with_neurons:
        no_owners = torch.full((sum(sizes),), -1, dtype=torch.int32)
        return Layout(sizes, no_owners, tuple(parts), norms, _output_places(network))
    return Layout(sizes, owners(network), tuple(parts), norms, _output_places(network), buffer_owners(network))


def _output_places(network: nn.Module) -> Tensor:
    """Return (labels, m) places in the vector of the last convolution's weights and bias, by its output channels.

    The heads of deep supervision, which only training has, do not count.
    """
    names = {module: name for name, module in network.named_modules()}
    blocks = (output_modules(network)[0].modules(), network.modules())
    convolutions = ([module for module in block if isinstance(module, _ConvNd)] for block in blocks)
    candidates = next(filter(None, convolutions), None)
    if not candidates:  # a plug-in network may have none
        return torch.empty(0, 0, dtype=torch.long)
    last = candidates[-1]
    places = flat.named(network, torch.arange(sum(part.numel() for part in flat.trainable(network).values())))
    weight = places[f"{names[last]}.weight"]
    rows = [(weight.transpose(0, 1) if last.transposed else weight).reshape(last.out_channels, -1)]
    if last.bias is not None:
        rows.append(places[f"{names[last]}.bias"][:, None])
    return torch.cat(rows, dim=1)


def owned_parameters(network: nn.Module, neurons: Tensor) -> dict[nn.Parameter, Tensor]:
    """Return, by trainable parameter, bool in its shape and on its device: what belongs to a held neuron or to none.

    ``neurons`` (H,) bool are those that are held.
    """
    held = flat.named(network, parameter_mask(neurons, owners(network)))
    return {parameter: held[name].to(parameter.device) for name, parameter in flat.trainable(network).items()}


def loss_increases(network: nn.Module, images: Dataset[tuple[Tensor, Tensor]], order: str) -> Tensor:
    """Return (H,) float64.

    What the soft Dice loss (`soft_dice_losses`) rises by without each neuron, summed over images.

    "exact": all that belongs to the neuron set to zero (Eq. 3, Wang et al. 2024). "taylor": to first order in what
    leaves the neuron, -∂L/∂gate with a gate of 1 behind the norm (the place that Molchanov et al. 2019 found best for
    it); its sign is kept, as it estimates the same signed change. Eval mode, without mixed precision.

    Args:
        network: gives logits (batch, labels, ...).
        images: (channels, h, w) with their masks (labels, h, w).
        order: "exact" or "taylor".
    """
    network.eval()
    if order == "taylor":
        return _first_order(network, images)
    with _disable_inplace(network):
        return _without_each(network, images)


@torch.no_grad()
def _without_each(network: nn.Module, images: Dataset[tuple[Tensor, Tensor]]) -> Tensor:
    """Compute the increases image by image.

    What does not depend on a layer is computed once, however many of its neurons are left out.
    """
    device = next(network.parameters()).device
    result = torch.zeros(count(network), dtype=torch.float64)
    later: dict[Layer, set[nn.Module]] = {}
    for image, masks in DataLoader(images, batch_size=1):
        image, masks = image.to(device), masks.to(device)
        once = _outputs(network, image)
        whole = soft_dice_losses(network(image), masks).double()
        for layer in layers(network):
            convolution = network.get_submodule(layer.convolution)
            if layer not in later:
                later[layer] = _depending_on(network, convolution, once, image)
            for first in range(0, layer.count, GATED):
                left_out = torch.eye(layer.count, device=device)[first : first + GATED]
                gates = 1 - left_out.view(*left_out.shape, *[1] * (image.ndim - 2))
                known = {
                    module: value.expand(len(gates), *value.shape[1:])  # a view
                    for module, value in once.items()
                    if module not in later[layer]
                }
                known[convolution] = once[convolution] * gates
                norm = {} if layer.norm is None else {network.get_submodule(layer.norm): gates}
                with _replay_outputs(known), _gated(norm):
                    logits = network(image)
                losses = soft_dice_losses(logits, masks.expand(len(gates), *masks.shape[1:]))
                result[layer.first + first :][: len(gates)] += (losses.double() - whole).cpu()
    return result


def _first_order(network: nn.Module, images: Dataset[tuple[Tensor, Tensor]]) -> Tensor:
    device = next(network.parameters()).device
    axes = [1] * len(_smallest(network))
    gates = {
        network.get_submodule(layer.modules[-1]): torch.ones(1, layer.count, *axes, device=device, requires_grad=True)
        for layer in layers(network)
    }
    result = torch.zeros(count(network), dtype=torch.float64)
    for batch, masks in DataLoader(images, batch_size=EVALUATION_BATCH) if gates else ():
        with _gated(gates):
            loss = soft_dice_losses(network(batch.to(device)), masks.to(device)).sum()
        slopes = torch.autograd.grad(loss, list(gates.values()))
        result -= torch.cat([slope.flatten() for slope in slopes]).double().cpu()
    return result


def _outputs(network: nn.Module, image: Tensor) -> dict[nn.Module, Tensor]:
    """Return what leaves each module without children that is called once."""
    found: dict[nn.Module, list[Tensor]] = {}
    with ExitStack() as stack:
        for module in network.modules():
            if not list(module.children()):
                found[module] = []
                hook = module.register_forward_hook(lambda module, _, output: found[module].append(output))
                stack.callback(hook.remove)
        network(image)
    return {module: outputs[0] for module, outputs in found.items() if len(outputs) == 1}


def _depending_on(
    network: nn.Module, module: nn.Module, once: Mapping[nn.Module, Tensor], image: Tensor
) -> set[nn.Module]:
    """Return the modules without children whose output depends on that of ``module``: NaN spreads to them."""
    with _replay_outputs({module: torch.full_like(once[module], torch.nan)}):
        return {other for other, output in _outputs(network, image).items() if output.isnan().any()}


@contextmanager
def _disable_inplace(network: nn.Module) -> Iterator[None]:
    """Keep activations from changing their inputs, which are read later."""
    changed = [module for module in network.modules() if getattr(module, "inplace", False)]
    for module in changed:
        module.inplace = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for module in changed:
            module.inplace = True  # type: ignore[assignment]


@contextmanager
def _replay_outputs(outputs: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Have modules give a known output, whatever goes in. (`torch.fx` would do, but traces only in one thread.)"""
    for module, output in outputs.items():
        vars(module)["forward"] = lambda *_, output=output: output
    try:
        yield
    finally:
        for module in outputs:
            del vars(module)["forward"]  # the class's own again


@contextmanager
def _gated(gates: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Multiply the output of modules by gates (batch or 1, channels, 1, ...)."""
    with ExitStack() as stack:
        for module, gate in gates.items():
            hook = module.register_forward_hook(lambda module, inputs, output, gate=gate: output * gate)
            stack.callback(hook.remove)
        yield
