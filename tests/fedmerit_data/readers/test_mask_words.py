"""Masks that no known word names are found by what files hold."""

import numpy as np
import pytest
from layouts import box, save_nifti, save_png, volume

from fedmerit.errors import BadInput
from fedmerit_data.readers import generic
from fedmerit_data.readers.unlabelled import find_images


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("изображения/p{}", "маски/p{}"),
        ("H/图像/p{}", "H/标签/p{}"),
        ("images/p{}", "étiquettes/p{}"),
        ("p{}", "m_p{}"),
        ("P{}/scan", "P{}/wmh"),
        ("img-{}", "lab-{}"),
    ],
)
@pytest.mark.parametrize("suffix", [".nii.gz", ".png"])
def test_masks_are_found_by_content_without_a_known_word(tmp_path, image, mask, suffix):
    for number in range(3):
        for name, is_mask in ((image, False), (mask, True)):
            path = tmp_path / f"{name.format(number)}{suffix}"
            if suffix == ".png":
                noise = np.random.default_rng(number).integers(0, 256, (32, 32), dtype=np.uint8)
                save_png(path, 255 * (noise > 250).astype(np.uint8) if is_mask else noise)
            else:
                save_nifti(path, box() if is_mask else volume(number))
    (site,) = generic.find_sites(tmp_path)
    pairs = {
        (case.image.relative_to(tmp_path).as_posix(), case.label.relative_to(tmp_path).as_posix())
        for case in site.cases
    }
    assert pairs == {(f"{image.format(number)}{suffix}", f"{mask.format(number)}{suffix}") for number in range(3)}
    assert site.remarks[-1].endswith("are masks by what they hold")


def test_find_images_leaves_out_masks_without_a_known_word_and_results(tmp_path):
    for number in range(3):
        save_nifti(tmp_path / "bilder" / f"p{number}.nii.gz", volume(number))
        save_nifti(tmp_path / "segmentierung" / f"p{number}.nii.gz", box())
        save_png(tmp_path / "sites" / "overview" / f"{number}.png", np.eye(32, dtype=np.uint8))
    assert [image.name for image in find_images([tmp_path], 1)] == ["p0", "p1", "p2"]
    (site,) = generic.find_sites(tmp_path)
    assert len(site.cases) == 3


def test_images_without_masks_have_no_words_of_masks(tmp_path):
    for folder in ("a", "b"):
        for number in range(3):
            save_nifti(tmp_path / folder / f"p{number}.nii.gz", volume(number))
    with pytest.raises(BadInput, match="its mask is missing"):
        generic.find_sites(tmp_path)
