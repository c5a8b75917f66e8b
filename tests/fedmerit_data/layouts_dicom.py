"""Masks in DICOM: segmentations (SEG) and structure sets (RTSTRUCT) drawn on a series."""

from pathlib import Path

import highdicom
import numpy as np
from highdicom.legacy import LegacyConvertedEnhancedMRImage
from layouts_prostate import LPS, OBLIQUE
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.sr.codedict import codes
from pydicom.uid import ComputedRadiographyImageStorage, ExplicitVRLittleEndian, RTStructureSetStorage, generate_uid

MADE = {
    "manufacturer": "test",
    "manufacturer_model_name": "test",
    "software_versions": "1",
    "device_serial_number": "1",
}


def save_seg(path: Path, slices, regions, kind="BINARY", edit=None):
    """``regions`` by name, each (x, y, z), as the segments 1, 2, ... of a SEG on the slices of a series."""
    path.parent.mkdir(parents=True, exist_ok=True)
    manual = highdicom.seg.SegmentAlgorithmTypeValues.MANUAL
    describe = [
        highdicom.seg.SegmentDescription(number, name, codes.SCT.Organ, codes.SCT.Prostate, manual)
        for number, name in enumerate(regions, 1)
    ]
    pixels = np.stack([mask.transpose(2, 1, 0) for mask in regions.values()], -1)
    file = highdicom.seg.Segmentation(
        source_images=slices,
        pixel_array=pixels if kind == "FRACTIONAL" else pixels.astype(np.uint8),
        segmentation_type=kind,
        segment_descriptions=describe,
        series_instance_uid=generate_uid(),
        series_number=300,
        sop_instance_uid=generate_uid(),
        instance_number=1,
        **MADE,
    )
    if edit:
        edit(file)
    file.save_as(path)
    return path


def save_enhanced(path: Path, slices):
    """The slices of a series as the frames of one file, in no order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    order = [slices[at] for at in np.random.default_rng(5).permutation(len(slices))]
    uids = {"series_instance_uid": generate_uid(), "sop_instance_uid": generate_uid()}
    LegacyConvertedEnhancedMRImage(order, series_number=5, instance_number=1, **uids).save_as(path)
    return path


def shuffle_frames(file):
    """The frames of a SEG in another order."""
    order = np.random.default_rng(3).permutation(file.NumberOfFrames)
    pixels = file.pixel_array.reshape(-1, file.Rows, file.Columns)[order]
    groups = [file.PerFrameFunctionalGroupsSequence[at] for at in order]
    file.PerFrameFunctionalGroupsSequence = groups
    packed = np.packbits(pixels.ravel().astype(np.uint8), bitorder="little").tobytes()
    file.PixelData = packed + b"\0" * (len(packed) % 2)


def outline(*corners):
    """A closed contour by its corners in voxels (column, row)."""
    return np.array(corners, float)


def square(left, top, right, bottom):
    """The contour of a rectangle around pixels ``left`` to ``right - 1`` and ``top`` to ``bottom - 1``."""
    left, top, right, bottom = (side - 0.5 for side in (left, top, right, bottom))
    return outline((left, top), (right, top), (right, bottom), (left, bottom))


def save_structures(path: Path, slices, regions, affine=OBLIQUE, kind="CLOSED_PLANAR"):
    """``regions`` by name: (slice, contour in voxels) pairs; the slice may be a fraction."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.SOPClassUID = file.file_meta.MediaStorageSOPClassUID = RTStructureSetStorage
    file.SOPInstanceUID = file.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    file.Modality, file.StructureSetLabel = "RTSTRUCT", "test"
    file.StructureSetROISequence, file.ROIContourSequence = [], []
    for number, (name, contours) in enumerate(regions.items(), 11):
        region = Dataset()
        region.ROINumber, region.ROIName = number, name
        region.ReferencedFrameOfReferenceUID = slices[0].FrameOfReferenceUID
        file.StructureSetROISequence.append(region)
        drawn = Dataset()
        drawn.ReferencedROINumber, drawn.ContourSequence = number, []
        for at, points in contours:
            voxels = np.column_stack([points, np.full(len(points), at), np.ones(len(points))])
            contour = Dataset()
            contour.ContourGeometricType, contour.NumberOfContourPoints = kind, len(points)
            contour.ContourData = [f"{value:.6f}" for value in (voxels @ (LPS @ affine).T)[:, :3].ravel()]
            drawn.ContourSequence.append(contour)
        file.ROIContourSequence.append(drawn)
    file.save_as(path, enforce_file_format=True)
    return path


def x_ray(path, slice_, **changes):
    """One picture without a place."""
    for key in ("ImagePositionPatient", "ImageOrientationPatient"):
        del slice_[key]
    slice_.SOPClassUID = slice_.file_meta.MediaStorageSOPClassUID = ComputedRadiographyImageStorage
    slice_.Modality = "CR"
    for key, value in changes.items():
        setattr(slice_, key, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    slice_.save_as(path, enforce_file_format=True)
