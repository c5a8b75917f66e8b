"""Networks: MONAI's, by their description; how they are saved."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from monai.networks.nets import AttentionUnet, BasicUNet, DynUNet, SegResNet, SwinUNETR, UNet
from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils.flop_counter import FlopCounterMode

from fedmerit.configuration.run import Network
from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_atomically, write_json
from fedmerit.seeds import random_seed

SHORTEST = 4  # side of a patch's image at the lowest level


@dataclass(frozen=True)
class Architecture:
    """One of MONAI's networks, and how its arguments follow from a description."""

    kind: Callable[..., nn.Module]
    arguments: Callable[[Network], Mapping[str, Any]]
    norm: str = ""  # the name of the argument that sets the norm layers; "": it has none
    own_norm: str = "instance"  # with norm=own
    affine: bool = True  # whether an instance norm has weights
    outputs: tuple[str, ...] = ()  # the modules that give the logits; (): the last of a nested sequence
    step: Callable[[Network], int] = lambda network: int(2 ** (network.depth - 1))  # that image sides are multiples of
    uneven: bool = False  # whether a side of a patch that is shorter than the others is halved later


def _filters(network: Network) -> list[int]:
    return [network.width * 2**level for level in range(network.depth)]


def _dynunet(network: Network) -> dict[str, Any]:
    kernels, strides = _levels(network)
    return {
        "kernel_size": kernels,
        "strides": strides,
        "upsample_kernel_size": strides[1:],
        "filters": _filters(network),
    }


