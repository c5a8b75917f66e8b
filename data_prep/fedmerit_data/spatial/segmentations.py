"""Masks as DICOM segmentations (SEG): read, and written for a PACS."""

import re
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from numpy.typing import NDArray
from pydicom import uid

from fedmerit.errors import BadInput
from fedmerit.version import package_version
from fedmerit_data.spatial.dicom import Regions, frame_remarks, place_slices, report_dicom_damage
from fedmerit_data.spatial.geometry import resample_mask
from fedmerit_data.spatial.heads import with_preamble
from fedmerit_data.spatial.volumes import FROM_LPS, Volume, report_damage, require_sane

ON_GRID = 0.1  # voxels that a frame may be off the grid of the image that it was drawn on
THICKER = 1.5  # of the image's slices: frames that mark several of them
REFERRED = ("StudyInstanceUID", "SeriesInstanceUID", "SOPClassUID")  # of all slices, to say what a mask is of
PATIENT = (  # attributes that an image has, be they empty
    "PatientID", "PatientName", "PatientBirthDate", "PatientSex", "AccessionNumber",
    "StudyID", "StudyDate", "StudyTime", "ReferringPhysicianName",
)  # fmt: skip
IN_PLACE = (uid.CTImageStorage, uid.MRImageStorage, uid.PositronEmissionTomographyImageStorage)  # each has a frame
SERIES = 900  # number of a series of masks: beyond those of scanners
LONGEST = 64  # characters of a text of DICOM
# DICOM's own lists of what a segment may be, by the category of each.
CONTEXTS = {"AnatomicalStructure": "CID7192", "MorphologicallyAbnormalStructure": "CID7194", "Tissue": "CID7191"}
SIDES = ("left", "right")
LISTED_AS = {"Tumor": "Neoplasm", "Tumour": "Neoplasm"}


def read_segmentation(path: Path) -> Regions:
    """Return the segments of a DICOM segmentation: binary, a label map, or fractional, which is cut at half.

    Raises:
        BadInput: the file is unreadable or has no segments.
    """
    import highdicom  # takes a second to import, and other layouts do not need it

    with report_dicom_damage(path, "DICOM segmentation"):
        header = pydicom.dcmread(with_preamble(path), stop_before_pixels=True)
        require_sane(path, (header.Columns, header.Rows, int(header.NumberOfFrames)))
        file = highdicom.seg.segread(with_preamble(path))
        names = {
            number: str(file.get_segment_description(number).segment_label) for number in file.segment_numbers if number
        }
        if not names:
            raise BadInput(f"{path}: has no segments; export the segmentation again")
        return Regions(path, names, partial(_draw, path, file))


def _draw(path: Path, file: Any, image: Volume, numbers: Collection[int]) -> tuple[Volume, tuple[str, ...]]:
    """Return each frame where its own header puts it: segments leave out empty frames, and store them in any order."""
    from highdicom.spatial import PixelToReferenceTransformer

    with report_damage(path, "DICOM segmentation"):
        remarks = frame_remarks(image, file.get("FrameOfReferenceUID"))
        if file.SegmentationType == "FRACTIONAL":
            remarks += (f"soft edges cut at half of {file.MaximumFractionalValue}",)
        frames = list(_marked_frames(file, numbers))
        mask = np.zeros(image.voxels.shape, np.bool_)
        if not image.is_located:
            for _, pixels in frames:
                if mask.shape != (*pixels.T.shape, 1):
                    raise BadInput(f"{path}: frames of {pixels.shape[::-1]}; expected {mask.shape}, as its image has")
                mask[..., 0] |= pixels.T
            return replace(image, path=path, voxels=mask.astype(np.float32)), remarks
        if "FrameOfReferenceUID" not in file:
            raise BadInput(f"{path}: does not state where its frames are (FrameOfReferenceUID); export it again")
        measures = _group(file, 0, "PixelMeasuresSequence")
        thickness = float(measures.get("SpacingBetweenSlices") or measures.get("SliceThickness") or 0)
        for number, pixels in frames:
            place = PixelToReferenceTransformer.for_image(file, frame_number=number).affine
            to_image = np.linalg.inv(image.affine) @ FROM_LPS @ place  # of column, row and mm along the normal
            rows, columns = np.nonzero(pixels)
            at = np.stack([columns, rows, np.zeros_like(rows), np.ones_like(rows)]).T @ to_image.T
            voxels = np.rint(at[:, :3]).astype(np.intp)
            steps = np.abs(to_image[:3, :3])  # each along one axis of the image, to the next voxel
            is_one_voxel = np.abs(steps[:, :2] - np.rint(steps[:, :2])).max() < 0.01 and steps[:, :2].sum() < 2.5
            along = steps[:, :2].sum(axis=1).argmin()  # the axis of the slices, oblique to a tilted gantry's normal
            is_thicker = steps[along, 2] * thickness > THICKER
            if not is_one_voxel or is_thicker or np.abs(at[:, :3] - voxels).max() > ON_GRID:
                label, more = resample_mask(image, _union(path, file, numbers))
                return label, remarks + more
            if (voxels < 0).any() or (voxels >= mask.shape).any():
                raise BadInput(f"{path}: marks voxels outside its image {image.path.name}; they have to be of one scan")
            mask[tuple(voxels.T)] = True
        return replace(image, path=path, voxels=mask.astype(np.float32)), remarks


