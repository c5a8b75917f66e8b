"""Image and mask on one grid, and the axial slices of both."""

from dataclasses import replace
from itertools import product

import nibabel as nib
import numpy as np
from nibabel import orientations
from numpy.typing import NDArray
from scipy import ndimage

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Decoded, RawCase, require_few_labels, require_same_shape
from fedmerit_data.spatial.volumes import Volume

CORNER_TOLERANCE = 0.1  # mm between corners of image and mask
AXIAL = orientations.axcodes2ornt(("L", "P", "S"))  # directions of the axes of axial slices: left, posterior, superior


def resample_mask(image: Volume, label: Volume) -> tuple[Volume, tuple[str, ...]]:
    """``label`` on the grid of ``image`` by nearest neighbour, and a remark if that moved voxels.

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
    corners = _corners(image.voxels.shape) @ to_label.T
    exact = all(np.abs(at - np.rint(at)).max() < 0.01 for at in (corners, to_label[:3, :3]))
    remarks: tuple[str, ...] = () if exact else ("mask resampled (nearest) to the grid of its image",)
    beyond = _corners(label.voxels.shape) @ back.T
    if (beyond[:, :3] < -1).any() or (beyond[:, :3] > np.add(image.voxels.shape, 1)).any():
        remarks += ("the grid of the mask reaches beyond its image: is a slice missing?",)
    return Volume(label.path, voxels, image.affine, image.is_located), remarks


def align_axes(case: RawCase, image: Volume, label: Volume) -> Volume:
    """``label`` with its axes in the order and direction of those of ``image``, without resampling.

    Raises:
        BadInput: their shapes differ, or their corners do.
    """
    if image.is_located and label.is_located:
        turn = orientations.ornt_transform(
            orientations.io_orientation(label.affine), orientations.io_orientation(image.affine)
        )
        affine = label.affine @ orientations.inv_ornt_aff(turn, label.voxels.shape)
        label = replace(label, voxels=orientations.apply_orientation(label.voxels, turn), affine=affine)
    require_same_shape(case, image.voxels, label.voxels)
    apart = np.abs(_corners(image.voxels.shape) @ (image.affine - label.affine).T).max()
    if not apart <= CORNER_TOLERANCE:
        raise BadInput(
            f"{label.path}: is up to {apart:.1f} mm away from its image {image.path.name} (the affines differ); "
            "they have to have one geometry"
        )
    return label


def _corners(shape: tuple[int, ...]) -> NDArray[np.float64]:
    return np.array([(*corner, 1) for corner in product(*((0, side) for side in shape))], dtype=np.float64)


def _along_the_body(image: Volume) -> bool:
    """Whether the header states that the third axis is along the body."""
    return image.is_located and nib.aff2axcodes(image.affine)[2] in "SI"


def restore_axes(image: Volume, slices: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Voxels (x, y, z) in the order of ``image`` from axial ``slices`` (slices, height, width) of `slice_axially`."""
    voxels = slices.transpose(2, 1, 0)
    if not _along_the_body(image):
        return voxels
    turn = orientations.ornt_transform(AXIAL, orientations.io_orientation(image.affine))
    stored: NDArray[np.uint8] = orientations.apply_orientation(voxels, turn)
    return stored


def slice_axially(
    case: RawCase, image: Volume, label: Volume, *, zones: int | None = None, remarks: tuple[str, ...] = ()
) -> Decoded:
    """Axial slices from foot to head, rows from anterior to posterior, columns from the patient's right to left.

    Args:
        case: The case to name in messages.
        image: The scan.
        label: Its mask on the same grid, its axes in any order: 0 is background.
        zones: The highest label of a layout that numbers zones, which are merged; `None` for other layouts, whose
            labels above 1 count as 1, with a remark.
        remarks: Earlier remarks on the case.

    Raises:
        BadInput: image and mask differ in shape or geometry, have values that are not finite, or a label is
            not one of the layout.
    """
    label = align_axes(case, image, label)
    if not np.isfinite(image.voxels).all():
        raise BadInput(f"{image.path}: has values that are not finite; export the image again")
    require_few_labels(label.path, label.voxels)
    whole = np.rint(label.voxels)
    if not np.abs(label.voxels - whole).max() < 1e-3 or whole.min() < 0:
        raise BadInput(f"{label.path}: has labels other than 0, 1, 2, ...; expected a mask, 0 outside the prostate")
    highest = int(whole.max())
    if zones is not None and highest > zones:
        raise BadInput(f"{label.path}: has label {highest}; expected 0 to {zones}")
    if zones is None and highest > 1:
        remarks += (f"labels up to {highest} clipped to 1",)
    voxels, mask, affine = image.voxels, np.minimum(whole, 1).astype(np.uint8), image.affine
    if _along_the_body(image):
        turn = orientations.ornt_transform(orientations.io_orientation(image.affine), AXIAL)
        voxels, mask = (orientations.apply_orientation(stored, turn) for stored in (voxels, mask))
        affine = affine @ orientations.inv_ornt_aff(turn, image.voxels.shape)
    else:
        remarks += ("header does not place the third axis along the body: axes kept as stored",)
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    nominal = not image.is_located or np.allclose(spacing, 1)  # writers put 1 mm along all axes if they know none
    pixels = np.ascontiguousarray(voxels.transpose(2, 1, 0), dtype=np.float32)  # (slices, height, width), as marked
    marked = np.ascontiguousarray(mask.transpose(2, 1, 0), dtype=np.uint8)
    return Decoded(
        pixels[:, None],
        marked[:, None],
        (float(spacing[1]), float(spacing[0])),
        remarks,
        None if nominal else float(spacing[2]),
    )