def _levels(network: Network) -> tuple[list[list[int]], list[list[int]]]:
    """Kernels and strides by level: a side of a patch is halved, and looked along, when the others are not longer.

    (So does nnU-Net: Isensee et al. 2021, of slices that lie further apart than pixels.)
    """
    sides = list(network.patch) or [2**network.depth] * 2
    kernels, strides = [], [[1] * len(sides)]
    for level in range(network.depth):
        reached = [side * 2 > max(sides) for side in sides]
        kernels.append([3 if there else 1 for there in reached])
        if level < network.depth - 1:
            strides.append(
                [2 if there and side >= 2 * SHORTEST else 1 for side, there in zip(sides, reached, strict=True)]
            )
            sides = [side // stride for side, stride in zip(sides, strides[-1], strict=True)]
    return kernels, strides


def _unet(network: Network) -> dict[str, Any]:
    strides = [2] * (network.depth - 1)
    return {"channels": _filters(network), "strides": strides, "num_res_units": network.residual_units}


def _segresnet(network: Network) -> dict[str, Any]:
    levels = network.depth - 1
    return {"init_filters": network.width, "blocks_down": (1, *[2] * levels), "blocks_up": (1,) * levels}


def _basicunet(network: Network) -> dict[str, Any]:
    return {"features": [*_filters(network), network.width]}


def _attentionunet(network: Network) -> dict[str, Any]:
    return {"channels": _filters(network), "strides": [2] * (network.depth - 1)}


ARCHITECTURES: Mapping[str, Architecture] = {
    "dynunet": Architecture(
        DynUNet, _dynunet, "norm_name", outputs=("output_block", "deep_supervision_heads"), uneven=True
    ),
    "unet": Architecture(UNet, _unet, "norm", own_norm="batch", affine=False),
    "segresnet": Architecture(SegResNet, _segresnet, "norm", own_norm="group", outputs=("conv_final",)),
    "basicunet": Architecture(BasicUNet, _basicunet, "norm", outputs=("final_conv",)),
    "attentionunet": Architecture(AttentionUnet, _attentionunet),
    "swinunetr": Architecture(
        SwinUNETR, lambda network: {"feature_size": network.width}, "norm_name", outputs=("out",), step=lambda _: 32
    ),
}


def build_network(network: Network, device: torch.device | None = None) -> nn.Module:
    """MONAI's network: (batch, in_channels, h, w), or (..., slices, h, w), to logits (batch, labels, ...).

    Its ``patch`` is that of its description, its ``smallest`` the smallest image that it takes. On a ``device`` to
    work on, the weights of a 2D network lie as they are the quickest: channels last with batch norms (3/4 of an
    epoch's time on a CPU), but not with instance norms (5/4).

    Raises:
        BadInput: MONAI refuses the arguments.
    """
    architecture = ARCHITECTURES[network.architecture]
    arguments = {
        "spatial_dims": 3 if network.patch else 2,
        "in_channels": network.in_channels,
        "out_channels": len(network.labels),
        **architecture.arguments(network),
        **_norm(network, architecture),
        **network.arguments,
    }
    try:
        built = architecture.kind(**arguments)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise BadInput(
            f"architecture={network.architecture}: MONAI's {architecture.kind.__name__} refuses width={network.width}, "
            f"depth={network.depth}, norm={network.norm} and arguments {dict(network.arguments)}: {error}"
        ) from error
    built.patch = network.patch  # type: ignore[assignment]
    built.smallest = network.patch or (2 * architecture.step(network),) * 2  # type: ignore[assignment]
    instances = any(isinstance(module, _InstanceNorm) for module in built.modules())
    if device is None or device.type == "cpu":
        _hasten_norms(built)
    if device is None:
        return built
    if network.patch:
        return built.to(device)
    layout = torch.contiguous_format if instances else torch.channels_last
    placed: nn.Module = built.to(device, memory_format=layout)  # type: ignore[call-overload]
    return placed


def _hasten_norms(network: nn.Module) -> None:
    """Compute affine instance norms as group norms of one channel each, by the same names: the same function, quicker.

    On a CPU; on a GPU it is not measured.
    """
    for parent in list(network.modules()):
        for name, norm in parent.named_children():
            if isinstance(norm, nn.InstanceNorm2d) and norm.affine and not norm.track_running_stats:
                quicker = nn.GroupNorm(norm.num_features, norm.num_features, norm.eps)
                quicker.load_state_dict(norm.state_dict())
                setattr(parent, name, quicker)


def _norm(network: Network, architecture: Architecture) -> dict[str, Any]:
    own = network.norm == "own"
    if not architecture.norm:
        if own:
            return {}
        raise BadInput(f"norm={network.norm}: {network.architecture} has no other norm than its own; leave it out")
    layers: dict[str, Any] = {
        "batch": "batch",
        "instance": ("instance", {"affine": architecture.affine}),
        "group": ("group", {"num_groups": 1}),
    }
    return {architecture.norm: layers[architecture.own_norm if own else network.norm]}


def patch_of(network: nn.Module) -> tuple[int, ...]:
    """Sides of the patches that a built network of volumes sees; of slices: ()."""
    patch: tuple[int, ...] = getattr(network, "patch", ())
    return patch


def output_modules(network: nn.Module) -> list[nn.Module]:
    """The blocks whose channels are the labels themselves."""
    for architecture in ARCHITECTURES.values():
        if isinstance(network, architecture.kind) and architecture.outputs:  # type: ignore[arg-type]
            return [module for name in architecture.outputs if (module := getattr(network, name, None)) is not None]
    body = network
    while len(children := list(body.children())) == 1:
        body = children[0]
    return [children[-1] if children else body]


def initial_network(network: Network, seed: int) -> nn.Module:
    """The network every run with this seed starts from; leaves the global random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_seed(seed, "initial model"))
        return build_network(network)


def check_image_size(network: Network, image_size: tuple[int, int]) -> None:
    """`BadInput` where the network cannot halve an image, or its patches, as often as it has to."""
    step = ARCHITECTURES[network.architecture].step(network)
    if network.patch:
        _check_patch(network, step)
        return
    if any(side % step or side < 2 * step for side in image_size):
        raise BadInput(
            f"image size {image_size[0]}x{image_size[1]}: {network.architecture} of depth {network.depth} needs "
            f"multiples of {step}, at least {2 * step}; prepare with another --size or run with --set depth=..."
        )


def _check_patch(network: Network, step: int) -> None:
    patch = "x".join(str(side) for side in network.patch)
    if len(network.patch) != 3:
        raise BadInput(f"patch {patch}: expected three sides, slices, rows and columns, as in --set patch=16,96,96")
    if ARCHITECTURES[network.architecture].uneven:
        strides = _levels(network)[1]
        steps = [math.prod(level[axis] for level in strides) for axis in range(3)]
    else:
        steps = [step] * 3
    if any(side % each or side < 2 for side, each in zip(network.patch, steps, strict=True)):
        raise BadInput(
            f"patch {patch}: {network.architecture} of depth {network.depth} needs multiples of "
            f"{'x'.join(str(each) for each in steps)}; choose another, or --set depth=..."
        )


@dataclass(frozen=True)
class Cost:
    """What a network costs."""

    parameters: int  # d
    update_bytes: int  # float32
    operations: int  # multiplications and additions of one image's, or patch's, forward pass


def cost_of(network: Network, image_size: tuple[int, int]) -> Cost:
    """Counted in one image's forward pass."""
    built = initial_network(network, 0).eval()
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        built(torch.zeros(1, network.in_channels, *(network.patch or image_size)))
    parameters = sum(parameter.numel() for parameter in built.parameters() if parameter.requires_grad)
    return Cost(parameters, 4 * parameters, counter.get_total_flops())


def save_network(folder: Path, name: str, network: nn.Module, description: Network) -> None:
    """``name``.pt, a plain state_dict, and model.json, which rebuilds the network."""
    write_json(folder / "model.json", asdict(description))
    write_atomically(folder / f"{name}.pt", lambda file: torch.save(network.state_dict(), file))


def load_network(folder: Path, name: str = "global") -> nn.Module:
    """The network that `save_network` wrote, on the CPU, to evaluate; `BadInput` naming a missing or spoiled file."""
    network = build_network(Network.from_dict(read_json(folder / "model.json")))
    path = folder / f"{name}.pt"
    if not path.exists():
        raise BadInput(f"{path}: file not found; expected the model of a finished run")
    try:
        network.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
    except Exception as error:  # of whatever kind torch's unpickler meets in a spoiled file
        raise BadInput(f"{path}: not a model that model.json describes ({type(error).__name__})") from error
    return network.eval()