def _marked_frames(file: Any, numbers: Collection[int]) -> Iterable[tuple[int, NDArray[np.bool_]]]:
    """Return the number of each frame, from 1, that has pixels of these segments, and where."""
    stored = file.pixel_array.reshape(-1, file.Rows, file.Columns)
    for index, pixels in enumerate(stored):
        if file.SegmentationType == "LABELMAP":
            marked = np.isin(pixels, list(numbers))
        elif _group(file, index, "SegmentIdentificationSequence").ReferencedSegmentNumber not in numbers:
            continue
        else:
            least = file.MaximumFractionalValue / 2 if file.SegmentationType == "FRACTIONAL" else 1
            marked = pixels >= least
        if marked.any():
            yield index + 1, marked


def _group(file: Any, index: int, name: str) -> Any:
    """Return a functional group of a frame, stated for the frame or for all."""
    own = file.PerFrameFunctionalGroupsSequence[index]
    return (own if name in own else file.SharedFunctionalGroupsSequence[0])[name].value[0]


def _union(path: Path, file: Any, numbers: Collection[int]) -> Volume:
    geometry = file.get_volume_geometry()
    if geometry is None:
        raise BadInput(f"{path}: its frames are not a volume; export the segmentation again")
    require_sane(path, geometry.spatial_shape)
    union: NDArray[Any] = np.zeros(geometry.spatial_shape, np.bool_)
    for number in numbers:
        union |= file.get_volume(segment_numbers=[number]).array[..., 0] >= 0.5
    return place_slices(path, geometry.with_array(union.astype(np.float32)))


def missing_reference(image: Volume) -> str | None:
    """Return what a DICOM image lacks so that no segmentation can refer to it: one value of an attribute for all
    slices, or one frame at each place; `None` if it lacks nothing.
    """
    slices = image.header
    if len(slices) == 1 and int(slices[0].get("NumberOfFrames") or 1) > image.voxels.shape[2]:
        return "frame at each place"
    needed = [*REFERRED, *["FrameOfReferenceUID"] * (image.is_located or slices[0].get("SOPClassUID") in IN_PLACE)]
    for name in needed:
        if not slices[0].get(name) or any(slice_.get(name) != slices[0].get(name) for slice_ in slices):
            return name
    return None if all(slice_.get("SOPInstanceUID") for slice_ in slices) else "SOPInstanceUID"


