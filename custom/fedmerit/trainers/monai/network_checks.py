"""Before training: whether a network fits images of a size, and how many numbers its training holds."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.data import PREPARED_OTHERWISE, is_prepared_otherwise, preparation_digest
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.settings import Network
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.trainers.monai.networks import (
    CONSTRUCTORS,
    build_network,
    initial_network,
    kernels_and_strides,
    split_levels,
)
from fedmerit.trainers.monai.prediction import EVALUATION_BATCH

MAPS = 40  # feature maps of the first level's size that training holds per image; measured at widths 16 and 32


def count_parameters(config: RunConfiguration) -> int:
    """Return how many the network has."""
    return sum(parameter.numel() for parameter in build_network(config.network).parameters())


def count_feature_maps(config: RunConfiguration, image_size: Sequence[int], evaluated: int = EVALUATION_BATCH) -> float:
    """Return numbers in the feature maps of one batch of images of that size, or patches; ``evaluated`` at a time."""
    images = max(config.training.batch_size, evaluated / 2)  # training holds what evaluation lets go
    return MAPS * config.network.width * math.prod(config.network.patch or image_size) * images


def measure_network(network: Network, sides: Sequence[int]) -> tuple[int, int]:
    """Return the parameters of a network, and the least side of a feature map that one of its convolutions sees.

    In 3D the shortest side of each does not count.

    Args:
        network: the description.
        sides: of an image (rows, columns), or of a patch (slices, rows, columns).

    Raises:
        BadInput: the network cannot be applied to such an image.
    """
    found = [sorted(sides)[-2]]

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(sorted(inputs[0].shape[2:])[-2])

    built = build_network(network).eval().to("meta")  # only shapes: a volume takes gigabytes
    for module in built.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d) and max(module.kernel_size) > 1:
            module.register_forward_pre_hook(note)
    try:
        with torch.no_grad():
            built(torch.zeros(1, network.in_channels, *sides, device="meta"))
    except Exception as error:  # whatever a network raises
        text = "x".join(map(str, sides))
        raise BadInput(
            f"architecture={network.architecture}: cannot be applied to an image of {text} ({type(error).__name__})"
        ) from error
    return sum(parameter.numel() for parameter in built.parameters()), min(found)


def check_image_size(network: Network, image_size: tuple[int, int]) -> None:
    """Raise `BadInput` if the network cannot halve an image, or its patches, as often as it has to."""
    if network.architecture not in CONSTRUCTORS:
        _require_masks(network, image_size)
        return
    architecture = CONSTRUCTORS[network.architecture]
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
            f"image size {image_size[0]}x{image_size[1]}: {_check_depth(network)} needs multiples of {step}, at least "
            f"{2 * step}; prepare with another --size{_with_depth_hint(network, ' or run with --set depth=...')}"
        )


def require_compatible_images(config: RunConfiguration, folder: SiteFolder) -> None:
    """Raise `BadInput` if the images of ``folder`` do not fit the run's network."""
    expected = (config.task, config.network.in_channels, config.network.labels)
    if (folder.task, folder.channels, folder.labels) != expected:
        raise BadInput(
            f"site {folder.name}: task, channels and labels are {(folder.task, folder.channels, folder.labels)}, "
            f"the run expects {expected}"
        )
    if is_prepared_otherwise(config.preprocessing, preparation_digest(folder.info)):
        raise BadInput(f"site {folder.name}: its {PREPARED_OTHERWISE}; prepare them as the other sites")
    check_image_size(config.network, folder.image_size)


def require_repeatable(network: Network, built: nn.Module) -> None:
    """Raise `BadInput` if layers of the ``built`` network drop at random.

    They draw from PyTorch's one generator, which sites' threads share.
    """
    from monai.networks.layers import DropPath

    for name, module in built.named_modules():
        share = module.p if isinstance(module, _DropoutNd) else module.drop_prob if isinstance(module, DropPath) else 0
        if share:
            raise BadInput(
                f"architecture={network.architecture}: {name} drops {share:g} at random, and no run could be repeated; "
                "leave dropout out of its arguments, augmentation and weight_decay are there instead"
            )


def _check_patch(network: Network, step: int) -> None:
    patch = "x".join(str(side) for side in network.patch)
    if len(network.patch) != 3:
        raise BadInput(f"patch {patch}: expected three sides, slices, rows and columns, as in --set patch=16,96,96")
    if len(network.spacing) not in (0, 3):
        raise BadInput(f"spacing of {len(network.spacing)} numbers: expected three, of slices, rows and columns in mm")
    if CONSTRUCTORS[network.architecture].uneven:
        strides = kernels_and_strides(network)[1]
        steps = [math.prod(level[axis] for level in strides) for axis in range(3)]
    else:
        steps = [step] * 3
    if any(side % each or side < 2 for side, each in zip(network.patch, steps, strict=True)):
        raise BadInput(
            f"patch {patch}: {_check_depth(network)} needs multiples of {'x'.join(str(each) for each in steps)}; "
            f"choose another{_with_depth_hint(network, ', or --set depth=...')}"
        )


def _check_depth(network: Network) -> str:
    return f"{network.architecture}{_with_depth_hint(network, f' of depth {network.depth}')}"


def _with_depth_hint(network: Network, hint: str) -> str:
    """Return the ``hint`` about depth, if depth says how often sides are halved; else ""."""
    step = CONSTRUCTORS[network.architecture].step
    return hint if step(network) != step(replace(network, depth=network.depth + 1)) else ""


def _require_masks(network: Network, image_size: tuple[int, int]) -> None:
    """Raise `BadInput` if a network of others makes of an image, or patch, no logits of its size, or cannot be
    trained.
    """
    sides = network.patch or image_size
    built, images = initial_network(network, 0), torch.zeros(2, network.in_channels, *sides)
    if not any(parameter.requires_grad for parameter in built.parameters()):
        raise BadInput(f"architecture={network.architecture}: has no parameters that train; let some require gradients")
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
    levels = split_levels(trained, len(expected)) if isinstance(trained, Tensor | list | tuple) else [trained]
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
    """Return whether it is logits of the same images and labels, of any size."""
    return not isinstance(shape, str) and len(shape) == len(whole) and shape[:2] == whole[:2]
