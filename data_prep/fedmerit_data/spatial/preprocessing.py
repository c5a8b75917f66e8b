"""From a decoded case to the stored one: crop, normalise, pad, resize, all by MONAI."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from monai.data import get_track_meta, set_track_meta
from monai.transforms import Compose, NormalizeIntensity, Resize, ScaleIntensityRange
from numpy.typing import NDArray
from scipy import ndimage, sparse
from torch import Tensor
from torch.nn.functional import interpolate

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Decoded

Normalise = Callable[[NDArray[np.float32] | Tensor], Tensor]

CLIPPED = 0.5, 99.5  # percentiles to which a volume is clipped
WIDEST = 2**14  # pixels of a field of view
EXACT = 1_000_000  # voxels; with more, MONAI computes percentiles by NumPy instead of torch


def normalise_mri(image: NDArray[np.float32] | Tensor) -> Tensor:
    """Clip the brightest and darkest half percent of a volume, then scale it to mean 0 and deviation 1.

    MRI has no unit. Equal to the bit to MONAI's ScaleIntensityRangePercentiles, which takes several times as long.
    """
    voxels = np.asarray(image)
    low, high = _percentiles(voxels, CLIPPED)
    # If all but a small part is of one value, that part is not clipped.
    scaled = image - low if low == high else ScaleIntensityRange(low, high)(image).clamp_(0, 1)
    normalised: Tensor = NormalizeIntensity()(scaled)
    return normalised


# Photographs: [0, 1], then mean 0 and deviation 1 for each colour of each image.
normalise_photo: Normalise = Compose([ScaleIntensityRange(0, 255), NormalizeIntensity(channel_wise=True)])

# CT has a unit, which is kept: Hounsfield units of a window (level minus and plus half the width) to [-1, 1].
WINDOWS: Mapping[str, tuple[float, float]] = {
    "ct_soft_tissue": (-150.0, 250.0),
    "ct_lung": (-1350.0, 150.0),
    "ct_bone": (-500.0, 1300.0),
}


def make_normaliser(modality: str, channels: int) -> Normalise:
    """Return the normalisation of a modality, for images with slices and channels as one axis.

    Args:
        modality: One of `fedmerit.schema.configuration.data.NORMALISATIONS`.
        channels: Channels of each slice; those of ``mri_by_channel`` have no common unit and are normalised separately.
    """
    if modality in WINDOWS:
        return partial(_windowed, modality)
    if modality == "mri_by_channel":
        return partial(_each_channel, channels)
    return normalise_photo if modality == "photo" else normalise_mri


def _windowed(modality: str, image: NDArray[np.float32] | Tensor) -> Tensor:
    """Raise `BadInput` if no value is within the window: the image would be of one value."""
    low, high = WINDOWS[modality]
    lowest, highest = float(image.min()), float(image.max())
    if highest <= low or lowest >= high:
        raise BadInput(
            f"its values {lowest:g} to {highest:g} are all outside the window {low:g} to {high:g} HU of {modality}; "
            "expected Hounsfield units: export it with its rescale slope and intercept, or name another --modality"
        )
    window: Normalise = ScaleIntensityRange(low, high, -1, 1, clip=True)
    return window(image)


def window_remarks(modality: str, case: Decoded) -> list[str]:
    """Return a remark on a CT without air: if the rescale intercept was lost, tissue is beyond the window."""
    if modality not in WINDOWS or case.image.min() < 0:
        return []
    beyond = np.mean(case.image > WINDOWS[modality][1])
    return [
        f"no value below 0 HU, as air has, and {beyond:.0%} of it above the window of {modality}: was its rescale "
        "intercept lost?"
    ]


def _each_channel(channels: int, image: NDArray[np.float32] | Tensor) -> Tensor:
    planes = torch.as_tensor(image)
    stack = planes.reshape(-1, channels, *planes.shape[1:])
    return torch.stack([normalise_mri(stack[:, channel]) for channel in range(channels)], dim=1).reshape(planes.shape)


@dataclass(frozen=True)
class Box:
    """A window on the decoded slices, in their pixels; it may reach beyond them (``top`` and ``left`` below 0)."""

    top: int
    left: int
    height: int
    width: int


def central_box(case: Decoded, field_of_view: float | None) -> Box:
    """Return the central square of ``field_of_view`` mm, or the whole frame made square if there is no size in mm.

    Raises:
        BadInput: the box would cut off labelled pixels; the message has the field of view that they need.
    """
    height, width = case.image.shape[2:]
    if field_of_view is None:
        extent = (max(height, width),) * 2
    elif case.spacing is None:
        raise BadInput(
            f"its image states no size of its pixels, and the central {field_of_view:g} mm are wanted; write the "
            "spacing into its header, or prepare it with kind generic, which takes whole frames"
        )
    else:
        extent = (round(field_of_view / case.spacing[0]), round(field_of_view / case.spacing[1]))
        if not (min(extent) > 0 and max(extent) <= WIDEST):
            raise BadInput(
                f"its image states pixels of {case.spacing[0]:g} x {case.spacing[1]:g} mm: {field_of_view:g} mm are "
                f"{extent[0]} x {extent[1]} of them; correct the spacing or its unit, or the field of view"
            )
        needed = _field_needed(case.label, case.spacing)
        if needed > field_of_view:
            raise BadInput(
                f"the central {field_of_view:g} mm cut off part of its mask; "
                f"prepare with a field of view of at least {needed:.0f} mm"
            )
    return Box(_central_start(height, extent[0]), _central_start(width, extent[1]), *extent)


def box_around(mask: NDArray[Any], multiple: float) -> Box | None:
    """Return the square about the middle of ``mask`` (height, width), ``multiple`` times its larger extent.

    `None` if empty.

    The middle is that of the mask's bounding box, so a multiple of 1 or more cuts off nothing.
    """
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    if not rows.size:
        return None
    side = round(multiple * max(rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1))
    top, left = ((int(marked[0] + marked[-1]) + 1 - side) // 2 for marked in (rows, columns))
    return Box(top, left, side, side)


def count_slices(case: Decoded, distance: float | None) -> int:
    """Return how many slices a case has at so many mm from one to the next; None: its own.

    Raises:
        BadInput: its file does not state how far its slices are apart.
    """
    own = len(case.image)
    if distance is None:
        return own
    if case.slice_distance is None:
        raise BadInput(
            f"its image states no distance of slices, and slices of {distance:g} mm are wanted; write the spacing into "
            "its header, or leave the case out"
        )
    return max(1, round(own * case.slice_distance / distance))


def preprocess(
    case: Decoded, size: int, box: Box, normalise: Normalise, slices: int | None = None
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return image and label of ``box`` on a ``size`` x ``size`` grid.

    Beyond the border lies the darkest value, no label.

    Of so many ``slices`` (None: its own): images linear between slices, labels of the nearest.
    """
    beyond = _missing(case.image, box)
    with _without_records():
        image = normalise(_planes(crop_to(case.image, box))).numpy()
        if any(beyond):
            image = np.pad(image, ((0, 0), beyond[:2], beyond[2:]), constant_values=image.min())
        stored = _resize(image, size).reshape(*case.image.shape[:2], size, size)
    return resample_slices(stored, slices), resize_label(case.label, size, box, slices)


