"""DICOM images: series of single slices, enhanced multi-frame files, X-rays; masks have a module of their own."""

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from numpy.typing import NDArray
from pydicom.filereader import read_file_meta_info
from pydicom.pixels.processing import apply_color_lut
from pydicom.pixels.utils import get_expected_length, pixel_array
from pydicom.uid import JPEG2000TransferSyntaxes

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import list_visible
from fedmerit_data.spatial.heads import has_preamble, is_dicom_file, read_head, require_small, with_preamble
from fedmerit_data.spatial.volumes import FROM_LPS, ITK, Volume, place_volume, report_damage, require_sane

# Tags that every slice has, with equal values in the whole series.
SHARED_TAGS = (
    "SeriesInstanceUID",
    "Rows",
    "Columns",
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "BitsAllocated",
    "PixelRepresentation",
)
PLACE_TAGS = {
    "ImageOrientationPatient": (6, "the directions of its rows and columns"),
    "ImagePositionPatient": (3, "the place of the slice"),
    "PixelSpacing": (2, "the size of its pixels"),
}
CODESTREAM = b"\xff\x4f\xff\x51"  # begins a JPEG 2000 image; its size follows, which need not be that of the header
MOST_DECODED = 2**27  # numbers of such an image: GDCM takes memory for all that it states
# What distinguishes slices or frames at one place, in this order: times, b-values, echoes, phases of the heart.
VOLUME_TAGS = (
    "TemporalPositionIdentifier",
    "TemporalPositionIndex",
    "DiffusionBValue",
    "EffectiveEchoTime",
    "EchoTime",
    "SequenceName",
    "NominalCardiacTriggerDelayTime",
    "TriggerTime",
    "AcquisitionNumber",
    "AcquisitionTime",
)
POSITION_TOLERANCE = 0.1  # mm; closer slices have the same position
SPACING_TOLERANCE = 0.05  # share of the median step by which steps between slices may differ from it


@dataclass(frozen=True)
class Regions:
    """The regions that a DICOM segmentation or structure set marks, which may overlap: by number their names.

    ``draw`` gives the union of the regions of some numbers on the grid of an image, 1 inside and 0 outside, with
    remarks. It raises `BadInput` if they are not within the image.
    """

    path: Path
    names: Mapping[int, str]
    draw: Callable[[Volume, Collection[int]], tuple[Volume, tuple[str, ...]]]
    are_named: bool = False  # in a structure set: numbers mean nothing, and regions are not of one kind


@contextmanager
def report_dicom_damage(path: Path, what: str) -> Iterator[None]:
    """Turn errors of a damaged file into `BadInput`; so is one too large."""
    with report_damage(path, what):
        old = not has_preamble(path) and is_dicom_file(path)
        stated = pydicom.Dataset() if old else read_file_meta_info(path)
        require_small(path, stated)
        if stated.get("TransferSyntaxUID") in JPEG2000TransferSyntaxes:
            for part in path.read_bytes().split(CODESTREAM)[1:]:
                width, height, channels = struct.unpack_from(">4xII24xH", part.ljust(38, b"\0"))
                if width * height * channels > MOST_DECODED:
                    raise BadInput(
                        f"{path}: a JPEG 2000 image of {width} x {height} x {channels} numbers; expected at most "
                        f"{MOST_DECODED}"
                    )
        yield


def frame_remarks(image: Volume, frame: object) -> tuple[str, ...]:
    """Return a remark if a mask states another frame of reference than its image, so that their coordinates may
    differ.
    """
    own = image.header[0].get("FrameOfReferenceUID") if isinstance(image.header, tuple) else None
    differs = own is not None and str(frame) != str(own)
    return ("its frame of reference is not that of its image: placed by its coordinates",) if differs else ()


def is_slice(path: Path) -> bool:
    """Return whether a file is DICOM, by its content whatever it is called, or calls itself so."""
    return path.is_file() and (path.suffix.lower() in (".dcm", ".ima") or is_dicom_file(path))


