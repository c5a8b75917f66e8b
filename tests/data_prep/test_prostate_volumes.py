import nibabel as nib
import numpy as np
import pydicom
import pytest
from layouts import box, save_nifti, volume
from layouts_prostate import OBLIQUE, flipped, save_itk, save_segmentation, save_series, zones

from data_prep.raw import RawCase
from data_prep.volumes import axial, onto, read_itk, read_nifti, read_segmentation, read_series, same_grid
from fedmerit.errors import BadInput


def test_every_format_reads_the_same(tmp_path):
    save_nifti(tmp_path / "a.nii.gz", volume(1), OBLIQUE)
    save_itk(tmp_path / "a.mhd", volume(1))
    save_itk(tmp_path / "a.nrrd", volume(1))
    save_series(tmp_path / "a", volume(1))
    for read in (
        read_nifti(tmp_path / "a.nii.gz"),
        read_itk(tmp_path / "a.mhd"),
        read_itk(tmp_path / "a.nrrd"),
        read_series(tmp_path / "a"),
    ):
        np.testing.assert_array_equal(read.voxels, volume(1))
        np.testing.assert_allclose(read.affine, OBLIQUE, atol=1e-5)
        assert read.located


def test_a_segmentation_is_the_union_of_its_segments(tmp_path):
    save_segmentation(tmp_path / "seg.dcm", save_series(tmp_path / "a", volume(1)), zones())
    label, remarks = onto(read_series(tmp_path / "a"), read_segmentation(tmp_path / "seg.dcm", (2, 3)))
    np.testing.assert_array_equal(label.voxels, np.isin(zones(), (2, 3)))
    assert remarks == ()
    with pytest.raises(BadInput, match=r"seg.dcm: segments .*; expected some of \[7\]"):
        read_segmentation(tmp_path / "seg.dcm", (7,))


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_mask_stored_the_other_way_round(tmp_path, axes):
    save_series(tmp_path / "a", volume(1))
    save_itk(tmp_path / "a.nrrd", *flipped(box(), OBLIQUE, *axes))
    case = RawCase("a", "a", tmp_path / "a", tmp_path / "a.nrrd")
    decoded = axial(case, read_series(case.image), read_itk(case.label))
    np.testing.assert_array_equal(decoded.label[:, 0], box().transpose(2, 1, 0))
    np.testing.assert_array_equal(decoded.image[:, 0], volume(1).transpose(2, 1, 0))


def test_an_nrrd_that_knows_no_patient(tmp_path):
    save_series(tmp_path / "a", volume(1))
    save_itk(tmp_path / "a.nrrd", box())
    text = (tmp_path / "a.nrrd").read_bytes()
    kept = [line for line in text.split(b"\n\n", 1)[0].split(b"\n") if not line.startswith(b"space")]
    (tmp_path / "a.nrrd").write_bytes(b"\n".join(kept) + b"\n\n" + text.split(b"\n\n", 1)[1])
    label = read_itk(tmp_path / "a.nrrd")
    assert not label.located
    with pytest.raises(BadInput, match=r"a.nrrd: its header does not say where"):
        onto(read_series(tmp_path / "a"), label)
    with pytest.raises(BadInput, match=r"a.nrrd: lies up to .* mm from its image a "):
        same_grid(RawCase("a", "a", tmp_path / "a", tmp_path / "a.nrrd"), read_series(tmp_path / "a"), label)


def edited(path, **changes):
    slice_ = pydicom.dcmread(path)
    for key, value in changes.items():
        setattr(slice_, key, value)
    slice_.save_as(path)


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("missing", r"lie 8.00 mm apart, others 4.00 mm; fetch the missing slice"),
        ("twice", r"lie in one place; keep one of the two"),
        ("series", r"its SeriesInstanceUID is not that of 1-01.dcm; keep one series per folder"),
        ("turned", r"its ImageOrientationPatient is not that of"),
        ("nowhere", r"ImagePositionPatient \[nan, .*; expected 3 numbers"),
        ("truncated", "not a readable DICOM"),
        ("empty", "1-02.dcm: not a readable DICOM slice"),
        ("text", "1-02.dcm: not a readable DICOM slice"),
        ("folder", "1-02.dcm: not a readable DICOM slice"),
        ("huge", "more than any scan"),
        ("alone", r"a: 1 DICOM slice\(s\); expected the folder of a whole series"),
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
    elif defect == "alone":
        for each in places[1:]:
            each.unlink()
    else:
        path.unlink()
        path.mkdir() if defect == "folder" else path.write_text("" if defect == "empty" else "no image")
    with pytest.raises(BadInput, match=message):
        read_series(tmp_path / "a")


def test_headers_that_promise_more_than_there_is(tmp_path):
    header = nib.Nifti1Header()
    header.set_data_dtype(np.float32)
    header.set_data_shape((30000, 30000, 30000))
    (tmp_path / "a.nii").write_bytes(header.binaryblock + b"\0" * 400)
    save_itk(tmp_path / "a.mhd", box())
    text = (tmp_path / "a.mhd").read_text().replace("DimSize = 24 20 4", "DimSize = 30000 30000 30000")
    (tmp_path / "a.mhd").write_text(text)
    for read, name in ((read_nifti, "a.nii"), (read_itk, "a.mhd")):
        with pytest.raises(BadInput, match=f"{name}: its header promises .* more than any scan"):
            read(tmp_path / name)


@pytest.mark.parametrize("damage", ["truncated", "text", "empty", "folder", "no voxels"])
@pytest.mark.parametrize("name", ["a.mhd", "a.nrrd"])
def test_a_damaged_volume_is_named(tmp_path, name, damage):
    path = tmp_path / name
    save_itk(path, volume(1))
    voxels = path.with_suffix(".raw") if name == "a.mhd" else path
    if damage == "truncated":
        voxels.write_bytes(voxels.read_bytes()[:-500])
    elif damage == "no voxels":
        voxels.unlink()
    else:
        path.unlink()
        path.mkdir() if damage == "folder" else path.write_text("" if damage == "empty" else "no image")
    with pytest.raises(BadInput, match=f"{name}: not a readable volume"):
        read_itk(path)
