"""The layers of a case's mask on the grid of its image, from one file or several, by values or by names.

One file of three axes is one layer. A file of four axes has a layer for each of its last, the first of which counts as
1, as the files of a list do. A ``.seg.nrrd`` of 3D Slicer names its segments, files of organs are named by their list.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import RawCase
from fedmerit_data.readers.image_files import is_photograph, read_scan, read_shape
from fedmerit_data.readers.label_map import LabelMap, Layer, named_organs, named_values
from fedmerit_data.spatial.geometry import align_axes, resample_mask
from fedmerit_data.spatial.photographs import load_levels
from fedmerit_data.spatial.volumes import Volume, open_itk, report_damage

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
        elif len(files) > 1:
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
    if is_photograph(path):
        levels, remarks = load_levels(path, named_values(labels))
        mask = replace(image, path=path, voxels=levels.T[..., None].astype(np.float32))
        return [Layer(align_axes(case, image, mask).voxels)], remarks
    shape = read_shape(path)
    numbers: Sequence[int | None] = range(shape[3]) if len(shape) == 4 else [None]
    placed = [_place(case, image, read_scan(path, number), resample) for number in numbers]
    remarks = [remark for _, said in placed for remark in said]
    segments = read_segments(path) if path.name.lower().endswith(SLICER) else []
    if len(placed) == 1:
        return [Layer(placed[0][0].voxels, {name: value for name, value, _ in segments})], remarks
    if not segments:
        return [_number(path, Layer(one.voxels), place + 1) for place, (one, _) in enumerate(placed)], remarks
    return [
        Layer(one.voxels, {name: value for name, value, layer in segments if layer == place}, is_numbered=False)
        for place, (one, _) in enumerate(placed)
    ], remarks


def _place(case: RawCase, image: Volume, mask: Volume, resample: bool) -> tuple[Volume, tuple[str, ...]]:
    """Return the mask on the grid of its image; Slicer stores the part of that grid that holds segments."""
    try:
        return align_axes(case, image, mask), ()
    except BadInput as error:
        if not (image.is_located and mask.is_located):
            raise
        part = mask.path.name.lower().endswith(SLICER)
        if not (resample or part):
            raise BadInput(f"{error}, or --resample-masks given") from None
        placed, remarks = resample_mask(image, mask)
        if remarks and not resample:
            raise BadInput(f"{error}, or --resample-masks given") from None
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
