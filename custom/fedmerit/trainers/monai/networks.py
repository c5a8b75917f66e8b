"""Networks: MONAI's, by their description; what they cost."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from fedmerit.errors import BadInput, Untrusted
from fedmerit.plugins import WITH_PARTS, Catalogue
from fedmerit.schema.configuration.settings import MONAI_NETWORKS, Network
from fedmerit.schema.rules import MOST_TENSORS
from fedmerit.seeds import random_seed
from fedmerit.trust import NAMED

_thread = threading.local()
SHORTEST = 4  # side of a patch's image at the lowest level


@dataclass(frozen=True)
class Architecture:
    """A network of MONAI's, and how its arguments follow from a description."""

    name: str  # of its class
    arguments: Callable[[Network], Mapping[str, Any]]
    norm: str = ""  # the name of the argument that sets the norm layers; "": it has none
    own_norm: str = "instance"  # with norm=own
    affine: bool = True  # whether an instance norm has weights
    outputs: tuple[str, ...] = ()  # the modules that give the logits; (): the last of a nested sequence
    step: Callable[[Network], int] = lambda network: int(2 ** (network.depth - 1))  # that image sides are multiples of
    depths: tuple[int, ...] = ()  # that it can have; (): all
    uneven: bool = False  # whether a side of a patch that is shorter than the others is halved later

    @property
    def kind(self) -> type[nn.Module]:
        """The class of the network."""
        return _find_class(self.name)

    def __call__(self, **arguments: Any) -> nn.Module:
        """Return the network of these arguments."""
        return self.kind(**arguments)


def _find_class(name: str) -> type[nn.Module]:
    """Return one of MONAI's; a site's process that only starts a script of the site's own never loads them."""
    from monai.networks import nets

    found: type[nn.Module] = getattr(nets, name)
    return found


def _filters(network: Network) -> list[int]:
    return [network.width * 2**level for level in range(network.depth)]


def _dynunet(network: Network) -> dict[str, Any]:
    kernels, strides = kernels_and_strides(network)
    filters = _filters(network)
    return {"kernel_size": kernels, "strides": strides, "upsample_kernel_size": strides[1:], "filters": filters}


