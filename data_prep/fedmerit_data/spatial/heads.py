"""Heads of DICOM files: what a file states of itself, read without its pixels. Imports little: processes run it."""

import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pydicom
from pydicom.filereader import read_file_meta_info
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
)

from fedmerit.errors import BadInput

PREAMBLE, MAGIC = 128, b"DICM"
FIRST_GROUPS = (b"\x02\x00", b"\x08\x00")  # of a file without the preamble, little endian
PIXELS = 0x7FE00010
TAGS = [
    "PatientID", "StudyInstanceUID", "SeriesInstanceUID", "SeriesDescription", "SeriesNumber", "Modality",
    "SOPClassUID", "SOPInstanceUID", "FrameOfReferenceUID", "Rows", "NumberOfFrames", "ImagePositionPatient",
    "ReferencedSeriesSequence", "ReferencedFrameOfReferenceSequence", "StructureSetROISequence",
]  # fmt: skip
MASKS = ("SEG", "RTSTRUCT")  # modalities of files that mark regions
MOST_INFLATED, CHUNK = 2**29, 1 << 20  # bytes of a deflated file, whose readers inflate it at once; at a time here


class Head(NamedTuple):
    """The head of a DICOM file; texts are "" where it states none.

    ``refers`` are the UIDs of the series or instances that a mask was drawn on. ``is_placed`` says whether the file is
    one slice at a stated position, as those of a volume are.
    """

    patient: str = ""
    study: str = ""
    series: str = ""
    description: str = ""
    number: str = ""
    modality: str = ""
    instance: str = ""
    frame: str = ""  # of reference
    is_image: bool = False
    is_placed: bool = False
    refers: tuple[str, ...] = ()


def is_dicom_file(path: Path) -> bool:
    """Return whether the first bytes of a file are those of DICOM, with the preamble or without."""
    try:
        if not path.is_file():  # a pipe might never end
            return False
        with path.open("rb") as file:
            first = file.read(PREAMBLE + len(MAGIC))
    except OSError:
        return False
    return first[PREAMBLE:] == MAGIC or (first[:2] in FIRST_GROUPS and first[3:4] == b"\0" and _has_class(path))


def has_preamble(path: Path) -> bool:
    """Return whether a file begins as DICOM files do; those of old programs begin with their first element."""
    with path.open("rb") as file:
        return file.read(PREAMBLE + len(MAGIC))[PREAMBLE:] == MAGIC


def with_preamble(path: Path) -> Path | BytesIO:
    """Return what libraries read a DICOM file from: itself, or its content if that has to be written in another way.

    It gets the preamble if it lacks one, and the lowest byte first, without which highdicom reads no pixels.
    """
    if has_preamble(path):
        if read_file_meta_info(path).get("TransferSyntaxUID") != ExplicitVRBigEndian:
            return path
    elif not is_dicom_file(path):
        return path
    file = pydicom.dcmread(path, force=True)
    if "TransferSyntaxUID" not in file.file_meta:
        is_implicit, _ = file.original_encoding
        file.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian if is_implicit else ExplicitVRLittleEndian
    content = BytesIO()
    if file.file_meta.TransferSyntaxUID == ExplicitVRBigEndian:
        for element in file.iterall():  # pydicom decodes each when it is read
            if element.tag == PIXELS and element.VR == "OW":
                size = max(16, file.BitsAllocated) // 8
                element.value = np.frombuffer(element.value, f">u{size}").astype(f"<u{size}").tobytes()
        file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        pydicom.dcmwrite(content, file, implicit_vr=False, little_endian=True, force_encoding=True)
    else:
        file.save_as(content, enforce_file_format=True)
    content.seek(0)
    return content


def _has_class(path: Path) -> bool:
    try:
        tags = ["SOPClassUID", "SOPInstanceUID"]
        file = pydicom.dcmread(path, force=True, specific_tags=tags, stop_before_pixels=True)
        return all(str(file.get(tag) or "").startswith("1.2.") or file.get(tag) for tag in tags)
    except Exception:  # any error of a file that is not DICOM
        return False


def read_head(path: Path) -> Head | None:
    """Return the head of a DICOM file; `None` if the file is not DICOM, or is damaged: the reader says why."""
    if not is_dicom_file(path):
        return None
    try:
        if has_preamble(path):
            require_small(path, read_file_meta_info(path))
        file = pydicom.dcmread(path, force=True, specific_tags=TAGS, stop_before_pixels=True)
        modality = str(file.get("Modality") or "")
        frame, frames = file.get("FrameOfReferenceUID"), int(file.get("NumberOfFrames") or 1)
        if modality == "RTSTRUCT" and not frame:
            frame = next(
                (roi.get("ReferencedFrameOfReferenceUID") for roi in _items(file, "StructureSetROISequence")), ""
            )
        refers = tuple(dict.fromkeys(_referred(file))) if modality in MASKS else ()
        if modality == "RTSTRUCT" and not refers:
            refers = tuple(dict.fromkeys(_drawn_on(path)))
        texts = (_text(file, tag) for tag in ("PatientID", *TAGS[1:6], "SOPInstanceUID"))
        patient, study, series, description, number, _, instance = texts
        is_image = "Rows" in file and modality not in MASKS and modality not in ("RTDOSE", "PR")
        return Head(patient, study, series, description, number, modality, instance, str(frame or ""), is_image,
                    is_image and frames == 1 and "ImagePositionPatient" in file, refers)  # fmt: skip
    except Exception:  # any error of pydicom over a damaged file
        return Head()


def require_small(path: Path, stated: Any) -> None:
    """Raise `BadInput` if a deflated file inflates beyond `MOST_INFLATED`, by its ``stated`` meta information."""
    if stated.get("TransferSyntaxUID") != DeflatedExplicitVRLittleEndian:
        return
    inflating, size = zlib.decompressobj(-zlib.MAX_WBITS), 0
    with path.open("rb") as file:
        file.seek(PREAMBLE + 16 + stated.FileMetaInformationGroupLength)
        while not inflating.eof and (part := inflating.unconsumed_tail or file.read(CHUNK)):
            size += len(inflating.decompress(part, CHUNK))
            if size > MOST_INFLATED:
                raise BadInput(f"{path}: inflates to more than {MOST_INFLATED} bytes; store it without deflation")


def _text(file: Any, tag: str) -> str:
    return str(file.get(tag) or "").strip()


def _items(file: Any, name: str) -> Iterable[Any]:
    return file.get(name) or ()


def _referred(file: Any) -> Iterator[str]:
    """Yield the series that a segmentation or a structure set names."""
    for series in _items(file, "ReferencedSeriesSequence"):
        yield str(series.SeriesInstanceUID)
    for frame in _items(file, "ReferencedFrameOfReferenceSequence"):
        for study in _items(frame, "RTReferencedStudySequence"):
            for series in _items(study, "RTReferencedSeriesSequence"):
                yield str(series.SeriesInstanceUID)


def _drawn_on(path: Path) -> Iterator[str]:
    """Yield the slices that the contours of a structure set name."""
    for region in _items(pydicom.dcmread(path, specific_tags=["ROIContourSequence"], force=True), "ROIContourSequence"):
        for contour in _items(region, "ContourSequence"):
            for image in _items(contour, "ContourImageSequence"):
                yield str(image.ReferencedSOPInstanceUID)


def main() -> None:
    """Answer each line of standard input, the JSON text of a path, with its head as a line of JSON."""
    for line in sys.stdin:
        print(json.dumps(read_head(Path(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
