"""Masks as DICOM structure sets (RTSTRUCT): contours of each region, filled on the grid of an image."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
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
from fedmerit_data.spatial.segmentations import read_segmentation
from fedmerit_data.spatial.volumes import FROM_LPS, Volume, report_damage

MOST_BYTES = 1 << 28  # of a structure set: many times any
MOST_CROSSINGS = 1 << 24  # of one contour with the rows of its slice
FURTHEST = 1e5  # mm of a point from the origin
CLOSED = ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR")
PLANAR = 0.25  # slices that the points of one contour may differ in
ON_SLICE = 0.1  # slices that a contour may be off the slice that it is drawn on

Contours = list[NDArray[np.float64]]  # (points, 3) in mm, each closed


def read_structures(path: Path) -> Regions:
    """Return the regions of a DICOM structure set; `BadInput` if the file is unreadable or has no regions."""
    require_file(path, MOST_BYTES)
    with report_dicom_damage(path, "DICOM structure set"):
        file = pydicom.dcmread(path)
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


def _read_contours(path: Path, region: Any) -> tuple[Contours, int]:
    """Return the closed contours of a region, and how many others it has."""
    contours, others = [], 0
    for item in (region.get("ContourSequence") if region is not None else None) or ():
        stored = item.get_item("ContourData").value  # as bytes: pydicom makes an object of each number
        numbers = np.array(stored.split(b"\\") if isinstance(stored, bytes) else stored).astype(np.float64)
        if numbers.size % 3 or not (np.abs(numbers) < FURTHEST).all():
            raise BadInput(f"{path}: a contour has {numbers.size} coordinates; expected three of each point, in mm")
        if item.ContourGeometricType in CLOSED and numbers.size >= 9:
            contours.append(numbers.reshape(-1, 3))
        else:
            others += 1
    return contours, others


def _fill(path: Path, name: str, contours: Contours, image: Volume, mask: NDArray[np.bool_]) -> Iterable[str]:
    """Fill a region in ``mask``: where contours of one plane overlap, the inner one is a hole. Gives remarks."""
    to_image = np.linalg.inv(image.affine) @ FROM_LPS
    placed = [points @ to_image[:3, :3].T + to_image[:3, 3] for points in contours]
    along = int(np.argmin(np.max([np.ptp(points, axis=0) for points in placed], axis=0)))
    planes: dict[float, Contours] = defaultdict(list)
    for points in placed:
        if np.ptp(points[:, along]) > PLANAR:
            raise BadInput(
                f"{path}: a contour of {name} is not in one slice of {image.path.name}; draw it on its slices"
            )
        planes[round(float(points[:, along].mean()), 2)].append(np.delete(points, along, axis=1))
    nearest: dict[int, float] = {}  # by slice, the plane that is nearest to it
    for plane in planes:
        at = round(plane)
        if at not in nearest or abs(plane - at) < abs(nearest[at] - at):
            nearest[at] = plane
    slices = np.moveaxis(mask, along, 0)
    within = {at: plane for at, plane in nearest.items() if 0 <= at < len(slices)}
    if not within:
        raise BadInput(f"{path}: {name} is outside its image {image.path.name}; they have to be of one scan")
    for at, plane in within.items():
        slices[at] |= _inside(path, planes[plane], slices[at].shape)
    if len(within) < len(nearest):
        yield f"{name}: contours on {len(nearest) - len(within)} slices outside the image left out"
    if len(nearest) < len(planes):
        yield f"{name}: {len(planes) - len(nearest)} planes of contours between slices left out"
    if any(abs(plane - at) > ON_SLICE for at, plane in within.items()):
        yield f"{name}: contours beside the slices of the image, each put on the nearest"


def _inside(path: Path, outlines: Contours, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return pixels whose centre an odd number of outlines (points, 2) surround, so that holes and keyholes stay open.

    Along each row, every crossing of an outline changes inside to outside or back.
    """
    crossings = np.zeros((shape[0] + 1, shape[1]), np.int64)
    for outline in outlines:
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


def read_regions(path: Path) -> Regions | None:
    """Return the regions of a DICOM segmentation or structure set, or of the only file in a folder.

    `None` if it is an image.

    Raises:
        BadInput: the file is unreadable.
    """
    if path.is_dir():
        files = [entry for entry in list_visible(path) if is_slice(entry)]
        if len(files) != 1 or not files[0].is_file():
            return None
        path = files[0]
    with report_dicom_damage(path, "DICOM file"):
        kind = str(pydicom.dcmread(path, specific_tags=["Modality"], stop_before_pixels=True).get("Modality"))
    readers = {"SEG": read_segmentation, "RTSTRUCT": read_structures}
    return readers[kind](path) if kind in readers else None