def read_dicom(path: Path, slices: Sequence[Path] = (), count: int = 1, channel: int | None = None) -> list[Volume]:
    """Return the one series of a folder, or one file: enhanced multi-frame, one slice, or an X-ray, without a place.

    A series or multi-frame file of several times, b-values or echoes is as many volumes. Files of the folder that hold
    no image, such as a structure set, are left out with a remark.

    Args:
        slices: Those of the series, if the folder holds others.
        count: The number of volumes to read.
        channel: The volume to read if ``count`` is 1 and there are several, from 0.

    Raises:
        BadInput: `read_series` says why; or the file is not an image of grey levels, its frames are not volumes, or
            there is another number of them.
    """
    if not path.is_dir():
        return _read_file(path, count, channel)
    files, others = list(slices), list[tuple[Path, str]]()
    if not files:
        heads = {entry: read_head(entry) for entry in list_visible(path) if is_slice(entry)}
        others = [
            (entry, head.modality) for entry, head in heads.items() if head and head.modality and not head.is_image
        ]
        files = [entry for entry in heads if entry not in dict(others)] or [*heads]
    if len(files) == 1:
        with report_dicom_damage(files[0], "DICOM file"):
            header = pydicom.dcmread(with_preamble(files[0]), stop_before_pixels=True)
        if "ImagePositionPatient" not in header or int(header.get("NumberOfFrames") or 1) > 1:
            return _read_file(files[0], count, channel)
    remarks = tuple(f"{other.name}: {modality}, no image: left out" for other, modality in others)
    volumes = _read_volumes(path, files, count, channel)
    return [replace(volume, remarks=(*volume.remarks, *remarks)) for volume in volumes]


def read_colours(path: Path, slices: Sequence[Path] = ()) -> NDArray[np.float32] | None:
    """Return the picture (height, width, 3) of a DICOM file in colours, such as ultrasound, as red, green and blue.

    The file may be the only one of its folder. `None` if there are several files, or grey levels.

    Raises:
        BadInput: it is unreadable, or holds several pictures.
    """
    if path.is_dir():
        files = slices or [entry for entry in list_visible(path) if is_slice(entry)]
        if len(files) != 1:
            return None
        (path,) = files
    with report_dicom_damage(path, "DICOM file"):
        tags = ["SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "Rows", "Columns"]
        header = pydicom.dcmread(with_preamble(path), specific_tags=tags, stop_before_pixels=True)
        is_palette = header.get("PhotometricInterpretation") == "PALETTE COLOR"
        if "Rows" not in header or not (is_palette or header.get("SamplesPerPixel") == 3):
            return None
        if (frames := int(header.get("NumberOfFrames") or 1)) != 1:
            raise BadInput(f"{path}: holds {frames} pictures in colours; save the picture to use as a file")
        require_sane(path, (header.Columns, header.Rows, 1))
        file = pydicom.dcmread(with_preamble(path))
        pixels = pixel_array(file)  # luminance and chrominance as red, green and blue
        return np.asarray(apply_color_lut(pixels, file) if is_palette else pixels, np.float32)


def _read_file(path: Path, count: int, channel: int | None) -> list[Volume]:
    import highdicom  # takes a second to import, and other layouts do not need it

    with report_dicom_damage(path, "DICOM file"):
        header = pydicom.dcmread(with_preamble(path), stop_before_pixels=True)
        frames, what = int(header.get("NumberOfFrames") or 1), header.get("Modality")
        if "Rows" not in header or what == "SEG":
            raise BadInput(f"{path}: is DICOM {what}, not an image; give the series that it belongs to")
        if header.SamplesPerPixel != 1:
            raise BadInput(
                f"{path}: has {header.SamplesPerPixel} colours per pixel; expected grey levels: export it as PNG"
            )
        require_sane(path, (header.Columns, header.Rows, frames))
        file = highdicom.imread(with_preamble(path))
        if frames == 1:
            down, along = header.get("PixelSpacing") or (1, 1)
            affine = np.diag([float(along), float(down), 1, 1])
            if is_located := {*PLACE_TAGS, "FrameOfReferenceUID"} <= {*header.dir()}:
                place = highdicom.spatial.PixelToReferenceTransformer.for_image(header)
                affine = FROM_LPS @ place.affine @ np.diag([1, 1, float(header.get("SliceThickness") or 1), 1])
            volume = place_volume(path, file.get_frame(1).T[..., None], affine, is_located, header=(header,))
            return _choose(path, [volume], "", count, channel)
        if file.get_volume_geometry(allow_duplicate_positions=False) is not None:
            volume = place_slices(path, file.get_volume(dtype=np.float32), header=(header,))
            return _choose(path, [volume], "", count, channel)
        described = [(number, _describe_frame(header, number)) for number in range(1, frames + 1)]
        is_placed = all(tag in flat for _, flat in described for tag in PLACE_TAGS)
        volumes, differing = _split_volumes(described) if is_placed else ([], "")
        if len(volumes) < 2:
            raise BadInput(
                f"{path}: holds several frames ({frames}), not stated to be evenly spaced slices; export one series"
            )
        chosen = _choose(path, volumes, differing, count, channel)
        for volume in chosen:
            _require_even(path, [f"frame {number}" for number, _ in volume], _places(volume))
        return [
            place_volume(
                path,
                np.stack([file.get_frame(number, dtype=np.float32).T for number, _ in volume], axis=-1),
                _affine(volume),
                header=(header,),
            )
            for volume in chosen
        ]


def _describe_frame(header: pydicom.Dataset, number: int) -> pydicom.Dataset:
    """Return what a multi-frame file states of one of its frames, from 1, as the header of a slice states it."""
    flat = pydicom.Dataset()
    for name, place in (("SharedFunctionalGroupsSequence", 0), ("PerFrameFunctionalGroupsSequence", number - 1)):
        for element in header[name][place] if name in header else ():
            if element.VR == "SQ" and element.value:
                flat.update(element.value[0])
    return flat


Slice = tuple[Any, pydicom.Dataset]  # path of a slice or number of a frame, and what it states


def _places(slices: Sequence[Slice]) -> NDArray[np.float64]:
    """Return the place of each slice along the normal [mm]."""
    along, down = np.reshape(np.asarray(slices[0][1].ImageOrientationPatient, float), (2, 3))
    return np.array([header.ImagePositionPatient for _, header in slices], float) @ np.cross(along, down)


def _affine(slices: Sequence[Slice]) -> NDArray[np.float64]:
    """Return the affine of a volume of at least two slices, in their order."""
    first, last = slices[0][1], slices[-1][1]
    along, down = np.reshape(np.asarray(first.ImageOrientationPatient, float), (2, 3))
    rows_apart, columns_apart = (float(value) for value in first.PixelSpacing)
    corner = np.asarray(first.ImagePositionPatient, float)
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1] = along * columns_apart, down * rows_apart
    affine[:3, 2] = (np.asarray(last.ImagePositionPatient, float) - corner) / (len(slices) - 1)
    affine[:3, 3] = corner
    return FROM_LPS @ affine


