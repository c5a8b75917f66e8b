"""Segmentations that are written: valid by DICOM's rules, of their series, and where it is."""

import json
import subprocess

import highdicom
import numpy as np
import pydicom
import pytest
from layouts import volume
from layouts_dicom import save_enhanced, x_ray
from layouts_prostate import OBLIQUE, save_series

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import RawCase
from fedmerit_data.readers import generic
from fedmerit_data.readers.image_files import read_image

LABELS = ("prostate", "left kidney", "tumour", "前立腺")
# As dciodvfy prints what a DICOMDIR would need, of attributes that a test's series leaves empty.
HARMLESS = "Missing attribute or value that would be needed to build DICOMDIR"


def source(folder, kind):
    """A series, an enhanced file with frames in no order, or an X-ray; its path and its first data set."""
    slices = save_series(folder / "series", volume(1)[..., :1] if kind == "x-ray" else volume(1))
    for slice_ in slices:
        slice_.PatientName, slice_.PatientID, slice_.SpecificCharacterSet = "Müller^Jürgen", "7", "ISO_IR 100"
        slice_.save_as(folder / "series" / f"1-{slice_.InstanceNumber:02d}.dcm", enforce_file_format=True)
    if kind == "enhanced":
        file = save_enhanced(folder / "e.dcm", slices)
        return file, pydicom.dcmread(file)
    if kind == "x-ray":
        del slices[0].FrameOfReferenceUID
        x_ray(folder / "x.dcm", slices[0])
        return folder / "x.dcm", slices[0]
    return folder / "series", slices[0]


def overlapping(shape):
    """Masks of all labels (slices, labels, height, width), which overlap; the last is empty."""
    masks = np.random.default_rng(2).random((shape[0], len(LABELS), *shape[2:])) > 0.7
    masks[:, -1] = False
    masks[1:, 0] = False
    return masks


def faults_by_dciodvfy(path):
    """Errors and warnings of the validator that the field uses."""
    ran = subprocess.run(["dciodvfy", "-new", path], capture_output=True, text=True, check=False)
    said = (ran.stdout + ran.stderr).splitlines()
    assert "Segmentation" in said
    return [line for line in said if line.startswith(("Error", "Warning")) and HARMLESS not in line]


@pytest.mark.parametrize("kind", ["series", "enhanced", "x-ray"])
def test_a_segmentation_is_valid_and_of_its_image(tmp_path, kind):
    path, first = source(tmp_path, kind)
    image = read_image(path, 1)
    masks = overlapping(image.decoded.image.shape)
    (file,) = image.write_masks(tmp_path / "masks", LABELS, masks, "ab12")
    assert file.name == f"{path.stem}.seg.dcm"
    assert faults_by_dciodvfy(file) == []
    written = highdicom.seg.segread(file)
    assert (written.PatientName, written.PatientID) == ("Müller^Jürgen", "7")
    for name in ("StudyInstanceUID", "FrameOfReferenceUID"):
        assert written.get(name) == first.get(name)
    assert written.ReferencedSeriesSequence[0].SeriesInstanceUID == first.SeriesInstanceUID
    assert written.DeviceSerialNumber == "ab12"
    segments = [written.get_segment_description(number) for number in written.segment_numbers]
    assert tuple(segment.segment_label for segment in segments) == LABELS
    assert [segment.segmented_property_type.meaning for segment in segments] == [
        "Prostate",
        "Kidney",
        "Neoplasm",
        "Tissue",
    ]
    (side,) = segments[1].SegmentedPropertyTypeCodeSequence[0].SegmentedPropertyTypeModifierCodeSequence
    assert side.CodeMeaning == "Left"
    again = generic.decode(RawCase("p", "p", path, file), {label: (label,) for label in LABELS}, 1)
    np.testing.assert_array_equal(again.label, masks)
    assert again.remarks == image.decoded.remarks


