"""Volumes of all formats: the same voxels, damaged files. Photographs: 8 bits."""

import nibabel as nib
import numpy as np
import pytest
from layouts import volume
from layouts_prostate import OBLIQUE, save_itk
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit_data.spatial import volumes
from fedmerit_data.spatial.photographs import load
from fedmerit_data.spatial.volumes import read_itk, read_nifti


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


@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
@pytest.mark.parametrize("order", "<>")
def test_what_lies_before_the_voxels_is_bounded(tmp_path, monkeypatch, kind, order):
    """One of 4.7 MB took 1 GB for an extension of its header, before its shape was looked at."""
    path = tmp_path / "a.nii.gz"
    saved = kind(volume(1), OBLIQUE, kind.header_class(endianness=order))
    saved.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"x" * 2000))
    saved.to_filename(path)
    np.testing.assert_array_equal(read_nifti(path).voxels, volume(1))
    monkeypatch.setattr(volumes, "MOST_HEADER", 2000)
    with pytest.raises(BadInput, match=r"a.nii.gz: its voxels begin beyond 2000 bytes"):
        read_nifti(path)


def test_deep_pixels_are_not_asked_to_be_fetched_again(tmp_path):
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((8, 8), 999, np.uint16)).save(path)
    with pytest.raises(BadInput, match=r"deep\.png: pixels of type I;16; expected 8 bits per colour: convert it$"):
        load(path, None)


def test_a_side_of_zero_is_no_size(tmp_path):
    """nibabel makes it 1 mm."""
    file = nib.Nifti1Image(volume(0), None)
    file.set_qform(np.diag([0.5, 0.5, 3, 1]), 1)
    content = bytearray(file.to_bytes())
    content[84:88] = bytes(4)
    (tmp_path / "a.nii").write_bytes(content)
    with pytest.raises(BadInput, match=r"a\.nii: its header states voxels of \[0.5, 0.0, 3.0\] mm; export"):
        read_nifti(tmp_path / "a.nii")