def pack_segmentation(image: Volume, labels: Sequence[str], masks: NDArray[np.uint8], model: str) -> bytes:
    """Return a DICOM segmentation, with a segment of each label, of the patient and study of its image.

    Args:
        image: A volume of DICOM without a `missing_reference`.
        labels: Names of the segments; those of DICOM's own lists, such as prostate or left kidney, get their codes.
        masks: (labels, x, y, z) of 0 and 1.
        model: Digest of the model that made the masks: the serial number of the device.

    Raises:
        BadInput: the image's data sets are not as DICOM demands of what a segmentation takes over.
    """
    try:
        return _pack(image, labels, masks, model)
    except Exception as error:
        said = " ".join(str(error).split())
        raise BadInput(
            f"{image.path}: no DICOM segmentation can take over its headers ({said}); predict it as NIfTI"
        ) from error


def _pack(image: Volume, labels: Sequence[str], masks: NDArray[np.uint8], model: str) -> bytes:
    import highdicom
    from pydicom.sr.codedict import codes

    sources = [copy(slice_) for slice_ in image.header]
    for name in PATIENT:
        if name not in sources[0]:
            setattr(sources[0], name, "")
    maker = highdicom.AlgorithmIdentificationSequence(
        "FedMerit", codes.CID7162.ArtificialIntelligence, package_version()
    )
    frames = masks.transpose(3, 2, 1, 0)  # (slice, row, column, segment)
    if len(sources) == 1 and len(frames) > 1:  # whose frames may be stored in any order
        frames = frames[_frame_order(image)]
    file = highdicom.seg.Segmentation(
        source_images=sources,
        pixel_array=frames,
        segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
        segment_descriptions=[_describe(number, label, maker) for number, label in enumerate(labels, 1)],
        series_instance_uid=highdicom.UID(),
        series_number=SERIES,
        sop_instance_uid=highdicom.UID(),
        instance_number=1,
        manufacturer="FedMerit",
        manufacturer_model_name="FedMerit",
        software_versions=package_version()[:LONGEST],
        device_serial_number=model[:LONGEST],
        omit_empty_frames=bool(masks.any()),
        content_label="SEGMENTATION",
        content_description="For research, not for diagnosis",
        series_description=f"FedMerit: {', '.join(labels)}"[:LONGEST],
        specific_character_set="ISO_IR 192",  # labels may have any letters
    )
    if not image.is_located:
        file.PatientOrientation = sources[0].get("PatientOrientation")
    packed = BytesIO()
    file.save_as(packed, enforce_file_format=True)
    return packed.getvalue()


def _frame_order(image: Volume) -> list[int]:
    """Return the slice of a volume that each frame of its file is."""
    from highdicom.spatial import PixelToReferenceTransformer

    (file,) = image.header
    numbers = range(1, int(file.NumberOfFrames) + 1)
    corners = [PixelToReferenceTransformer.for_image(file, frame_number=number).affine[:, 3] for number in numbers]
    at = np.linalg.inv(image.affine) @ FROM_LPS @ np.transpose(corners)
    return [int(place) for place in np.rint(at[2])]


def _describe(number: int, label: str, maker: Any) -> Any:
    """Return a segment with the codes of its category and type.

    A name that DICOM does not list is a tissue of that name.
    """
    import highdicom
    from pydicom.sr.codedict import codes

    words = [word for word in re.split(r"[^a-z]+", label.lower()) if word]
    sides = [word for word in words if word in SIDES]
    whole, part = (
        "".join(word.capitalize() for word in some) for some in (words, [w for w in words if w not in SIDES])
    )
    category, kind, side = codes.SCT.Tissue, codes.SCT.Tissue, None
    for name, context in CONTEXTS.items():
        listed = getattr(codes, context)
        if found := [one for one in (whole, LISTED_AS.get(part, part)) if one in listed.dir()]:
            category, kind = getattr(codes.SCT, name), getattr(listed, found[0])
            side = sides[0] if sides and found[0] != whole else None
            break
    segment = highdicom.seg.SegmentDescription(
        number, label[:LONGEST], category, kind, highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC, maker
    )
    if side:
        modifier = highdicom.sr.CodedConcept.from_code(getattr(codes.SCT, side.capitalize()))
        segment.SegmentedPropertyTypeCodeSequence[0].SegmentedPropertyTypeModifierCodeSequence = [modifier]
    return segment
