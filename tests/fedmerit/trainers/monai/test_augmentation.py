from dataclasses import replace

import numpy as np
import pytest
import torch
from monai.transforms import AdjustContrast, Affine, GaussianSmooth, RandBiasField

from fedmerit.trainers.monai.augmentation import (
    LIGHT,
    STRONG,
    Augmenter,
    adjust_gamma,
    apply_bias_field,
    blur_images,
    resample,
    sampling_grid,
)

CPU = torch.device("cpu")
H, W = 24, 32


def images(batch=3, channels=2, h=H, w=W):
    return torch.rand(batch, channels, h, w, generator=torch.Generator().manual_seed(0))


def masks(batch=3):
    return (images(batch, 1) > 0.6).float()


def per_image(*rows):
    return torch.tensor(rows)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_a_map_of_the_plane_is_monais(mode):
    rotation, scale = per_image([0.3], [-0.2], [0.0]), per_image([1.1, 0.9], [0.8, 1.2], [1.0, 1.0])
    translation, shear = per_image([2.0, -3.0], [0.5, 4.0], [1.0, 0.0]), per_image([0.1, -0.05], [0.0, 0.1], [0.0, 0.0])
    ours = resample(images(), sampling_grid(rotation, scale, translation, shear, (H, W)), mode)
    for row, image in enumerate(images()):
        theirs = Affine(
            rotate_params=rotation[row].tolist(), shear_params=shear[row].tolist(),
            translate_params=translation[row].tolist(), scale_params=scale[row].tolist(),
            mode=mode, padding_mode="border", image_only=True,
        )(image)  # fmt: skip
        torch.testing.assert_close(ours[row], theirs.as_tensor(), atol=1e-4, rtol=0)


def test_blur_is_monais():
    deviation = per_image([0.5, 1.0], [0.7, 0.7], [1.0, 0.6])
    ours = blur_images(images(), deviation)
    for row, image in enumerate(images()):
        theirs = GaussianSmooth(sigma=deviation[row].tolist(), approx="erf")(image)
        torch.testing.assert_close(ours[row], theirs.as_tensor(), atol=1e-4, rtol=0)


def test_a_bias_field_is_monais():
    coefficients = 0.3 * torch.rand(3, 10, generator=torch.Generator().manual_seed(1))
    ours = apply_bias_field(images(), coefficients)
    for row, image in enumerate(images()):
        field = RandBiasField(degree=3)._generate_random_field((H, W), 3, coefficients[row].tolist())
        torch.testing.assert_close(ours[row].double(), image * np.exp(field), atol=1e-5, rtol=0)


def test_gamma_is_monais():
    ours = adjust_gamma(images(), per_image([0.6], [1.0], [1.7]))
    for row, gamma in enumerate((0.6, 1.0, 1.7)):
        theirs = AdjustContrast(gamma=gamma)(images()[row])
        torch.testing.assert_close(ours[row], theirs.as_tensor(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("recipe", [LIGHT, STRONG])
def test_the_same_seed_draws_the_same_another_does_not(recipe):
    first = Augmenter(recipe, 7, CPU)(images(), masks())
    again = Augmenter(recipe, 7, CPU)(images(), masks())
    other = Augmenter(recipe, 8, CPU)(images(), masks())
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_masks_stay_masks_and_move_with_their_images():
    """What a mask shows is bright in its image, also when both are moved: intensity transforms left out."""
    moves = replace(LIGHT, noise=None, gamma=None)
    bright = torch.zeros(64, 1, H, W)
    bright[:, :, 8:16, 10:20] = 1
    moved, moved_masks = Augmenter(moves, 0, CPU)(bright, bright)
    assert set(moved_masks.unique().tolist()) == {0.0, 1.0}
    assert float(((moved > 0.5) == moved_masks.bool()).float().mean()) > 0.99
    assert not torch.equal(moved_masks, bright)


def test_transforms_are_as_frequent_as_they_say():
    plain = torch.rand(2000, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    none = replace(LIGHT.affine, probability=0.0)
    changed, _ = Augmenter(replace(LIGHT, affine=none, flip=0.0, noise=None), 0, CPU)(plain, plain)
    share = float((changed != plain).flatten(1).any(dim=1).float().mean())
    assert share == pytest.approx(0.2, abs=0.03)  # three standard errors


def on_a_gpu(recipe, seed):
    """Return an augmenter that works as on a GPU: on all images, of which chance selects."""
    augment = Augmenter(recipe, seed, CPU)
    augment.transforms_all = True
    return augment


@pytest.mark.parametrize("recipe", [LIGHT, STRONG])
def test_all_images_transformed_and_selected_are_the_selected_transformed(recipe):
    """Noise is left out, which is drawn of other images; a wider kernel of blur has hardly anything at its ends."""
    for seed in range(8):
        quiet = replace(recipe, noise=None)
        selected, transformed = (
            made(images(8), masks(8)) for made in (Augmenter(quiet, seed, CPU), on_a_gpu(quiet, seed))
        )
        torch.testing.assert_close(transformed[0], selected[0], atol=1e-3, rtol=0)
        assert torch.equal(transformed[1], selected[1])
        exact = replace(quiet, blur=None)
        ends = [made(images(8), masks(8))[0] for made in (Augmenter(exact, seed, CPU), on_a_gpu(exact, seed))]
        torch.testing.assert_close(ends[0], ends[1], atol=1e-6, rtol=0)


def test_noise_of_all_images_changes_the_selected():
    none = replace(LIGHT.affine, probability=0.0)
    noisy, _ = on_a_gpu(replace(LIGHT, affine=none, flip=0.0, gamma=None), 0)(images(200), masks(200))
    share = float((noisy != images(200)).flatten(1).any(dim=1).float().mean())
    assert share == pytest.approx(0.2, abs=0.09)


@pytest.mark.parametrize("recipe", [LIGHT, STRONG])
def test_no_transform_waits_for_what_a_gpu_has_computed(recipe):
    """Tensors of the device "meta" have no values, so reading one raises, as reading one of a GPU waits."""
    for seed in range(8):
        augment = on_a_gpu(replace(recipe, noise=None), seed)  # there are no random numbers there
        moved, drawn = augment(images(8).to("meta"), masks(8).to("meta"))
        assert (moved.shape, drawn.shape) == ((8, 2, H, W), (8, 1, H, W))