def _split_volumes(slices: Sequence[Slice]) -> tuple[list[list[Slice]], str]:
    """Return the volumes that slices are of, each sorted by place, and what distinguishes them, "" of one volume.

    Slices are of several volumes if there are equally many at each place, and one tag has other values for each of
    these, the same at all places; else, if their instances differ, the order of their numbers distinguishes them.
    """
    places = _places(slices)
    order = np.argsort(places, kind="stable")
    ordered = [slices[at] for at in order]
    starts = np.flatnonzero(np.diff(places[order], prepend=-np.inf) >= POSITION_TOLERANCE)
    number = len(slices) // len(starts)
    at_place = [ordered[start : start + number] for start in starts]
    instances = {header.get("SOPInstanceUID", place) for place, (_, header) in enumerate(slices)}
    if number == 1 or len(starts) == 1 or not np.array_equal(starts, np.arange(len(starts)) * number):
        return [ordered], ""
    for tag in VOLUME_TAGS:
        values = [{str(header.get(tag, "")): (name, header) for name, header in group} for group in at_place]
        if len(values[0]) == number and all(one.keys() == values[0].keys() for one in values):
            names = sorted(values[0], key=_by_number)
            return [[group[name] for group in values] for name in names], f"{tag} {', '.join(names)}"
    if len(instances) < len(slices):
        return [ordered], ""
    by_number = [sorted(group, key=_instance_number) for group in at_place]
    return [list(volume) for volume in zip(*by_number, strict=True)], "the order of their numbers"


def _instance_number(slice_: Slice) -> tuple[float, str]:
    return _by_number(str(slice_[1].get("InstanceNumber", slice_[0])))


