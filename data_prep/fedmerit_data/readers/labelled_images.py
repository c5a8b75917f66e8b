"""An image and its mask as a case, by a label map: volumes, photographs, and X-rays with masks that are pictures."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Decoded, RawCase
from fedmerit_data.readers.image_files import (
    is_dicom,
    is_photograph,
    picture_files,
    read_channels,
    read_scan,
    read_shape,
    require_readable,
)
from fedmerit_data.readers.inventory import stem_of
from fedmerit_data.readers.label_map import (
    ANY,
    LabelMap,
    Layer,
    assign_regions,
    ignored_remarks,
    named_colours,
    named_organs,
    named_values,
    split_masks,
)
from fedmerit_data.spatial.geometry import align_axes, resample_mask
from fedmerit_data.spatial.photographs import load_colours, load_levels
from fedmerit_data.spatial.stacks import TIFF
from fedmerit_data.spatial.structures import join_regions, read_regions
from fedmerit_data.spatial.volumes import Volume, as_real, open_itk, report_damage

SLICER = ".seg.nrrd"
Read = tuple[list[Layer], list[str]]  # layers and remarks


def read_layers(case: RawCase, image: Volume, labels: LabelMap, resample: bool) -> Read:
    """Return the layers, voxels in the order of ``image``, and remarks.

    With ``resample``, a mask on another grid of the same scan is brought to the image's by nearest neighbour.

    Raises:
        BadInput: a file is unreadable, or its grid is not that of the image.
    """
    files = (case.label, *case.more)
    layers, remarks = list[Layer](), list[str]()
    for place, path in enumerate(files):
        organ = case.organs[place] if case.organs else ""
        if organ and organ not in named_organs(labels):
            continue
        found, said = _read_file(replace(case, label=path), image, labels, resample)
        remarks += said
        if organ:
            layers.append(Layer(found[0].index > 0, {organ: 1}, is_numbered=False))
        elif len(files) > 1 and not case.organs:
            layers.append(_number(path, found[0], place + 1))
        else:
            layers += found
    if not layers:
        known = ", ".join(case.organs)
        raise BadInput(f"{case.label.parent}: --labels names none of its organs; expected NAME=ORGAN of {known}")
    return layers, list(dict.fromkeys(remarks))


def _number(path: Path, layer: Layer, number: int) -> Layer:
    """Return a mask of 0 and 1 as one of 0 and ``number``."""
    if layer.index.max(initial=0) > 1:
        raise BadInput(
            f"{path}: has values up to {layer.index.max():g}; expected 0 and 1, as masks of several layers have"
        )
    return Layer((layer.index > 0.5) * number)


def _read_file(case: RawCase, image: Volume, labels: LabelMap, resample: bool) -> Read:
    path = case.label
    if pictures := picture_files(path):
        return _read_pictures(path, pictures, image, labels)
    if is_photograph(path) and (wanted := named_colours(labels)):
        colours = load_colours(path)
        mask = align_axes(case, image, replace(image, path=path, voxels=colours.T[..., None].astype(np.float32)))
        names = {f"#{int(value):06x}": int(value) for value in np.unique(colours) if value}
        return [Layer(mask.voxels, names | {name: int(name[1:], 16) for name in wanted})], []
    if is_photograph(path):
        levels, remarks = load_levels(path, named_values(labels))
        mask = replace(image, path=path, voxels=as_real(levels.T[..., None]))
        return [Layer(align_axes(case, image, mask).voxels)], remarks
    shape = read_shape(path)
    numbers: Sequence[int | None] = range(shape[3]) if len(shape) == 4 else [None]
    (part, *others), chosen = case.parts, case.parts[0].index
    if chosen is not None and not others and len(shape) == 4 and read_shape(part.path)[3:] == shape[3:]:
        numbers = [chosen]  # a mask of each time of the image
    placed = [_place(case, image, read_scan(path, number), resample) for number in numbers]
    if not path.name.lower().endswith(SLICER) and all(
        np.array_equal(one.voxels, placed[0][0].voxels) for one, _ in placed[1:]
    ):
        placed = placed[:1]
    remarks = [remark for _, said in placed for remark in said]
    asked = named_organs(labels)
    as_asked = {name.strip().casefold(): name for name in asked}
    segments = [
        (name if name in asked else as_asked.get(name.strip().casefold(), name), value, layer)
        for name, value, layer in (read_segments(path) if path.name.lower().endswith(SLICER) else [])
    ]
    if len(placed) == 1:
        return [Layer(placed[0][0].voxels, {name: value for name, value, _ in segments})], remarks
    if not segments:
        return [_number(path, Layer(one.voxels), place + 1) for place, (one, _) in enumerate(placed)], remarks
    return [
        Layer(one.voxels, {name: value for name, value, layer in segments if layer == place}, is_numbered=False)
        for place, (one, _) in enumerate(placed)
    ], remarks


def _read_pictures(folder: Path, pictures: Sequence[Path], image: Volume, labels: LabelMap) -> Read:
    """Return the mask whose slices are the pictures of a folder, in the order of the slices of a DICOM series.

    Pictures belong to slices of equal names; of other names in their order, if that of the slices is along the volume.

    Raises:
        BadInput: their number or size is not that of the slices, or their order does not follow.
    """
    slices = [Path(header.filename) for header in image.header] if isinstance(image.header, tuple) else []
    if len(slices) != len(pictures):
        raise BadInput(f"{folder}: {len(pictures)} pictures, its image has {len(slices)} slices; expected one of each")
    by_stem, remarks = {stem_of(path): path for path in pictures}, list[str]()
    if not all(stem_of(path) in by_stem for path in slices):
        ranks = [sorted(slices, key=_natural).index(path) for path in slices]
        if ranks not in (sorted(ranks), sorted(ranks, reverse=True)):
            raise BadInput(
                f"{folder}: its pictures have other names than the slices of {image.path}, and these do not follow one "
                "another by their names; name each picture as its slice"
            )
        ordered = sorted(pictures, key=_natural)
        by_stem = {stem_of(path): ordered[rank] for path, rank in zip(slices, ranks, strict=True)}
        remarks.append("pictures of the mask taken as slices in the order of their names")
    read = [load_levels(by_stem[stem_of(path)], named_values(labels)) for path in slices]
    for path, (levels, _) in zip(slices, read, strict=True):
        if levels.T.shape != image.voxels.shape[:2]:
            raise BadInput(
                f"{by_stem[stem_of(path)]}: {levels.shape[1]} x {levels.shape[0]} pixels, its slice {path.name} has "
                f"{image.voxels.shape[0]} x {image.voxels.shape[1]}; expected equal"
            )
    voxels = np.stack([levels.T for levels, _ in read], axis=-1)
    return [Layer(voxels.astype(np.float32))], list(
        dict.fromkeys([*remarks, *(one for _, more in read for one in more)])
    )


def _natural(path: Path) -> list[int | str]:
    """Return what sorts names by their numbers."""
    return [int(part) if place % 2 else part for place, part in enumerate(re.split(r"(\d+)", path.name))]


def _place(case: RawCase, image: Volume, mask: Volume, resample: bool) -> tuple[Volume, tuple[str, ...]]:
    """Return the mask on the grid of its image; Slicer stores the part of that grid that holds segments."""
    try:
        return align_axes(case, image, mask), ()
    except BadInput as error:
        if not (image.is_located and mask.is_located):
            raise
        part = mask.path.name.lower().endswith(SLICER)
        if not (resample or part):
            raise BadInput(f"{error}, or --resample given") from None
        placed, remarks = resample_mask(image, mask)
        if remarks and not resample:
            raise BadInput(f"{error}, or --resample given") from None
        return placed, remarks or (() if part else ("mask on another grid of the scan: brought to its image's",))


def read_segments(path: Path) -> list[tuple[str, int, int]]:
    """Name, value and layer of each segment that the header of a file of 3D Slicer names.

    Raises:
        BadInput: the file is unreadable.
    """
    with report_damage(path, "segmentation"):
        reader, _, _ = open_itk(path)
        said = {key: reader.GetMetaData(key) for key in reader.GetMetaDataKeys() if key.startswith("Segment")}
        return [
            (name, int(said.get(f"{segment}_LabelValue", 1)), int(said.get(f"{segment}_Layer", 0)))
            for key, name in said.items()
            for segment, _, what in [key.partition("_")]
            if what == "Name"
        ]


@dataclass(frozen=True)
class Allowed:
    """An allowance: what is done to images and masks only on request."""

    fill: float | None = None  # the value for voxels of an image that have none; None: such an image is refused
    resample: bool = False  # bring channels (linear) and masks (nearest) to the grid of the finest channel
    channel: int | None = None  # the number to take of several per voxel, from 0


def decode(case: RawCase, labels: LabelMap = ANY, channels: int = 1, allowed: Allowed = Allowed()) -> Decoded:
    """Decode one volume as its slices, or one photograph as one slice, with labels in the order of the map.

    Values that the map ignores count as background, with a remark.

    Args:
        labels: Name and mask values of each label, and those of `fedmerit_data.readers.label_map.IGNORE`.
        channels: 1 (grey) or 3 (colours) for a photograph; the numbers per voxel, or files, for a volume.
        allowed: What is done only on request.

    Raises:
        BadInput: a file is unreadable, image and mask differ in shape or geometry, or a mask has fractions or
            a value that the map does not name.
    """
    picture = is_photograph(case.label)
    may_be_flat = is_dicom(case.image) or case.image.suffix.lower() in TIFF  # an X-ray, a picture of several channels
    if is_photograph(case.image) != picture and not (picture and may_be_flat):
        for path in (case.image, case.label):
            if not path.is_dir():
                require_readable(path)
        raise BadInput(
            f"{case.label}: the mask or its image {case.image.name} is a volume, the other a photograph; give both in "
            "one form"
        )
    parts = case.parts if allowed.channel is None else [replace(part, index=allowed.channel) for part in case.parts]
    image = read_channels(parts, channels, allowed.resample, allowed.fill)
    masks, remarks = _read_masks(replace(case, channels=tuple(parts)), image.grid, labels, allowed.resample)
    decoded = image.slices(masks)
    return replace(decoded, remarks=(*decoded.remarks, *remarks))


def _read_masks(case: RawCase, image: Volume, labels: LabelMap, resample: bool) -> tuple[list[Volume], list[str]]:
    """Return the mask of each label, and remarks."""
    found = [read_regions(path) if is_dicom(path) else None for path in (case.label, *case.more)]
    if several := [one for one in found if one is not None]:
        if len(several) < len(found):
            raise BadInput(f"{case.label}: is one of several files of a mask, of which not all mark regions in DICOM")
        regions = join_regions(several)
        numbers, remarks = assign_regions(regions, labels)
        drawn = [regions.draw(image, one) for one in numbers]
        return [mask for mask, _ in drawn], [*remarks, *dict.fromkeys(remark for _, more in drawn for remark in more)]
    layers, remarks = read_layers(case, image, labels, resample)
    masks = [
        replace(image, path=case.label, voxels=part.astype(np.float32))
        for part in split_masks(case.label, layers, labels)
    ]
    return masks, [*remarks, *ignored_remarks(layers, labels)]
