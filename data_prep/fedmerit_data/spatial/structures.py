"""Masks as DICOM structure sets (RTSTRUCT): contours of each region, filled on the grid of an image."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit.files import require_file
from fedmerit_data.raw_cases import list_visible
from fedmerit_data.spatial.dicom import Regions, frame_remarks, is_slice, report_dicom_damage
from fedmerit_data.spatial.heads import with_preamble
from fedmerit_data.spatial.segmentations import read_segmentation
from fedmerit_data.spatial.volumes import FROM_LPS, Volume, report_damage

MOST_BYTES = 1 << 28  # of a structure set: many times any
MOST_CROSSINGS = 1 << 24  # of one contour with the rows of its slice
FURTHEST = 1e5  # mm of a point from the origin
XOR = "CLOSEDPLANAR_XOR"
CLOSED = ("CLOSED_PLANAR", XOR)
ON_OUTLINE = 0.05  # pixels that a point of a hole may be beyond its outer contour
SAME_AREA = 1e-3  # share of their area by which a contour and its copy may differ
CHUNK = 256  # points compared with an outline at a time
PLANAR = 0.25  # slices that the points of one contour may differ in
ON_SLICE = 0.1  # slices that a contour may be off the slice that it is drawn on


@dataclass(frozen=True)
class Contour:
    """A closed contour: ``points`` (points, 3) in mm or voxels, later (points, 2) in its plane."""

    points: NDArray[np.float64]
    is_xor: bool = False


def read_structures(path: Path) -> Regions:
    """Return the regions of a DICOM structure set; `BadInput` if the file is unreadable or has no regions."""
    require_file(path, MOST_BYTES)
    with report_dicom_damage(path, "DICOM structure set"):
        file = pydicom.dcmread(with_preamble(path))
        regions = file.get("StructureSetROISequence") or ()
        names = {int(region.ROINumber): str(region.ROIName) for region in regions}
        if not names:
            raise BadInput(f"{path}: has no structures; export the structure set again")
        frames = {str(region.get("ReferencedFrameOfReferenceUID")) for region in regions}
        drawn = {int(one.ReferencedROINumber): one for one in file.get("ROIContourSequence") or ()}
        return Regions(path, names, partial(_draw, path, names, drawn, frames.pop()), are_named=True)


def _draw(
    path: Path, names: Mapping[int, str], drawn: Mapping[int, Any], frame: str, image: Volume, numbers: Collection[int]
) -> tuple[Volume, tuple[str, ...]]:
    with report_damage(path, "DICOM structure set"):
        if not image.is_located:
            raise BadInput(f"{image.path}: does not state where its voxels are, as contours need; export it again")
        mask = np.zeros(image.voxels.shape, np.bool_)
        remarks = list(frame_remarks(image, frame))
        for number in numbers:
            contours, others = _read_contours(path, drawn.get(number))
            if others:
                remarks.append(f"{names[number]}: {others} points or open lines left out")
            if contours:
                remarks += _fill(path, names[number], contours, image, mask)
            else:
                remarks.append(f"{names[number]}: has no closed contours")
        return replace(image, path=path, voxels=mask.astype(np.float32)), tuple(remarks)


def _read_contours(path: Path, region: Any) -> tuple[list[Contour], int]:
    """Return the closed contours of a region, and how many others it has."""
    contours, others = [], 0
    for item in (region.get("ContourSequence") if region is not None else None) or ():
        stored = item.get_item("ContourData").value  # as bytes: pydicom makes an object of each number
        numbers = np.array(stored.split(b"\\") if isinstance(stored, bytes) else stored).astype(np.float64)
        if numbers.size % 3 or not (np.abs(numbers) < FURTHEST).all():
            raise BadInput(f"{path}: a contour has {numbers.size} coordinates; expected three of each point, in mm")
        if item.ContourGeometricType in CLOSED and numbers.size >= 9:
            contours.append(Contour(numbers.reshape(-1, 3), item.ContourGeometricType == XOR))
        else:
            others += 1
    return contours, others


def _fill(path: Path, name: str, contours: list[Contour], image: Volume, mask: NDArray[np.bool_]) -> Iterable[str]:
    """Fill a region in ``mask`` slice by slice; gives remarks."""
    to_image = np.linalg.inv(image.affine) @ FROM_LPS
    placed = [replace(contour, points=contour.points @ to_image[:3, :3].T + to_image[:3, 3]) for contour in contours]
    along = int(np.argmin(np.max([np.ptp(contour.points, axis=0) for contour in placed], axis=0)))
    planes: dict[int, list[tuple[float, Contour]]] = defaultdict(list)  # by the nearest slice
    for contour in placed:
        if np.ptp(contour.points[:, along]) > PLANAR:
            raise BadInput(
                f"{path}: a contour of {name} is not in one slice of {image.path.name}; draw it on its slices"
            )
        plane = float(contour.points[:, along].mean())
        flat = replace(contour, points=np.delete(contour.points, along, axis=1))
        planes[math.floor(round(plane, 3) + 0.5)].append((plane, flat))  # halves all to one side, unlike by `round`
    slices = np.moveaxis(mask, along, 0)
    within = sorted(at for at in planes if 0 <= at < len(slices))
    if not within:
        raise BadInput(f"{path}: {name} is outside its image {image.path.name}; they have to be of one scan")
    joined = 0
    for at in within:
        there = sorted(planes[at], key=lambda one: one[0])
        starts = [place for place in range(1, len(there)) if there[place][0] - there[place - 1][0] > ON_SLICE]
        joined += len(starts)
        for first, end in zip([0, *starts], [*starts, len(there)], strict=True):
            slices[at] |= _region(path, [contour for _, contour in there[first:end]], slices[at].shape)
    if len(within) < len(planes):
        yield f"{name}: contours on {len(planes) - len(within)} slices outside the image left out"
    if joined:
        yield f"{name}: {joined} planes of contours between slices joined with those of the nearest slice"
    if any(abs(plane - at) > ON_SLICE for at in within for plane, _ in planes[at]):
        yield f"{name}: contours beside the slices of the image, each put on the nearest"
    if gaps := within[-1] - within[0] + 1 - len(within):
        yield f"{name}: no contour on {gaps} slices between others that have one"


def _region(path: Path, contours: Sequence[Contour], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return the pixels of one plane's contours: their union, without contours within another one and those of XOR.

    A contour within an even number of others adds, one within an odd number is a hole (DICOM PS3.3, C.8.8.6).
    """
    filled = [(contour, _inside(path, contour.points, shape)) for contour in contours]
    plain = sorted((one for one in filled if not one[0].is_xor), key=lambda one: -_area(one[0].points))
    region = np.zeros(shape, np.bool_)
    for place, (contour, pixels) in enumerate(plain):
        depth = sum(_is_within(contour.points, outer.points) for outer, _ in plain[:place])
        region = region & ~pixels if depth % 2 else region | pixels
    for contour, pixels in filled:
        if contour.is_xor:
            region ^= pixels
    return region


