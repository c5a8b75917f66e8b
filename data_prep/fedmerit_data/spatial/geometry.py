"""Image and mask on one grid, and the slices of both in one orientation."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from nibabel import orientations
from nibabel.affines import voxel_sizes
from numpy.typing import NDArray
from scipy import ndimage

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Decoded, RawCase, require_same_shape, require_whole
from fedmerit_data.spatial.stacks import StackHeader
from fedmerit_data.spatial.volumes import CORNER_TOLERANCE, FROM_LPS, ITK, Volume, corners, distance

# Directions of columns, rows and slices: right-handed, and as a radiologist looks at them.
PLANES = {"axial": "LPS", "sagittal": "PIR", "coronal": "LIP"}
OPPOSITE = dict(zip("LRPASI", "RLAPIS", strict=True))
OBLIQUE = 30  # degrees; beyond, scans of one organ may be nearest to different planes
SQUARE = 0.01  # share by which sides of square pixels may differ


def resample_mask(image: Volume, label: Volume) -> tuple[Volume, tuple[str, ...]]:
    """Return ``label`` on the grid of ``image`` by nearest neighbour, and a remark if that moved voxels.

    A mask that only lacks slices, or is stored in another order, loses nothing and gets no remark.

    Raises:
        BadInput: marked voxels are outside the image, or a header does not state the position of its voxels.
    """
    for volume in (image, label):
        if not volume.is_located:
            raise BadInput(f"{volume.path}: its header does not state where its voxels are; export the file again")
    to_label = np.linalg.inv(label.affine) @ image.affine
    marked = np.argwhere(label.voxels > 0)
    back = np.linalg.inv(to_label)
    at = marked @ back[:3, :3].T + back[:3, 3]
    if marked.size and ((at < -1).any() or (at > image.voxels.shape).any()):
        raise BadInput(f"{label.path}: marks voxels outside its image {image.path.name}; they have to be of one scan")
    voxels = ndimage.affine_transform(
        label.voxels, to_label[:3, :3], to_label[:3, 3], image.voxels.shape, order=0, mode="grid-constant"
    )
    ends = corners(image.voxels.shape) @ to_label.T
    exact = all(np.abs(at - np.rint(at)).max() < 0.01 for at in (ends, to_label[:3, :3]))
    remarks: tuple[str, ...] = () if exact else ("mask resampled (nearest) to the grid of its image",)
    edges = ((corners(label.voxels.shape) - (0.5, 0.5, 0.5, 0)) @ back.T)[:, :3]  # those of voxels, not their centres
    if (edges < -1.5).any() or (edges > np.add(image.voxels.shape, 0.5)).any():
        remarks += ("the grid of the mask reaches beyond its image: is a slice missing?",)
    return replace(image, path=label.path, voxels=voxels), remarks


def resample_channel(grid: Volume, channel: Volume, name: str) -> tuple[Volume, tuple[str, ...]]:
    """Return a channel on the grid of another one of the same scan by linear interpolation, with a remark.

    Voxels of the grid beyond the channel get its smallest value.

    Raises:
        BadInput: they have no voxel in common.
    """
    to_channel = np.linalg.inv(channel.affine) @ grid.affine
    matrix, offset = to_channel[:3, :3], to_channel[:3, 3]
    shape, lowest = grid.voxels.shape, float(channel.voxels.min())
    voxels = ndimage.affine_transform(channel.voxels, matrix, offset, shape, order=1, mode="nearest")
    inside = np.ones(shape, np.bool_)
    for axis, side in enumerate(channel.voxels.shape):
        steps = [matrix[axis, other] * np.arange(count) for other, count in enumerate(shape)]
        at = steps[0][:, None, None] + steps[1][:, None] + steps[2] + offset[axis]
        inside &= (at > -1) & (at < side)
    if not inside.any():
        raise BadInput(f"{channel.path}: lies outside {grid.path.name}; channels have to be of one scan")
    beyond = 1 - float(inside.mean())
    edge = f"; {beyond:.0%} of it beyond the channel" if beyond >= 0.005 else ""
    remark = f"channel {name} resampled (linear) to the grid of the finest channel{edge}"
    placed = np.where(inside, voxels, np.float32(lowest)).astype(np.float32)
    return replace(grid, path=channel.path, voxels=placed, remarks=channel.remarks), (remark,)


def align_axes(case: RawCase, image: Volume, label: Volume) -> Volume:
    """Return ``label`` with its axes in the order and direction of those of ``image``, without resampling.

    A file may state two places; one of each that agree are enough. If neither file states a place, and one no size, as
    stacks of pictures, the shape is enough.

    Raises:
        BadInput: their shapes differ, or their corners do.
    """
    if image.is_located and label.is_located:
        turn = orientations.io_orientation(np.linalg.inv(image.affine) @ label.affine)
        back = orientations.inv_ornt_aff(turn, label.voxels.shape)
        label = replace(
            label,
            voxels=orientations.apply_orientation(label.voxels, turn),
            affine=label.affine @ back,
            places=tuple(place @ back for place in label.places),
        )
    require_same_shape(case, image.voxels, label.voxels)
    if not (image.is_located or label.is_located or (image.is_measured and label.is_measured)):
        return replace(label, affine=image.affine, places=image.places)
    pairs = product(image.places or (image.affine,), label.places or (label.affine,))
    apart = min(distance(first, second, image.voxels.shape) for first, second in pairs)
    if not apart <= CORNER_TOLERANCE:
        unlocated = [volume.path for volume in (image, label) if not volume.is_located]
        why = "the affines differ"
        if unlocated:
            which = "its header" if unlocated[0] == label.path else "that of its image"
            why = f"{which} states no place: if it was drawn on these voxels, copy the other's header to it"
        raise BadInput(
            f"{label.path}: is up to {apart:.1f} mm away from its image {image.path.name} ({why}); "
            "they have to have one geometry"
        )
    return label


def find_plane(image: Volume) -> str | None:
    """Return the plane of `PLANES` that the slices of ``image`` are nearest to; `None` if the file states no place.

    Pixels of a slice are square, so the axis of another size is that along which slices are stacked, wherever the file
    has it; if none is square the longest. Voxels of one size along all axes were acquired in no plane: axial.
    """
    if not image.is_located:
        return None
    sizes, shape = voxel_sizes(image.affine), image.voxels.shape
    others = [abs(np.log(sizes[axis - 1] / sizes[axis - 2])) for axis in range(3)]  # of the two other axes
    if 1 in shape:
        along = len(shape) - 1 - shape[::-1].index(1)
    elif max(others) < SQUARE:
        return "axial"
    else:
        along = int(np.argmin(others) if sorted(others)[0] < SQUARE else np.argmax(sizes))
    return next(name for name, axes in PLANES.items() if _directions(image)[along] in (axes[2], OPPOSITE[axes[2]]))


def _directions(image: Volume) -> str:
    """Return the direction nearest to each axis, such as LPS, as ITK finds them: the closest of all is assigned
    first.
    """
    cosines = FROM_LPS[:3, :3] @ image.affine[:3, :3] / voxel_sizes(image.affine)
    return str(ITK.DICOMOrientImageFilter_GetOrientationFromDirectionCosines(cosines.ravel().tolist()))


def _tilt(affine: NDArray[np.float64]) -> float:
    """Return degrees between the normal of the slices (x, y) and the nearest axis of the body."""
    normal = np.cross(affine[:3, 0], affine[:3, 1])
    return float(np.degrees(np.arccos(np.abs(normal).max() / np.linalg.norm(normal))))


def _orders(image: Volume, plane: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return nibabel's orientations of the stored axes, and of columns, rows and slices of the plane."""
    stored, wanted = (orientations.axcodes2ornt(tuple(axes)) for axes in (_directions(image), PLANES[plane]))
    return stored, wanted


