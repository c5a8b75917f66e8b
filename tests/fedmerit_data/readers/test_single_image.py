"""One raw image without a mask, and masks in its geometry."""

import numpy as np
import pytest
from layouts import SHAPE, save_nifti, save_png, volume
from layouts_prostate import save_itk, save_series
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit_data.readers.image_files import read_image

TURNED = np.diag([1.0, 1.0, 3.0, 1.0])  # axes towards right, front and head: both axes of a slice are reversed


def test_channels_of_a_volume_are_all_read_or_one_is_chosen(tmp_path):
    voxels = np.stack([volume(1), volume(2)], axis=3)
    path = tmp_path / "scan.nii"
    save_nifti(path, voxels)
    slices = voxels.transpose(2, 3, 1, 0)
    np.testing.assert_array_equal(read_image(path, 2).decoded.image, slices)
    np.testing.assert_array_equal(read_image(path, 1, channel=1).decoded.image, slices[:, 1:])
    for channels, channel in ((1, 2), (1, -1), (2, 0)):
        with pytest.raises(BadInput, match=f"scan.nii: --channel {channel}: no such channel; "):
            read_image(path, channels, channel)
    with pytest.raises(
        BadInput, match=r"scan.nii: of shape .*; expected 3 channel\(s\) as its fourth axis; prepare --channels 2 reads"
    ):
        read_image(path, 3)
    with pytest.raises(
        BadInput, match=r"scan.nii: .*; expected 1 channel\(s\) .*; name one by --channel, counted from 0$"
    ):
        read_image(path, 1)


def test_a_dicom_series_and_a_metaimage_are_read_as_one_channel(tmp_path):
    voxels = volume(3)
    save_series(tmp_path / "series", voxels)
    save_itk(tmp_path / "scan.mhd", voxels)
    series, scan = (read_image(tmp_path / name, 1) for name in ("series", "scan.mhd"))
    assert series.decoded.image.shape == (SHAPE[2], 1, SHAPE[1], SHAPE[0])
    np.testing.assert_array_equal(series.decoded.image, scan.decoded.image)
    assert (series.name, scan.name) == ("series", "scan")
    with pytest.raises(BadInput, match="series: a DICOM series of grey levels has one channel, not 2"):
        read_image(tmp_path / "series", 2)
    with pytest.raises(BadInput, match=r"scan.mhd: --channel 0: no such channel"):
        read_image(tmp_path / "scan.mhd", 1, 0)


def test_a_photograph_is_one_slice_and_its_mask_black_and_white(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    save_png(tmp_path / "eye.png", pixels)
    image = read_image(tmp_path / "eye.png", 3)
    np.testing.assert_array_equal(image.decoded.image, pixels.transpose(2, 0, 1)[None])
    assert image.decoded.label.shape == (1, 1, 5, 7)
    mask = pixels[None, :, :, 0] > 128
    (file,) = image.write_masks(tmp_path / "masks", ["disc"], mask[:, None])
    assert file == tmp_path / "masks" / "eye_disc.png"
    np.testing.assert_array_equal(np.array(Image.open(file)), np.where(mask[0], 255, 0))


def test_what_is_no_image_is_reported_with_what_is(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(
        BadInput, match=r"notes.txt: is of no format that is read; expected one of \.nii, \.nii\.gz, .*DICOM series"
    ):
        read_image(tmp_path / "notes.txt", 1)


def test_one_image_has_one_digest_wherever_it_lies(tmp_path):
    """Also detached voxels tell images apart, whose headers are alike."""
    for folder, seed in (("a", 3), ("b", 4)):
        (tmp_path / folder).mkdir()
        save_itk(tmp_path / folder / "scan.mhd", volume(seed))
    save_series(tmp_path / "series", volume(3))
    one, other, same = (read_image(tmp_path / name, 1).digest for name in ("a/scan.mhd", "b/scan.mhd", "series"))
    assert one == same
    assert one != other
