"""Faulty masks, compared with the true ones."""

import numpy as np
import pytest
from playing import SIDE

from fedmerit.attacks.catalogue import parse
from fedmerit.trainers.monai_trainer.data import Slices


def stacked(cases):
    """(n, channels, h, w) images and (n, labels, h, w) masks."""
    images, masks = zip(*((image.numpy(), mask.numpy()) for image, mask in Slices(cases)), strict=True)
    return np.stack(images), np.stack(masks)


def spoiled(folder, spec, seed=0):
    return stacked(parse(spec).training_cases(folder, np.random.default_rng(seed)))


@pytest.mark.parametrize("task", ["prostate", "fundus"])
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("inverted", lambda masks: 1 - masks),
        ("swapped", lambda masks: masks[:, ::-1] if masks.shape[1] == 2 else 1 - masks),
        ("shifted:by=0.25", lambda masks: np.pad(masks, ((0, 0), (0, 0), (4, 0), (4, 0)))[:, :, :SIDE, :SIDE]),
        ("label-noise:level=1", lambda masks: 1 - masks),
    ],
)
def test_masks_are_wrong_in_the_way_stated_and_images_as_they_were(folders, task, spec, expected):
    true_images, true_masks = stacked(folders[task].cases("training"))
    images, masks = spoiled(folders[task], spec)
    assert (masks == expected(true_masks)).all()
    assert (images == true_images).all()


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5])
def test_a_share_of_the_images_has_wrong_masks(folders, share):
    """Of a small share one at least, or who is called an attacker would be honest."""
    true, spec = stacked(folders["prostate"].cases("training"))[1], f"inverted:share={share}"
    masks = spoiled(folders["prostate"], spec)[1]
    assert (masks != true).any(axis=(1, 2, 3)).sum() == max(1, round(share * len(true)))
    assert (masks == spoiled(folders["prostate"], spec)[1]).all()
    assert any((masks != spoiled(folders["prostate"], spec, seed)[1]).any() for seed in range(1, 5))


def test_label_noise_flips_pixels_with_its_probability(folders):
    true = stacked(folders["fundus"].cases("training"))[1]
    flipped = (spoiled(folders["fundus"], "label-noise:level=0.2")[1] != true).mean()
    assert flipped == pytest.approx(0.2, abs=4 * (0.16 / true.size) ** 0.5)
