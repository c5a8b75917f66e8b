"""From a decoded case to the stored one: centre crop, normalise, pad, resize, all by MONAI."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from monai.transforms import (
    CenterSpatialCrop,
    Compose,
    NormalizeIntensity,
    Resize,
    ScaleIntensityRange,
    ScaleIntensityRangePercentiles,
    SpatialPad,
)
from numpy.typing import NDArray
from torch import Tensor

from data_prep.raw import Decoded
from fedmerit.errors import BadInput

Normalise = Callable[[NDArray[np.float32]], Tensor]

# MRI has no unit: clip the brightest and darkest half percent of a volume, then mean 0 and deviation 1.
normalise_mri: Normalise = Compose(
    [ScaleIntensityRangePercentiles(0.5, 99.5, 0, 1, clip=True), NormalizeIntensity()],
)
# Photographs: [0, 1], then mean 0 and deviation 1 for each colour of each image.
normalise_photo: Normalise = Compose([ScaleIntensityRange(0, 255, 0, 1), NormalizeIntensity(channel_wise=True)])


def frame(
    case: Decoded, size: int, field_of_view: float | None, normalise: Normalise
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Image and label on a ``size`` x ``size`` grid over ``field_of_view`` mm, or over the whole squared frame.

    Raises:
        BadInput: the crop would cut off labelled pixels; says which field of view holds them.
    """
    height, width = case.image.shape[2:]
    if field_of_view is None or case.spacing is None:
        extent = (max(height, width),) * 2
    else:
        extent = (round(field_of_view / case.spacing[0]), round(field_of_view / case.spacing[1]))
        needed = _field_needed(case.label, case.spacing)
        if needed > field_of_view:
            raise BadInput(
                f"the central {field_of_view:g} mm cut off a part of its mask; "
                f"prepare with a field of view of at least {needed:.0f} mm"
            )
    crop = CenterSpatialCrop(extent)
    image = normalise(crop(_planes(case.image)))
    image = SpatialPad(extent, value=float(image.min()))(image)
    image = Resize((size, size), mode="bilinear", anti_aliasing=True)(image)
    # nearest-exact samples at pixel centres as bilinear does; plain nearest would shift the mask.
    label = Resize((size, size), mode="nearest-exact")(SpatialPad(extent)(crop(_planes(case.label))))
    return (
        image.numpy().reshape(*case.image.shape[:2], size, size).astype(np.float32),
        label.numpy().reshape(*case.label.shape[:2], size, size).astype(np.uint8),
    )


def _planes(stack: NDArray[Any]) -> NDArray[Any]:
    """Slices and channels as one axis: what MONAI's two-dimensional transforms call channels."""
    return stack.reshape(-1, *stack.shape[2:])


def _field_needed(label: NDArray[np.uint8], spacing: Sequence[float]) -> float:
    """Millimetres that a centred square has to measure to hold every labelled pixel."""
    needed = 0.0
    for axis in (0, 1):
        marked = np.flatnonzero(label.any(axis=(0, 1, 3 - axis)))
        if marked.size:
            middle = label.shape[2 + axis] / 2
            reach = max(middle - marked[0], marked[-1] + 1 - middle) + 1  # one pixel for the crop's rounding
            needed = max(needed, 2 * float(reach) * spacing[axis])
    return needed