def _area(points: NDArray[np.float64]) -> float:
    u, v = points.T
    return abs(float(np.dot(u, np.roll(v, -1)) - np.dot(v, np.roll(u, -1)))) / 2


def _is_within(points: NDArray[np.float64], outline: NDArray[np.float64]) -> bool:
    """Return whether all points lie inside a smaller part of the plane than the outline, or on it."""
    if (points.min(0) < outline.min(0) - ON_OUTLINE).any() or (points.max(0) > outline.max(0) + ON_OUTLINE).any():
        return False
    if _area(outline) - _area(points) <= SAME_AREA * _area(outline):
        return False  # one contour twice
    start, end = outline, np.roll(outline, -1, axis=0)
    along = end - start
    length = np.maximum((along**2).sum(1), 1e-12)
    for first in range(0, len(points), CHUNK):
        some = points[first : first + CHUNK, None]
        crosses = (start[:, 1] > some[..., 1]) != (end[:, 1] > some[..., 1])
        with np.errstate(divide="ignore", invalid="ignore"):
            at = start[:, 0] + (some[..., 1] - start[:, 1]) / along[:, 1] * along[:, 0]
        inside = (crosses & (some[..., 0] < at)).sum(1) % 2 == 1
        share = (((some - start) * along).sum(-1) / length).clip(0, 1)
        apart = np.linalg.norm(start + share[..., None] * along - some, axis=-1).min(1)
        if not (inside | (apart <= ON_OUTLINE)).all():
            return False
    return True


def _inside(path: Path, outline: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return pixels whose centre an outline (points, 2) surrounds an odd number of times, so that keyholes stay open.

    Along each row, every crossing of the outline changes inside to outside or back.
    """
    crossings = np.zeros((shape[0] + 1, shape[1]), np.int64)
    (u, v), (next_u, next_v) = outline.T, np.roll(outline, -1, axis=0).T
    first, end = (np.ceil(edge(v, next_v)).clip(0, shape[1]).astype(np.int64) for edge in (np.minimum, np.maximum))
    rows = end - first  # that an edge crosses
    if rows.sum() > MOST_CROSSINGS:
        raise BadInput(f"{path}: a contour of {len(outline)} points crosses too many rows; export it again")
    edge_of = np.repeat(np.arange(len(u)), rows)
    row = np.arange(len(edge_of)) - np.repeat(np.cumsum(rows) - rows - first, rows)
    share = (row - v[edge_of]) / (next_v - v)[edge_of]
    at = np.ceil(u[edge_of] + share * (next_u - u)[edge_of]).clip(0, shape[0]).astype(np.int64)
    np.add.at(crossings, (at, row), 1)
    odd: NDArray[np.bool_] = np.cumsum(crossings[:-1], axis=0) % 2 == 1
    return odd


def join_regions(several: Sequence[Regions]) -> Regions:
    """Return the regions of several files on one image as those of one file, numbered from 1 in the files' order."""
    if len(several) == 1:
        return several[0]
    numbered = [(one, number) for one in several for number in one.names]

    def draw(image: Volume, numbers: Collection[int]) -> tuple[Volume, tuple[str, ...]]:
        of_file = [[numbered[place - 1][1] for place in numbers if numbered[place - 1][0] is one] for one in several]
        drawn = [one.draw(image, part) for one, part in zip(several, of_file, strict=True) if part]
        if not drawn:
            return several[0].draw(image, ())
        voxels = np.maximum.reduce([mask.voxels for mask, _ in drawn])
        return replace(drawn[0][0], voxels=voxels), tuple(remark for _, remarks in drawn for remark in remarks)

    names = {place: one.names[number] for place, (one, number) in enumerate(numbered, 1)}
    return Regions(several[0].path, names, draw, are_named=True)


def read_regions(path: Path) -> Regions | None:
    """Return the regions of a DICOM segmentation or structure set, or of the only file in a folder.

    `None` if it is an image.

    Raises:
        BadInput: the file is unreadable.
    """
    if path.is_dir():
        files = [entry for entry in list_visible(path) if is_slice(entry)]
        if len(files) != 1:
            return None
        path = files[0]
    with report_dicom_damage(path, "DICOM file"):
        kind = str(
            pydicom.dcmread(with_preamble(path), specific_tags=["Modality"], stop_before_pixels=True).get("Modality")
        )
    readers = {"SEG": read_segmentation, "RTSTRUCT": read_structures}
    return readers[kind](path) if kind in readers else None
