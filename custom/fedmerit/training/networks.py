"""Networks: MONAI's, by their description; how they are saved."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from monai.networks import nets
from monai.networks.nets import AttentionUnet, BasicUNet, DynUNet, SegResNet, SwinUNETR, UNet
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils.flop_counter import FlopCounterMode

from fedmerit.configuration.network_input import Preprocessing
from fedmerit.configuration.run import Network
from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_atomically, write_json
from fedmerit.plugins import Catalogue
from fedmerit.seeds import random_seed

SHORTEST = 4  # side of a patch's image at the lowest level
PREPROCESSING = "preprocessing"  # in model.json


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
    depths: tuple[int, ...] = ()  # that it can have; (): all
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
    "basicunet": Architecture(BasicUNet, _basicunet, "norm", outputs=("final_conv",), depths=(5,)),
    "attentionunet": Architecture(AttentionUnet, _attentionunet),
    "swinunetr": Architecture(
        SwinUNETR, lambda network: {"feature_size": network.width}, "norm_name", outputs=("out",), step=lambda _: 32
    ),
}


NETWORKS: Catalogue[Callable[..., nn.Module]] = Catalogue(
    "networks", {name: one.kind for name, one in ARCHITECTURES.items()}, callable, "what makes a torch.nn.Module"
)


def build_network(network: Network, device: torch.device | None = None) -> nn.Module:
    """A network of MONAI's or of others: (batch, in_channels, h, w), or (..., slices, h, w), to logits alike.

    In training it may give several, for deep supervision (`levels_of`); in evaluation it gives the first.

    Its ``patch``, ``mirrored`` and ``largest`` are those of its description, its ``smallest`` the smallest image
    that it takes. On a ``device`` to work on, the weights of a 2D network lie as they are the quickest: channels last
    with batch norms (3/4 of an epoch's time on a CPU), but not with instance norms (5/4).

    Raises:
        BadInput: there is no such network, or it refuses the arguments.
    """
    kind, arguments = constructor(network)
    try:
        built = kind(**arguments)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise BadInput(
            f"architecture={network.architecture}: {kind.__name__} refuses width={network.width}, "
            f"depth={network.depth}, norm={network.norm} and arguments {dict(network.arguments)}: {error}"
        ) from error
    own = ARCHITECTURES.get(network.architecture)
    if not isinstance(built, nn.Module):
        raise BadInput(f"architecture={network.architecture}: made {type(built).__name__}; expected a torch.nn.Module")
    if own is None:
        built.register_forward_hook(_first_in_evaluation)
    for name in ("patch", "mirrored", "largest"):
        setattr(built, name, getattr(network, name))
    if network.patch or own:
        built.smallest = network.patch or (2 * own.step(network),) * 2  # type: ignore
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


def levels_of(outputs: Any, axes: int) -> list[Tensor]:
    """What a network gives in training, as logits by level, the first of the size of its images.

    Args:
        outputs: logits (batch, labels, ...); or with deep supervision several: a list, of any sizes, or stacked,
            (batch, levels, labels, ...).
        axes: of logits.
    """
    if not isinstance(outputs, Tensor):
        return list(outputs)
    return [outputs] if outputs.ndim == axes else list(outputs.unbind(1))


def _first_in_evaluation(network: nn.Module, images: Any, outputs: Any) -> Any:
    """Some networks of others give all levels in evaluation, too."""
    return outputs[0] if isinstance(outputs, list | tuple) and outputs and not network.training else outputs


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


def constructor(network: Network) -> tuple[Callable[..., nn.Module], dict[str, Any]]:
    """What makes a network, and its arguments: spatial_dims, in_channels and out_channels, where it takes them, too.

    Raises:
        BadInput: there is no such network, or it has no such norm.
    """
    shape = {
        "spatial_dims": 3 if network.patch else 2,
        "in_channels": network.in_channels,
        "out_channels": len(network.labels),
    }
    own = ARCHITECTURES.get(network.architecture)
    if own:
        return own.kind, {**shape, **own.arguments(network), **_norm(network, own), **network.arguments}
    kind = _of_others(network.architecture)
    if network.norm != "own":
        raise BadInput(f"norm={network.norm}: {network.architecture} has its own; name another among its arguments")
    taken = signature(kind).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in taken.values())
    return kind, {**{name: shape[name] for name in shape if takes_all or name in taken}, **network.arguments}


def _of_others(name: str) -> Callable[..., nn.Module]:
    """A network that others bring, or the class of MONAI's of this name."""
    found = getattr(nets, name, None)
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    try:
        return NETWORKS[name]
    except KeyError:
        raise BadInput(
            f"architecture {name!r}: unknown; expected one of {', '.join(NETWORKS)}, the class of another of MONAI's "
            "networks such as FlexibleUNet, or package.module:function"
        ) from None


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


def is_mirrored(network: nn.Module) -> bool:
    """Whether a final model also sees the mirror image (`Network.mirrored`); not where we did not build it."""
    return bool(getattr(network, "mirrored", False))


def keeps_largest(network: nn.Module) -> bool:
    """Whether of each label of a final mask only the largest part is kept (`Network.largest`); likewise."""
    return bool(getattr(network, "largest", False))


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
    if network.architecture not in ARCHITECTURES:
        _require_masks(network, image_size)
        return
    architecture = ARCHITECTURES[network.architecture]
    if architecture.depths and network.depth not in architecture.depths:
        raise BadInput(
            f"depth={network.depth}: {network.architecture} has {' or '.join(map(str, architecture.depths))} levels; "
            "leave it out, or take another architecture"
        )
    step = architecture.step(network)
    if network.patch:
        _check_patch(network, step)
        return
    if any(side % step or side < 2 * step for side in image_size):
        raise BadInput(
            f"image size {image_size[0]}x{image_size[1]}: {_of_depth(network)} needs multiples of {step}, at least "
            f"{2 * step}; prepare with another --size{_or_depth(network, ' or run with --set depth=...')}"
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
            f"patch {patch}: {_of_depth(network)} needs multiples of {'x'.join(str(each) for each in steps)}; choose "
            f"another{_or_depth(network, ', or --set depth=...')}"
        )


def _of_depth(network: Network) -> str:
    return f"{network.architecture}{_or_depth(network, f' of depth {network.depth}')}"


def _or_depth(network: Network, told: str) -> str:
    """What is ``told`` of depth, where it says how often sides are halved."""
    step = ARCHITECTURES[network.architecture].step
    return told if step(network) != step(replace(network, depth=network.depth + 1)) else ""


def _require_masks(network: Network, image_size: tuple[int, int]) -> None:
    """`BadInput` where a network of others makes of an image, or patch, no logits of its size, or cannot be trained."""
    sides = network.patch or image_size
    built, images = initial_network(network, 0), torch.zeros(2, network.in_channels, *sides)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            masks, trained = built.eval()(images[:1]), built.train()(images)
    except Exception as error:  # whatever another's code raises
        raise BadInput(
            f"architecture={network.architecture}: cannot be applied to an image of {'x'.join(map(str, sides))} "
            f"({type(error).__name__}: {error}); prepare with another --size or give it other arguments"
        ) from error
    expected = (1, len(network.labels), *sides)
    if _shape(masks) != expected:
        raise BadInput(
            f"architecture={network.architecture}: makes logits of shape {_shape(masks)} of an image; expected "
            f"{expected}: one channel for each label, of the image's size"
        )
    in_training = (len(images), *expected[1:])
    levels = levels_of(trained, len(expected)) if isinstance(trained, Tensor | list | tuple) else [trained]
    shapes = [_shape(level) for level in levels]
    if shapes[:1] != [in_training] or not all(_is_level(shape, in_training) for shape in shapes):
        raise BadInput(
            f"architecture={network.architecture}: makes {', '.join(map(str, shapes)) or 'nothing'} of two images in "
            f"training; expected logits of shape {in_training}, or a list of logits for deep supervision, the first of "
            "that shape, further ones smaller; give it other arguments"
        )


def _shape(logits: Any) -> tuple[int, ...] | str:
    return tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__


def _is_level(shape: tuple[int, ...] | str, whole: tuple[int, ...]) -> bool:
    """Whether it is logits of the same images and labels, of any size."""
    return not isinstance(shape, str) and len(shape) == len(whole) and shape[:2] == whole[:2]


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


def save_network(
    folder: Path, name: str, network: nn.Module, description: Network, preprocessing: Preprocessing | None = None
) -> None:
    """``name``.pt, a plain state_dict, and model.json: what rebuilds the network, and what it is to be fed."""
    said = {PREPROCESSING: preprocessing.to_dict()} if preprocessing else {}
    write_json(folder / "model.json", asdict(description) | said)
    write_atomically(folder / f"{name}.pt", lambda file: torch.save(network.state_dict(), file))


def read_description(folder: Path) -> tuple[Network, Preprocessing | None]:
    """What model.json says: the network, and what it is to be fed, which those of earlier versions do not say.

    Raises:
        BadInput: it is missing or not what `save_network` writes.
    """
    values = dict(read_json(folder / "model.json"))
    said = values.pop(PREPROCESSING, None)
    try:
        return Network.from_dict(values), Preprocessing.from_dict(said) if said else None
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{folder / 'model.json'}: not what a run writes ({error}); take it from the run again"
        ) from error


def load_network(folder: Path, name: str = "global") -> nn.Module:
    """The network that `save_network` wrote, on the CPU, to evaluate; `BadInput` naming a missing or spoiled file."""
    return load_weights(folder / f"{name}.pt", read_description(folder)[0])


def load_weights(path: Path, description: Network) -> nn.Module:
    """The network of a description with the state_dict in ``path``, likewise."""
    network = build_network(description)
    if not path.exists():
        raise BadInput(f"{path}: file not found; expected the model of a finished run")
    try:
        network.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
    except Exception as error:  # of whatever kind torch's unpickler meets in a spoiled file
        raise BadInput(f"{path}: not a model that model.json describes ({type(error).__name__})") from error
    return network.eval()
