"""An image and its mask as a case, by a label map: volumes, photographs, and X-rays with masks that are pictures."""

from dataclasses import replace

import numpy as np

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Decoded, RawCase, require_same_shape
from fedmerit_data.readers.image_files import (
    PHOTOGRAPHS,
    is_dicom,
    name_and_suffix,
    read_channels,
    read_photograph,
    read_scan,
)
from fedmerit_data.readers.label_map import ANY, LabelMap, assign_regions, ignored_remarks, named_values, split_masks
from fedmerit_data.spatial.geometry import align_axes, slice_volume
from fedmerit_data.spatial.photographs import load_levels
from fedmerit_data.spatial.structures import read_regions
from fedmerit_data.spatial.volumes import Volume


def decode(case: RawCase, labels: LabelMap = ANY, channels: int = 1) -> Decoded:
    """One volume as its axial slices, or one photograph as one slice; labels in the order of the map.

    Values that the map ignores count as background, with a remark. `load_levels` says which levels a photograph's mask
    has.

    Args:
        case: Image and mask, both volumes or both photographs.
        labels: Name and mask values of each label, and those of `IGNORE`.
        channels: 1 (grey) or 3 (colours) for a photograph; the numbers per voxel for a volume.

    Raises:
        BadInput: a file is unreadable, image and mask differ in shape or geometry, or a mask has fractions or
            a value that the map does not name.
    """
    if all(name_and_suffix(path)[1] in PHOTOGRAPHS for path in (case.image, case.label)):
        return _photograph(case, labels, channels)
    mixed = [path for path in (case.image, case.label) if name_and_suffix(path)[1] in PHOTOGRAPHS]
    if mixed and not (is_dicom(case.image) and mixed == [case.label]):  # a mask drawn on an X-ray
        raise BadInput(
            f"{case.label}: the mask or its image {case.image.name} is a volume, the other a photograph; give both in "
            "one form"
        )
    return _volume(case, labels, channels)


def _photograph(case: RawCase, labels: LabelMap, channels: int) -> Decoded:
    image = read_photograph(case.image, channels)
    index, remarks = load_levels(case.label, named_values(labels))
    require_same_shape(case, image[0, 0], index)
    masks = split_masks(case.label, index, labels)
    return Decoded(image, np.stack(masks).astype(np.uint8)[None], remarks=(*remarks, *ignored_remarks(index, labels)))


def _volume(case: RawCase, labels: LabelMap, channels: int) -> Decoded:
    images = _channel_volumes(case, channels)
    # Each label separately: `slice_volume` takes a mask of 0 and 1.
    masks, remarks = _read_masks(case, images[0], labels)
    sliced = [slice_volume(case, image, masks[0]) for image in images]
    label = [sliced[0].label, *(slice_volume(case, images[0], part).label for part in masks[1:])]
    return Decoded(
        np.concatenate([part.image for part in sliced], axis=1),
        np.concatenate(label, axis=1),
        sliced[0].spacing,
        (*sliced[0].remarks, *remarks),
        sliced[0].slice_distance,
    )


def _read_masks(case: RawCase, image: Volume, labels: LabelMap) -> tuple[list[Volume], list[str]]:
    """The mask of each label, and remarks."""
    if is_dicom(case.label) and (regions := read_regions(case.label)):
        numbers, remarks = assign_regions(regions, labels)
        drawn = [regions.draw(image, one) for one in numbers]
        return [mask for mask, _ in drawn], [*remarks, *dict.fromkeys(remark for _, more in drawn for remark in more)]
    if name_and_suffix(case.label)[1] in PHOTOGRAPHS:
        levels, remarks = load_levels(case.label, named_values(labels))
        mask = replace(image, path=case.label, voxels=levels.T[..., None].astype(np.float32))
    else:
        mask, remarks = read_scan(case.label), []
    parts = split_masks(case.label, mask.voxels, labels)
    masks = [replace(mask, voxels=part.astype(np.float32)) for part in parts]
    return masks, [*remarks, *ignored_remarks(mask.voxels, labels)]


def _channel_volumes(case: RawCase, channels: int) -> list[Volume]:
    """A volume for each channel, from one file or several."""
    if not case.channels:
        return read_channels(case.image, channels)
    files = (case.image, *case.channels)
    if len(files) != channels:
        raise BadInput(f"{case.image}: case {case.name} has {len(files)} channels; pass --channels {len(files)}")
    first, *others = (read_scan(path) for path in files)
    return [first, *(align_axes(case, first, one) for one in others)]
