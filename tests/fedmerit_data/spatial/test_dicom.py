"""DICOM series."""

import struct

import numpy as np
import pydicom
import pytest
from layouts import volume
from layouts_prostate import save_series

from fedmerit.errors import BadInput
from fedmerit_data.spatial import dicom, heads
from fedmerit_data.spatial.dicom import read_dicom, read_series
from fedmerit_data.spatial.segmentations import read_segmentation
from fedmerit_data.spatial.structures import read_regions, read_structures


def edited(path, **changes):
    slice_ = pydicom.dcmread(path)
    for key, value in changes.items():
        setattr(slice_, key, value)
    slice_.save_as(path)


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("missing", r"are 8.00 mm apart, others 4.00 mm; add the missing slice"),
        ("twice", r"have one position; keep one of the two"),
        ("series", r"its SeriesInstanceUID is not that of 1-01.dcm; keep one series per folder"),
        ("turned", r"its ImageOrientationPatient is not that of"),
        ("nowhere", r"ImagePositionPatient \[nan, .*; expected 3 numbers"),
        ("truncated", "not a readable DICOM"),
        ("empty", "1-02.dcm: not a readable DICOM slice"),
        ("text", "1-02.dcm: not a readable DICOM slice"),
        ("huge", "more than any scan"),
        ("single", r"a: 1 DICOM slice\(s\); expected the folder of a whole series"),
    ],
)
def test_a_series_that_is_not_whole(tmp_path, defect, message):
    shape = (24, 20, 6)
    save_series(tmp_path / "a", volume(1, shape))
    places = sorted((tmp_path / "a").iterdir(), key=lambda path: pydicom.dcmread(path).ImagePositionPatient[2])
    path = tmp_path / "a" / "1-02.dcm"
    if defect == "missing":
        places[2].unlink()
    elif defect == "twice":
        (tmp_path / "a" / "1-77.dcm").write_bytes(places[2].read_bytes())
    elif defect == "series":
        edited(path, SeriesInstanceUID="1.2.3")
    elif defect == "turned":
        edited(path, ImageOrientationPatient=[0, 1, 0, 0, 0, 1])
    elif defect == "nowhere":
        edited(path, ImagePositionPatient=["nan", "0", "0"])
    elif defect == "truncated":
        path.write_bytes(path.read_bytes()[:-600])
    elif defect == "huge":
        for each in places:
            edited(each, Rows=65535, Columns=65535)
    elif defect == "single":
        for each in places[1:]:
            each.unlink()
    else:
        path.unlink()
        path.write_text("" if defect == "empty" else "no image")
    with pytest.raises(BadInput, match=message):
        read_series(tmp_path / "a")


def test_every_slice_has_its_own_slope_and_intercept(tmp_path):
    """As PET has them, and some MR: the first slice's type must not cut off the others'."""
    save_series(tmp_path / "a", np.full((24, 20, 3), 1001, np.uint16))
    stated = ((1, 0), (0.001, 0), (200, -1024))
    for path, (slope, intercept) in zip(sorted((tmp_path / "a").iterdir()), stated, strict=True):
        edited(path, RescaleSlope=slope, RescaleIntercept=intercept)
    found = {round(float(level), 3) for level in np.unique(read_series(tmp_path / "a").voxels)}
    assert found == {1001, 1.001, 200 * 1001 - 1024}


def test_a_deflated_file_is_read_up_to_a_size(tmp_path, monkeypatch):
    """One of 3 MB inflated to 6 GB, before anything of it was looked at."""
    save_series(tmp_path / "a", volume(1, (24, 20, 6)))
    path, plain = tmp_path / "a" / "1-02.dcm", read_series(tmp_path / "a").voxels
    slice_ = pydicom.dcmread(path)
    slice_.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    slice_.save_as(path)
    assert np.array_equal(read_series(tmp_path / "a").voxels, plain)
    monkeypatch.setattr(heads, "MOST_INFLATED", 1000)
    for read, of in (
        (read_series, path.parent), (read_dicom, path), (read_regions, path), (read_segmentation, path),
        (read_structures, path),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=r"1-02.dcm: inflates to more than 1000 bytes; store it without deflation"):
            read(of)


def test_a_jpeg_2000_image_is_decoded_up_to_a_size(tmp_path):
    """GDCM takes memory for what the codestream states, whatever the header does: the process ended."""
    save_series(tmp_path / "a", volume(1, (24, 20, 6)))
    path = tmp_path / "a" / "1-02.dcm"
    slice_ = pydicom.dcmread(path)
    stated = struct.pack(">HHII24xH", 41, 0, 2**20, 2**20, 1)
    slice_.file_meta.TransferSyntaxUID = pydicom.uid.JPEG2000Lossless
    slice_.PixelData = pydicom.encaps.encapsulate([dicom.CODESTREAM + stated])
    slice_["PixelData"].VR, slice_["PixelData"].is_undefined_length = "OB", True
    slice_.save_as(path)
    for read, of in ((read_series, path.parent), (read_dicom, path), (read_regions, path)):
        with pytest.raises(BadInput, match=r"1-02.dcm: a JPEG 2000 image of 1048576 x 1048576 x 1 numbers"):
            read(of)