def test_frames_refer_to_the_slice_that_they_mark(tmp_path):
    path, _ = source(tmp_path, "series")
    image = read_image(path, 1)
    masks = np.zeros(image.decoded.image.shape, bool)
    masks[2, 0, 3:6, 4:9] = True
    (file,) = image.write_masks(tmp_path / "masks", ["organ"], masks)
    (frame,) = pydicom.dcmread(file).PerFrameFunctionalGroupsSequence
    (marked,) = [
        one for one in map(pydicom.dcmread, path.iterdir())
        if one.SOPInstanceUID == frame.DerivationImageSequence[0].SourceImageSequence[0].ReferencedSOPInstanceUID
    ]  # fmt: skip
    assert marked.ImagePositionPatient == frame.PlanePositionSequence[0].ImagePositionPatient
    np.testing.assert_array_equal(marked.pixel_array, image.decoded.image[2, 0])


def test_what_no_segmentation_can_take_over_is_reported(tmp_path):
    path, _ = source(tmp_path, "series")
    for file in path.iterdir():
        slice_ = pydicom.dcmread(file)
        slice_.SOPClassUID = "1.2.3"
        slice_.save_as(file)
    image = read_image(path, 1)
    with pytest.raises(
        BadInput, match=r"series: no DICOM segmentation can take over its headers \(.+\); predict it as"
    ):
        image.write_masks(tmp_path / "masks", ["organ"], image.decoded.image > 700)


def test_slices_of_a_tilted_gantry(tmp_path):
    """Which are stacked along another direction than their normal."""
    sheared = OBLIQUE.copy()
    sheared[:3, 2] += (0, 1.5, 0)
    save_series(tmp_path / "series", volume(1), sheared)
    image = read_image(tmp_path / "series", 1)
    masks = overlapping(image.decoded.image.shape)
    (file,) = image.write_masks(tmp_path / "masks", LABELS, masks)
    again = generic.decode(RawCase("p", "p", image.path, file), {label: (label,) for label in LABELS}, 1)
    np.testing.assert_array_equal(again.label, masks)


def test_an_empty_mask_is_a_segmentation_too(tmp_path, capfd):
    path, _ = source(tmp_path, "series")
    image = read_image(path, 1)
    (file,) = image.write_masks(tmp_path / "masks", ["organ"], np.zeros(image.decoded.image.shape, bool))
    assert faults_by_dciodvfy(file) == []
    assert not highdicom.seg.segread(file).pixel_array.any()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("missing", "value"),
    [
        ("FrameOfReferenceUID", None),
        ("FrameOfReferenceUID", "2.25.7"),
        ("StudyInstanceUID", ""),
        ("SOPInstanceUID", ""),
    ],
)
def test_without_what_a_segmentation_refers_to_masks_are_nifti(tmp_path, missing, value):
    """As some anonymisers leave it, or change it in some slices."""
    path, _ = source(tmp_path, "series")
    for file in sorted(path.iterdir())[: None if value is None else 2]:
        slice_ = pydicom.dcmread(file)
        setattr(slice_, missing, value)
        slice_.save_as(file)
    image = read_image(path, 1)
    assert image.decoded.remarks == (f"has no one {missing}, which a DICOM segmentation refers to: masks are NIfTI",)
    (file,) = image.write_masks(tmp_path / "masks", ["organ"], image.decoded.image > 700)
    again = generic.decode(RawCase("p", "p", path, file), {"organ": (1,)}, 1)
    np.testing.assert_array_equal(again.label, image.decoded.image > 700)


def test_slicer_opens_all_segments_at_their_place(tmp_path):
    """By its own converter, which `test_placement` compares with the place of the image."""
    path, _ = source(tmp_path, "enhanced")
    image = read_image(path, 1)
    (file,) = image.write_masks(tmp_path / "masks", LABELS[:3], overlapping(image.decoded.image.shape)[:, :3])
    subprocess.run(
        ["segimage2itkimage", "--inputDICOM", file, "--outputDirectory", tmp_path], check=True, capture_output=True
    )
    reported = json.loads((tmp_path / "meta.json").read_text())["segmentAttributes"]
    assert [one[0]["SegmentLabel"] for one in reported] == list(LABELS[:3])
