"""Image and mask on one grid."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from layouts import box, volume
from layouts_prostate import OBLIQUE, flipped, save_itk, save_series

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import RawCase
from fedmerit_data.readers.labelled_images import decode
from fedmerit_data.spatial.dicom import read_series
from fedmerit_data.spatial.geometry import align_axes, resample_mask, slice_volume
from fedmerit_data.spatial.volumes import Volume, read_itk


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_mask_stored_the_other_way_round(tmp_path, axes):
    save_series(tmp_path / "a", volume(1))
    save_itk(tmp_path / "a.nrrd", *flipped(box(), OBLIQUE, *axes))
    case = RawCase("a", "a", tmp_path / "a", tmp_path / "a.nrrd")
    decoded = slice_volume(case, read_series(case.image), read_itk(case.label))
    np.testing.assert_array_equal(decoded.label[:, 0], box().transpose(2, 1, 0))
    np.testing.assert_array_equal(decoded.image[:, 0], volume(1).transpose(2, 1, 0))


def test_an_nrrd_that_knows_no_patient(tmp_path):
    save_series(tmp_path / "a", volume(1))
    save_itk(tmp_path / "a.nrrd", box())
    text = (tmp_path / "a.nrrd").read_bytes()
    kept = [line for line in text.split(b"\n\n", 1)[0].split(b"\n") if not line.startswith(b"space")]
    (tmp_path / "a.nrrd").write_bytes(b"\n".join(kept) + b"\n\n" + text.split(b"\n\n", 1)[1])
    label = read_itk(tmp_path / "a.nrrd")
    assert not label.is_located
    with pytest.raises(BadInput, match=r"a.nrrd: its header does not state where"):
        resample_mask(read_series(tmp_path / "a"), label)
    with pytest.raises(BadInput, match=r"a.nrrd: is up to .* mm away from its image a "):
        align_axes(RawCase("a", "a", tmp_path / "a", tmp_path / "a.nrrd"), read_series(tmp_path / "a"), label)


@pytest.mark.parametrize(("step", "resampled"), [(1.0, False), (2.0, True)])
def test_a_mask_of_larger_voxels_is_reported_as_resampled(step, resampled):
    """Their corners lie on corners of the image's voxels, and most of them on none."""
    size = int(8 / step)
    voxels = np.ones((size, size, 2), dtype=np.uint8)
    image = Volume(Path("image"), np.zeros((8, 8, 2)), np.eye(4), is_located=True)
    label = Volume(Path("mask"), voxels, np.diag([step, step, 1.0, 1.0]), is_located=True)
    _, remarks = resample_mask(image, label)
    assert any("resampled" in remark for remark in remarks) == resampled


@pytest.mark.parametrize(("slices", "beyond"), [(4, False), (6, True)])
@pytest.mark.parametrize("direction", [1, -1])
def test_a_mask_of_thicker_slices_reaches_beyond_its_image_only_if_it_does(direction, slices, beyond):
    """Whichever end its slices are counted from."""
    image = Volume(Path("image"), np.zeros((8, 8, 8)), np.eye(4), is_located=True)
    affine = np.diag([1.0, 1.0, 2.0 * direction, 1.0])
    affine[2, 3] = 0.5 if direction > 0 else 0.5 + 2 * (slices - 1)
    label = Volume(Path("mask"), np.zeros((8, 8, slices), np.uint8), affine, is_located=True)
    _, remarks = resample_mask(image, label)
    assert any("reaches beyond" in remark for remark in remarks) == beyond


def test_masks_of_stacks_without_a_size_need_only_the_shape(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", volume(1).astype(np.uint16).T, imagej=True, resolution=(2, 2),
                     metadata={"spacing": 3.0, "unit": "mm", "axes": "ZYX"})  # fmt: skip
    tifffile.imwrite(tmp_path / "mask.tif", box().T, photometric="minisblack")
    case = RawCase("a", "a", tmp_path / "a.tif", tmp_path / "mask.tif")
    decoded = decode(case)
    np.testing.assert_array_equal(decoded.label[:, 0], box().T)
    assert decoded.spacing == (0.5, 0.5)