def _by_number(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return np.inf, text


def _choose(path: Path, volumes: list[Any], differing: str, count: int, channel: int | None) -> list[Any]:
    """Return so many volumes: all, or the one that ``channel`` names."""
    number = len(volumes)
    if channel is not None and number == 1:
        raise BadInput(f"{path}: --channel {channel}: belongs to volumes of several channels; leave it out")
    if channel is not None:
        if count != 1 or not 0 <= channel < number:
            said = f"it has {number}, counted from 0" if count == 1 else f"all {count} are read; leave it out"
            raise BadInput(f"{path}: --channel {channel}: no such channel; {said}")
        return [volumes[channel]]
    if number == 1 != count:
        raise BadInput(
            f"{path}: a DICOM series of grey levels has one channel, not {count}; pass --channels 1, or name a series "
            "for each channel in pairs.csv"
        )
    if number != count:
        choose = ", or name one by --channel, counted from 0" if count == 1 else ""
        raise BadInput(
            f"{path}: holds {number} volumes, which {differing} distinguishes; expected {count}: prepare "
            f"--channels {number} reads them all{choose}"
        )
    return volumes


def place_slices(path: Path, volume: Any, **more: Any) -> Volume:
    """Return the volume of highdicom's, whose axes are slice, row, column; ``more`` are further fields of `Volume`."""
    return place_volume(path, volume.array.T, FROM_LPS @ volume.affine[:, [2, 1, 0, 3]], **more)


def read_series(folder: Path, files: Sequence[Path] = ()) -> Volume:
    """Return the one DICOM series of a folder, or these ``files`` of it, its slices sorted by position.

    Raises:
        BadInput: a slice is unreadable, belongs to another series, occurs twice, or is missing in between.
    """
    (volume,) = _read_volumes(folder, files, 1, None)
    return volume


def _read_volumes(folder: Path, files: Sequence[Path], count: int, channel: int | None) -> list[Volume]:
    """Return the volumes of a series as `read_series` does."""
    paths = list(files) or [path for path in list_visible(folder) if is_slice(path)]
    slices = [(path, _header(path)) for path in paths]
    if len(slices) < 2:
        raise BadInput(f"{folder}: {len(slices)} DICOM slice(s); expected the folder of a whole series")
    first = slices[0][1]
    for path, header in slices:
        for key in (*SHARED_TAGS, "PixelSpacing"):
            if header[key].value != first[key].value:
                raise BadInput(
                    f"{path}: its {key} is not that of {paths[0].name}; keep one series per folder, or name one as "
                    "FOLDER#SERIES, by its UID, number or description"
                )
        apart = np.subtract(header.ImageOrientationPatient, first.ImageOrientationPatient)
        if not np.abs(apart).max() < 1e-3:
            raise BadInput(f"{path}: its ImageOrientationPatient is not that of {paths[0].name}; keep one series")
    with report_damage(folder, "DICOM series"):
        volumes, differing = _split_volumes(slices)
        for volume in volumes:
            require_sane(folder, (first.Columns, first.Rows, len(volume)))
            _require_even(folder, [path.name for path, _ in volume], _places(volume))
        return [_read_slices(folder, volume) for volume in _choose(folder, volumes, differing, count, channel)]


def _read_slices(folder: Path, slices: Sequence[Slice]) -> Volume:
    reader = ITK.ImageSeriesReader()
    reader.SetImageIO("GDCMImageIO")  # files without the preamble, too
    reader.SetFileNames([str(path) for path, _ in slices])
    reader.SetOutputPixelType(ITK.sitkFloat32)  # by default the type of the first slice, which truncates others
    voxels = ITK.GetArrayFromImage(reader.Execute()).T
    require_sane(folder, voxels.shape)
    return place_volume(folder, voxels, _affine(slices), header=tuple(header for _, header in slices))


def _header(path: Path) -> pydicom.Dataset:
    with report_dicom_damage(path, "DICOM slice"):
        header = pydicom.dcmread(with_preamble(path))
        header.filename = str(path)  # also of one read from memory
        what = header.get("Modality") or "DICOM without an image"
        if "Rows" not in header or "PixelData" not in header or what == "SEG":
            raise BadInput(f"{path}: holds no image ({what}); keep only the slices of one series in the folder")
        if (frames := int(header.get("NumberOfFrames") or 1)) != 1:
            raise BadInput(
                f"{path}: holds several frames ({frames}, enhanced multi-frame DICOM); keep it in a folder "
                "of its own, or give a folder of single slices"
            )
        require_sane(path, (header.Columns, header.Rows, 1))
        _require_pixels(header)
        for key, (count, what) in PLACE_TAGS.items():
            if key not in header:
                raise BadInput(
                    f"{path}: does not state {what} ({key}), as slices of a volume do; an X-ray or a secondary capture "
                    "cannot be read as a series: export it as PNG"
                )
            if len(header[key].value) != count or not np.isfinite([float(value) for value in header[key].value]).all():
                raise BadInput(f"{path}: {key} {header[key].value}; expected {count} numbers")
        for key in SHARED_TAGS:
            header[key]  # KeyError names a missing tag
        return header


def _require_pixels(header: pydicom.Dataset) -> None:
    """Raise `ValueError` unless a slice has all its pixels, since ITK fills in missing ones; drops them from memory."""
    pixels = header.pop("PixelData", None)
    there = len(pixels.value or b"") if pixels else 0
    promised = 1 if header.file_meta.TransferSyntaxUID.is_compressed else get_expected_length(header)
    if there < promised:
        raise ValueError(f"promises {promised} bytes of pixels, but has {there}")


def _require_even(folder: Path, names: list[str], places: NDArray[np.float64]) -> None:
    """Raise `BadInput` unless neighbours along the normal have equal distances."""
    steps = np.diff(places)
    at = int(np.argmin(steps))
    if steps[at] < POSITION_TOLERANCE:
        raise BadInput(
            f"{folder}: {names[at]} and {names[at + 1]} have one position; keep one of the two, or if "
            "the series holds several b-values, echoes or times, the slices of one"
        )
    usual = float(np.median(steps))
    at = int(np.argmax(np.abs(steps - usual)))
    if not abs(steps[at] - usual) <= SPACING_TOLERANCE * usual:
        raise BadInput(
            f"{folder}: {names[at]} and {names[at + 1]} are {steps[at]:.2f} mm apart, others {usual:.2f} mm; "
            "add the missing slice, or remove what is not part of the series"
        )