def restore_axes(image: Volume, slices: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return voxels (x, y, z) in the order of ``image`` from the slices (slices, height, width) of `slice_volume`."""
    voxels, plane = slices.transpose(2, 1, 0), find_plane(image)
    if plane is not None:
        stored, sliced = _orders(image, plane)
        voxels = orientations.apply_orientation(voxels, orientations.ornt_transform(sliced, stored))
    return voxels


def slice_volume(
    case: RawCase, image: Volume, label: Volume, *, zones: int | None = None, remarks: tuple[str, ...] = ()
) -> Decoded:
    """Return the slices of the plane that a volume was acquired in, in one order and direction however its file stores
    them.

    Axial slices go from foot to head, their rows from front to back, their columns from the patient's right to left.
    Rows of sagittal and coronal slices go from head to foot, the other directions are those of `PLANES`.

    Args:
        label: Its mask on the same grid, its axes in any order: 0 is background.
        zones: The highest label of a layout that numbers zones, which are merged; `None` for other layouts, whose
            labels above 1 count as 1, with a remark.

    Raises:
        BadInput: image and mask differ in shape or geometry, have values that are not finite, or a label is
            not one of the layout.
    """
    label = align_axes(case, image, label)
    whole = require_whole(label.path, label.voxels)
    highest = int(whole.max())
    if zones is not None and highest > zones:
        raise BadInput(f"{label.path}: has label {highest}; expected 0 to {zones}")
    if zones is None and highest > 1:
        remarks += (f"labels up to {highest} merged into one",)
    return slice_channels([image], [whole > 0], remarks)


def slice_channels(
    images: Sequence[Volume], masks: Sequence[NDArray[np.bool_]], remarks: tuple[str, ...] = ()
) -> Decoded:
    """Return the slices of channels and masks, all on one grid, as `slice_volume` does; ``remarks`` follow theirs.

    Raises:
        BadInput: a value of an image is not finite.
    """
    for image in images:
        if not np.isfinite(image.voxels).all():
            raise BadInput(f"{image.path}: has values that are not finite; export the image again")
    image, affine, turn = images[0], images[0].affine, None
    remarks = (*dict.fromkeys(remark for channel in images for remark in channel.remarks), *remarks)
    if plane := find_plane(image):
        turn = orientations.ornt_transform(*_orders(image, plane))
        affine = affine @ orientations.inv_ornt_aff(turn, image.voxels.shape)
        if plane != "axial":
            remarks += (f"slices in the {plane} plane",)
        if (angle := _tilt(affine)) > OBLIQUE:
            remarks += (f"its slices are {angle:.0f}° oblique to the {plane} plane, the nearest",)
    else:
        remarks += ("its header does not state where its voxels are: axes kept as stored",)
    spacing = voxel_sizes(affine)
    return Decoded(
        _stack([channel.voxels for channel in images], turn, np.float32),
        _stack(masks, turn, np.uint8),
        (float(spacing[1]), float(spacing[0])) if image.is_measured else None,
        remarks,
        float(spacing[2]) if image.is_measured else None,
        plane,
        "".join(orientations.aff2axcodes(image.affine)) if image.is_located else None,
        _spacing_from(image),
    )


def _stack(volumes: Sequence[NDArray[Any]], turn: NDArray[Any] | None, kind: type[Any]) -> NDArray[Any]:
    """Return (slices, volumes, height, width) of voxels (x, y, z) whose axes are turned before."""
    turned = [volume if turn is None else orientations.apply_orientation(volume, turn) for volume in volumes]
    stack = np.empty((turned[0].shape[2], len(turned), *turned[0].shape[1::-1]), kind)
    for place, volume in enumerate(turned):
        stack[:, place] = volume.transpose(2, 1, 0)
    return stack


def _spacing_from(image: Volume) -> str | None:
    """Return the part of a file that states the size of voxels."""
    header = image.header
    if not image.is_measured:
        return None
    if header is None or isinstance(header, tuple | StackHeader):
        return "TIFF" if isinstance(header, StackHeader) else "DICOM"
    if isinstance(header, ITK.Image) or "sform_code" not in header:
        return "header"
    return next((form for form in ("sform", "qform") if header[f"{form}_code"] > 0), "pixdim")