def _resize(planes: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Return planes (n, height, width) on a ``size`` x ``size`` grid as MONAI's Resize does, to float32 rounding.

    Its smoothing and interpolation are linear along each axis, so together they are one matrix of few numbers in each
    row. MONAI's convolution of whole planes takes half of the time to prepare photographs. Planes that are enlarged are
    not smoothed, and are MONAI's to the bit.
    """
    if size >= max(planes.shape[1:]):
        enlarged: Tensor = Resize((size, size), mode="bilinear")(torch.from_numpy(planes))
        return enlarged.numpy()
    rows, columns = (_weights(length, size) for length in planes.shape[1:])
    reduced = np.empty((len(planes), size, size), np.float32)
    for place, plane in enumerate(planes):
        reduced[place] = rows @ np.ascontiguousarray((columns @ np.ascontiguousarray(plane.T)).T)
    return reduced


@lru_cache(maxsize=8)
def _weights(length: int, size: int) -> sparse.csr_array:
    """Return the weights (size, length) by which MONAI's Resize makes ``size`` values of ``length`` along an axis."""
    weights = Resize((size, length), mode="bilinear", anti_aliasing=True)(torch.eye(length)[None])
    return sparse.csr_array(weights[0].numpy())


def resample_slices(volume: NDArray[np.float32], slices: int | None) -> NDArray[np.float32]:
    """Return (``slices``, channels, height, width), linear between those of a volume alike; None: the volume."""
    if slices is None or slices == len(volume):
        return volume
    with _without_records():
        resize = Resize((slices, *volume.shape[2:]), mode="trilinear", anti_aliasing=True)
        resampled: NDArray[np.float32] = resize(volume.swapaxes(0, 1)).numpy().swapaxes(0, 1)
    return np.ascontiguousarray(resampled)


def resize_label(label: NDArray[np.uint8], size: int, box: Box, slices: int | None = None) -> NDArray[np.uint8]:
    """Return the label (slices, labels, height, width) of ``box`` on a ``size`` x ``size`` grid, of so many
    ``slices``.
    """
    if slices is not None and slices != len(label):  # the slice in which the middle of each lies
        label = label[((np.arange(slices) + 0.5) * len(label) / slices).astype(int)]
    rows, columns = _sampled_places(box, size)
    sampled = label.take(rows, axis=2, mode="clip").take(columns, axis=3, mode="clip")
    sampled[:, :, (rows < 0) | (rows >= label.shape[2])] = 0
    sampled[:, :, :, (columns < 0) | (columns >= label.shape[3])] = 0
    return sampled


def _missing(stack: NDArray[Any], box: Box) -> list[int]:
    """Return the pixels to add to (..., height, width) on each side, as far as ``box`` is beyond it."""
    height, width = stack.shape[-2:]
    beyond = box.top + box.height - height, box.left + box.width - width
    return [max(side, 0) for side in (-box.top, beyond[0], -box.left, beyond[1])]


def crop_to(stack: NDArray[Any], box: Box) -> NDArray[Any]:
    """Return the part of (..., height, width) that is within ``box``."""
    bottom, right = box.top + box.height, box.left + box.width
    return stack[..., max(box.top, 0) : max(bottom, 0), max(box.left, 0) : max(right, 0)]


@lru_cache(maxsize=8)
def _sampled_places(box: Box, size: int) -> list[NDArray[np.intp]]:
    """Return the rows and the columns, each (size,), that a grid of ``size`` x ``size`` samples of a box.

    nearest-exact samples at pixel centres as bilinear does; plain nearest would shift the mask.
    """
    lines = (torch.arange(length, dtype=torch.float32)[None, None] for length in (box.height, box.width))
    steps = (interpolate(line, size, mode="nearest-exact")[0, 0].numpy().astype(np.intp) for line in lines)
    return [start + step for start, step in zip((box.top, box.left), steps, strict=True)]


def lost_pieces(mask: NDArray[np.uint8], size: int, box: Box) -> tuple[list[int], int]:
    """Return the voxels of each connected piece of a label that `preprocess` leaves nothing of, and the number of
    pieces.

    The ``mask`` (slices, height, width) of 0 and 1, not all 0, is the one before resizing.
    """
    where = tuple(
        slice(int(marked[0]), int(marked[-1]) + 1)
        for marked in (np.flatnonzero(mask.any(axis=others)) for others in ((1, 2), (0, 2), (0, 1)))
    )
    rows, columns = (
        at[(at >= part.start) & (at < part.stop)] - part.start
        for at, part in zip(_sampled_places(box, size), where[1:], strict=True)
    )
    pieces, count = ndimage.label(mask[where], structure=np.ones((3, 3, 3)))
    sampled = pieces[:, rows][:, :, columns]
    if count == 1 and sampled.any():
        return [], 1
    kept = np.bincount(sampled.ravel(), minlength=count + 1)
    return np.sort(np.bincount(pieces.ravel())[1:][kept[1:] == 0]).tolist(), count


@contextmanager
def _without_records() -> Iterator[None]:
    """Switch off MONAI's record of transforms in each image, which is not needed and takes a sixth of the time."""
    before = get_track_meta()
    set_track_meta(False)
    try:
        yield
    finally:
        set_track_meta(before)


def _percentiles(values: NDArray[np.float32], percents: Sequence[float]) -> list[float]:
    """Return percentiles, interpolated between their two neighbours."""
    ordered, last = np.sort(values, axis=None), values.size - 1
    if values.size > EXACT:
        return [float(np.float32(_between(ordered, last * (percent / 100)))) for percent in percents]
    ranks = [torch.tensor(percent / 100, dtype=torch.float32) * last for percent in percents]
    return [
        float(torch.tensor(ordered[int(rank)]).lerp(torch.tensor(ordered[int(rank.ceil())]), rank - int(rank)))
        for rank in ranks
    ]


def _between(ordered: NDArray[np.float32], place: float) -> float:
    """Return the value at a place between two ranks, rounded as by NumPy's percentile."""
    below, share = ordered[int(place)], place % 1
    above = ordered[int(place) + 1]
    step = float(above - below)
    return float(above) - step * (1 - share) if share >= 0.5 else float(below) + step * share


def _planes(stack: NDArray[Any]) -> NDArray[Any]:
    """Return slices and channels as one axis, the channels of MONAI's two-dimensional transforms."""
    return stack.reshape(-1, *stack.shape[2:])


def _central_start(length: int, extent: int) -> int:
    """Return the first pixel of a centred window of ``extent`` pixels; negative if it is longer than ``length``."""
    return length // 2 - extent // 2 if length > extent else -((extent - length) // 2)


def _field_needed(label: NDArray[np.uint8], spacing: Sequence[float]) -> float:
    """Return side in mm of the centred square that contains every labelled pixel."""
    needed = 0.0
    for axis in (0, 1):
        marked = np.flatnonzero(label.any(axis=(0, 1, 3 - axis)))
        if marked.size:
            middle = label.shape[2 + axis] / 2
            reach = max(middle - marked[0], marked[-1] + 1 - middle) + 1  # one pixel for the crop's rounding
            needed = max(needed, 2 * float(reach) * spacing[axis])
    return needed
