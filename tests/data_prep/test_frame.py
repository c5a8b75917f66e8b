import numpy as np
import pytest

from data_prep.frame import frame, normalise_mri, normalise_photo
from data_prep.raw import Decoded
from fedmerit.errors import BadInput


def case(height=40, width=40, spacing=(1.0, 1.0), slices=3):
    rng = np.random.default_rng(0)
    image = rng.random((slices, 1, height, width), dtype=np.float32) + 1
    label = np.zeros((slices, 1, height, width), np.uint8)
    label[1, 0, 14:22, 17:27] = 1
    return Decoded(image, label, spacing)


def test_without_resizing_masks_are_what_was_drawn():
    _, label = frame(case(), 40, 40.0, normalise_mri)
    np.testing.assert_array_equal(label, case().label)
    _, label = frame(case(), 32, 32.0, normalise_mri)
    np.testing.assert_array_equal(label, case().label[:, :, 4:36, 4:36])


def test_a_field_beyond_the_image_is_padded_with_its_darkest_value():
    image, label = frame(case(), 60, 60.0, normalise_mri)
    np.testing.assert_array_equal(label[:, :, 10:50, 10:50], case().label)
    assert label.sum() == case().label.sum()
    inside = image[:, :, 10:50, 10:50]
    assert abs(inside.mean()) < 1e-5
    assert inside.std() == pytest.approx(1, abs=1e-3)
    assert (image[:, :, :10] == inside.min()).all()


def test_millimetres_count_not_pixels():
    image, label = frame(case(40, 80, (1.0, 0.5)), 32, 32.0, normalise_mri)
    assert image.shape == label.shape == (3, 1, 32, 32)
    assert image.dtype == np.float32
    assert label.dtype == np.uint8
    assert label[1].sum() == 8 * 5  # half as many pixels across, each twice as wide
    assert set(np.unique(label)) == {0, 1}


@pytest.mark.parametrize("size", [16, 24, 64])
def test_image_and_mask_stay_in_place_together(size):
    mask = np.zeros((1, 1, 48, 48), np.uint8)
    mask[..., 10:22, 20:41] = 1
    image, label = frame(Decoded(mask.astype(np.float32), mask), size, None, normalise_photo)
    bright = image > (image.max() + image.min()) / 2
    for array in (bright, label):
        rows, columns = np.nonzero(array[0, 0])
        scale = size / 48
        assert rows.mean() + 0.5 == pytest.approx(16 * scale, abs=0.35)
        assert columns.mean() + 0.5 == pytest.approx(30.5 * scale, abs=0.35)


def test_a_field_that_would_cut_the_mask_is_refused_and_the_one_that_fits_named():
    with pytest.raises(BadInput, match=r"the central 12 mm cut off a part of its mask.*at least 16 mm"):
        frame(case(), 16, 12.0, normalise_mri)
    assert frame(case(), 16, 16.0, normalise_mri)[1].sum() == case().label.sum()


def test_a_frame_that_is_not_square_is_padded_not_stretched():
    _, label = frame(case(20 + 20, 60), 60, None, normalise_photo)
    np.testing.assert_array_equal(label[:, :, 10:50], case(40, 60).label)
    assert label.sum() == case(40, 60).label.sum()