def kernels_and_strides(network: Network) -> tuple[list[list[int]], list[list[int]]]:
    """Return kernels and strides by level, as of nnU-Net (Isensee et al. 2021, Methods: network topology).

    An axis is halved, and from then on looked along, when its voxels are less than twice as long as those of the finest
    axis that can still be halved. Without a spacing a patch is a cube.
    """
    sides = list(network.patch) or [2**network.depth] * 2
    steps = list(network.spacing) if network.patch and network.spacing else [1 / side for side in sides]
    kernels, strides = [[1] * len(sides)], [[1] * len(sides)]
    for level in range(network.depth):
        long = [side >= 2 * SHORTEST for side in sides]
        finest = min((step for step, one in zip(steps, long, strict=True) if one), default=min(steps))
        reached = [step < 2 * finest for step in steps]
        kernels.append([3 if there else before for there, before in zip(reached, kernels[-1], strict=True)])
        if level < network.depth - 1:
            strides.append([2 if one and there else 1 for one, there in zip(long, reached, strict=True)])
            sides = [side // stride for side, stride in zip(sides, strides[-1], strict=True)]
            steps = [step * stride for step, stride in zip(steps, strides[-1], strict=True)]
    return kernels[1:], strides


def _unet(network: Network) -> dict[str, Any]:
    strides = [2] * (network.depth - 1)
    return {"channels": _filters(network), "strides": strides, "num_res_units": network.residual_units}


def _segresnet(network: Network) -> dict[str, Any]:
    levels = network.depth - 1
    return {"init_filters": network.width, "blocks_down": (1, *[2] * levels), "blocks_up": (1,) * levels}


CONSTRUCTORS: Mapping[str, Architecture] = {
    "dynunet": Architecture(
        "DynUNet", _dynunet, "norm_name", outputs=("output_block", "deep_supervision_heads"), uneven=True
    ),
    "unet": Architecture("UNet", _unet, "norm", own_norm="batch", affine=False),
    "segresnet": Architecture("SegResNet", _segresnet, "norm", own_norm="group", outputs=("conv_final",)),
    "basicunet": Architecture(
        "BasicUNet",
        lambda network: {"features": [*_filters(network), network.width]},
        "norm",
        outputs=("final_conv",),
        depths=(5,),
    ),
    "attentionunet": Architecture(
        "AttentionUnet", lambda network: {"channels": _filters(network), "strides": [2] * (network.depth - 1)}
    ),
    "swinunetr": Architecture(
        "SwinUNETR", lambda network: {"feature_size": network.width}, "norm_name", outputs=("out",), step=lambda _: 32
    ),
}


MOST_BYTES = 1 << 30  # of a network: 1 GiB
NETWORKS: Catalogue[Callable[..., nn.Module]] = Catalogue(
    "networks", CONSTRUCTORS, callable, "what makes a torch.nn.Module"
)


class _BoundedMemory(TorchFunctionMode):
    """A context in which new tensors have at most `MOST_BYTES`: descriptions of networks may be by others."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.tensors = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out a function of torch, and raise `BadInput` at the first tensor beyond, before it is written to."""
        made = function(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and not any(isinstance(argument, Tensor) for argument in args):
            self.bytes, self.tensors = self.bytes + made.numel() * made.element_size(), self.tensors + 1
            if self.bytes > MOST_BYTES or self.tensors > MOST_TENSORS:
                raise BadInput(
                    f"the network takes more than {MOST_BYTES / 1e6:.0f} MB or {MOST_TENSORS} tensors; expected a "
                    "smaller one, or weights of this size"
                )
        return made


def build_network(network: Network, device: torch.device | None = None) -> nn.Module:
    """Return a network of MONAI's or of others: (batch, in_channels, h, w), or (..., slices, h, w), to logits alike.

    In training it may give several, for deep supervision (`split_levels`); in evaluation it gives the first.

    Its ``patch``, ``mirrored`` and ``largest`` are those of its description, its ``smallest`` the smallest image
    that it takes. On a ``device`` to work on, the weights of a 2D network lie as they are the quickest: channels last
    with batch norms (3/4 of an epoch's time on a CPU), but not with instance norms (5/4).

    Raises:
        BadInput: there is no such network, or it refuses the arguments.
    """
    kind, arguments = constructor(network)
    try:
        with _BoundedMemory():
            built = kind(**arguments)
    except BadInput:
        raise
    except Exception as error:  # whatever a class raises of arguments that it was not made for
        raise BadInput(
            f"architecture={network.architecture}: {kind.__name__} refuses width={network.width}, "
            f"depth={network.depth}, norm={network.norm} and arguments {dict(network.arguments)}: {error!s:.200}"
        ) from error
    own = CONSTRUCTORS.get(network.architecture)
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
        _replace_instance_norms(built)
    if device is None:
        return built
    if network.patch:
        return built.to(device)
    layout = torch.contiguous_format if instances else torch.channels_last
    placed: nn.Module = built.to(device, memory_format=layout)  # type: ignore[call-overload]
    return placed


def working_network(network: Network, device: torch.device) -> nn.Module:
    """Return one to load models into, as `build_network` builds it.

    The thread's own, for whatever sites it works for in turn.

    What it holds is of no account, and stays until the thread asks for one of another description on that device.
    """
    held: dict[torch.device, tuple[Network, nn.Module]] = vars(_thread).setdefault("networks", {})
    if device not in held or held[device][0] != network:
        held[device] = network, build_network(network, device)
    return held[device][1]


def split_levels(outputs: Any, axes: int) -> list[Tensor]:
    """Return what a network gives in training, as logits by level, the first of the size of its images.

    Args:
        outputs: logits (batch, labels, ...); or with deep supervision several: a list, of any sizes, or stacked,
            (batch, levels, labels, ...).
        axes: of logits.
    """
    if not isinstance(outputs, Tensor):
        return list(outputs)
    return [outputs] if outputs.ndim == axes else list(outputs.unbind(1))


def _first_in_evaluation(network: nn.Module, images: Any, outputs: Any) -> Any:
    """Return some networks of others give all levels in evaluation, too."""
    return outputs[0] if isinstance(outputs, list | tuple) and outputs and not network.training else outputs


def _replace_instance_norms(network: nn.Module) -> None:
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
    """Return what makes a network, and its arguments.

    Spatial_dims, in_channels and out_channels, if it takes them, too.

    Raises:
        BadInput: there is no such network, or it has no such norm.
    """
    shape = {
        "spatial_dims": 3 if network.patch else 2,
        "in_channels": network.in_channels,
        "out_channels": len(network.labels),
    }
    own = CONSTRUCTORS.get(network.architecture)
    if own:
        return own.kind, {**shape, **own.arguments(network), **_norm(network, own), **network.arguments}
    kind = _find_external(network.architecture)
    if network.norm != "own":
        raise BadInput(f"norm={network.norm}: {network.architecture} has its own; name another among its arguments")
    taken = _accepted_parameters(kind)
    takes_all = any(one.kind is one.VAR_KEYWORD for one in taken.values())
    return kind, {**{name: shape[name] for name in shape if takes_all or name in taken}, **network.arguments}


def _find_external(name: str) -> Callable[..., nn.Module]:
    """Return a network that others bring, or one of `MONAI_NETWORKS`."""
    if name in MONAI_NETWORKS:
        return _find_class(name)
    if NAMED.fullmatch(name) and name.partition(":")[0].partition(".")[0] in WITH_PARTS:
        raise Untrusted(
            f"architecture {name!r}: of torch and MONAI only {', '.join(MONAI_NETWORKS)} are built by name; "
            "for another, name a class of your own package that derives from it"
        )
    try:
        return NETWORKS[name]
    except KeyError:
        raise BadInput(
            f"architecture {name!r}: unknown; expected one of {', '.join((*NETWORKS, *MONAI_NETWORKS))}, or "
            "package.module:NAME of your own"
        ) from None


def _accepted_parameters(kind: Callable[..., nn.Module]) -> Mapping[str, Parameter]:
    """Return the parameters of what makes a network; none if Python cannot tell."""
    try:
        return signature(kind).parameters
    except (TypeError, ValueError):
        return {}


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


def patch_size(network: nn.Module) -> tuple[int, ...]:
    """Return the sides of the patches that a built network of volumes sees; of slices: ()."""
    patch: tuple[int, ...] = getattr(network, "patch", ())
    return patch


def is_mirrored(network: nn.Module) -> bool:
    """Return whether a final model also sees the mirror image (`Network.mirrored`); not if we did not build it."""
    return bool(getattr(network, "mirrored", False))


def keeps_largest_component(network: nn.Module) -> bool:
    """Return whether of each label of a final mask only the largest part is kept (`Network.largest`); likewise."""
    return bool(getattr(network, "largest", False))


def output_modules(network: nn.Module) -> list[nn.Module]:
    """Return the blocks whose channels are the labels themselves."""
    for architecture in CONSTRUCTORS.values():
        if architecture.outputs and isinstance(network, architecture.kind):
            return [module for name in architecture.outputs if (module := getattr(network, name, None)) is not None]
    body = network
    while len(children := list(body.children())) == 1:
        body = children[0]
    return [children[-1] if children else body]


def initial_network(network: Network, seed: int) -> nn.Module:
    """Return the network every run with this seed starts from; leaves the global random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_seed(seed, "initial model"))
        return build_network(network)


@dataclass(frozen=True)
class Cost:
    """The cost of a network."""

    parameters: int  # d
    update_bytes: int  # float32
    operations: int  # multiplications and additions of one image's, or patch's, forward pass


def estimate_cost(network: Network, image_size: tuple[int, int]) -> Cost:
    """Count the cost of a network in one image's forward pass."""
    built = initial_network(network, 0).eval()
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        built(torch.zeros(1, network.in_channels, *(network.patch or image_size)))
    parameters = sum(parameter.numel() for parameter in built.parameters() if parameter.requires_grad)
    return Cost(parameters, 4 * parameters, counter.get_total_flops())
