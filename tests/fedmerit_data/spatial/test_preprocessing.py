"""Crop, normalise, pad and resize: places, millimetres, the bits of MONAI."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from monai.transforms import (
    BorderPad,
    Compose,
    NormalizeIntensity,
    Resize,
    ScaleIntensityRange,
    ScaleIntensityRangePercentiles,
    SpatialCrop,
)
from scipy import ndimage

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Decoded
from fedmerit_data.spatial.preprocessing import (
    CLIPPED,
    EXACT,
    WINDOWS,
    Box,
    _percentiles,
    box_around,
    central_box,
    lost_pieces,
    make_normaliser,
    normalise_mri,
    normalise_photo,
    preprocess,
    resample_slices,
    resize_label,
    window_remarks,
)


def case(height=40, width=40, spacing=(1.0, 1.0), slices=3):
    rng = np.random.default_rng(0)
    image = rng.random((slices, 1, height, width), dtype=np.float32) + 1
    label = np.zeros((slices, 1, height, width), np.uint8)
    label[1, 0, 14:22, 17:27] = 1
    return Decoded(image, label, spacing)


def central(decoded, size, field_of_view, normalise):
    return preprocess(decoded, size, central_box(decoded, field_of_view), normalise)


def test_a_field_beyond_the_image_is_padded_with_its_darkest_value():
    image, label = central(case(), 60, 60.0, normalise_mri)
    np.testing.assert_array_equal(label[:, :, 10:50, 10:50], case().label)
    assert label.sum() == case().label.sum()
    inside = image[:, :, 10:50, 10:50]
    assert abs(inside.mean()) < 1e-5
    assert inside.std() == pytest.approx(1, abs=1e-3)
    assert (image[:, :, :10] == inside.min()).all()


def test_millimetres_count_not_pixels():
    image, label = central(case(40, 80, (1.0, 0.5)), 32, 32.0, normalise_mri)
    assert image.shape == label.shape == (3, 1, 32, 32)
    assert image.dtype == np.float32
    assert label.dtype == np.uint8
    assert label[1].sum() == 8 * 5  # half as many pixels across, each twice as wide
    assert set(np.unique(label)) == {0, 1}


@pytest.mark.parametrize("size", [16, 24, 64])
def test_image_and_mask_stay_in_place_together(size):
    mask = np.zeros((1, 1, 48, 48), np.uint8)
    mask[..., 10:22, 20:41] = 1
    image, label = central(Decoded(mask.astype(np.float32), mask), size, None, normalise_photo)
    bright = image > (image.max() + image.min()) / 2
    for array in (bright, label):
        rows, columns = np.nonzero(array[0, 0])
        scale = size / 48
        assert rows.mean() + 0.5 == pytest.approx(16 * scale, abs=0.35)
        assert columns.mean() + 0.5 == pytest.approx(30.5 * scale, abs=0.35)


def test_a_field_that_would_cut_the_mask_is_refused_and_the_one_that_fits_named():
    with pytest.raises(BadInput, match=r"the central 12 mm cut off part of its mask.*at least 16 mm"):
        central(case(), 16, 12.0, normalise_mri)
    assert central(case(), 16, 16.0, normalise_mri)[1].sum() == case().label.sum()


@pytest.mark.parametrize(
    ("spacing", "message"),
    [
        ((0.0005, 0.0005), r"pixels of 0\.0005 x 0\.0005 mm: 120 mm are 240000 x 240000 of them"),
        ((500.0, 500.0), r"pixels of 500 x 500 mm: 120 mm are 0 x 0 of them"),
        (None, "states no size of its pixels, and the central 120 mm are wanted"),
    ],
)
def test_a_spacing_that_no_scan_has_is_reported(spacing, message):
    with pytest.raises(BadInput, match=message):
        central_box(replace(case(), spacing=spacing), 120.0)


def test_a_ct_that_its_window_makes_one_value_is_refused():
    image = np.linspace(900, 1300, 64, dtype=np.float32).reshape(1, 1, 8, 8)
    with pytest.raises(
        BadInput, match=r"values 900 to 1300 are all outside the window -150 to 250 HU of ct_soft_tissue"
    ):
        make_normaliser("ct_soft_tissue", 1)(image[0])
    (remark,) = window_remarks("ct_soft_tissue", Decoded(image, np.zeros(image.shape, np.uint8)))
    assert remark.startswith("no value below 0 HU, as air has, and 100% of it above the window of ct_soft_tissue")
    assert window_remarks("mri", Decoded(image, np.zeros(image.shape, np.uint8))) == []
    assert window_remarks("ct_lung", Decoded(image - 1024, np.zeros(image.shape, np.uint8))) == []


def test_the_few_bright_voxels_of_a_black_volume_are_kept(recwarn):
    image = np.zeros((1, 64, 64), np.float32)
    image[0, 30:33, 30] = 400, 500, 600
    assert len(np.unique(normalise_mri(image))) == 4
    assert not recwarn


@pytest.mark.parametrize(("height", "width", "top"), [(64, 64, 0), (60, 64, 0), (64, 64, -5)])
def test_pieces_that_resizing_leaves_nothing_of_are_found(height, width, top):
    """As `preprocess` samples them."""
    rng = np.random.default_rng(0)
    mask = np.zeros((3, height, width), np.uint8)
    for row, column in rng.integers(1, height - 4, (12, 2)):
        mask[rng.integers(3), row : row + rng.integers(1, 4), column : column + 2] = 1
    box = Box(top, 0, 64, 64)
    lost, count = lost_pieces(mask, 16, box)
    pieces, expected = ndimage.label(mask, structure=np.ones((3, 3, 3)))
    image, seen = np.zeros((3, 1, height, width), np.float32), []
    for one in range(1, expected + 1):
        piece = Decoded(image, (pieces == one)[:, None].astype(np.uint8))
        seen.append(bool(preprocess(piece, 16, box, normalise_mri)[1].any()))
    assert count == expected
    assert 0 < len(lost) == seen.count(False)
    assert lost == sorted(int((pieces == one + 1).sum()) for one, kept in enumerate(seen) if not kept)


@pytest.mark.parametrize(("height", "width", "field"), [(41, 40, 33.0), (40, 41, 50.0), (25, 52, None), (60, 31, None)])
def test_a_central_box_says_what_was_stored(height, width, field):
    decoded = case(height, width)
    box = central_box(decoded, field)
    _, label = preprocess(decoded, box.height, box, normalise_mri)
    assert (box.height, box.width) == ((field or max(height, width)),) * 2
    stored, source = np.argwhere(label), np.argwhere(decoded.label)
    np.testing.assert_array_equal(np.add(stored, [0, 0, box.top, box.left]), source)


def photograph(top, left, height=60, width=80):
    """A disc 11 high and 15 wide, its first row and column as given."""
    image = np.random.default_rng(1).integers(0, 256, (1, 3, height, width)).astype(np.float32)
    label = np.zeros((1, 2, height, width), np.uint8)
    label[0, 0, top : top + 11, left : left + 15] = 1
    label[0, 1, top + 3 : top + 6, left + 2 : left + 9] = 1
    return Decoded(image, label)


def test_a_disc_off_centre_is_brought_to_the_middle():
    decoded = photograph(22, 41)
    box = box_around(decoded.label[0, 0], 3)
    assert box == Box(top=5, left=26, height=45, width=45)  # 3 x 15 about row 27.5 and column 48.5
    image, label = preprocess(decoded, 45, box, normalise_photo)
    np.testing.assert_array_equal(label, decoded.label[:, :, 5:50, 26:71])
    np.testing.assert_allclose(image, normalise_photo(decoded.image[0, :, 5:50, 26:71]).numpy()[None], atol=1e-5)
    marked = np.argwhere(label[0, 0])
    np.testing.assert_array_equal(marked.min(0) + marked.max(0), [44, 44])


MONAI = {
    normalise_mri: [ScaleIntensityRangePercentiles(0.5, 99.5, 0, 1, clip=True), NormalizeIntensity()],
    normalise_photo: [ScaleIntensityRange(0, 255, 0, 1), NormalizeIntensity(channel_wise=True)],
}


@pytest.mark.parametrize("normalise", MONAI)
@pytest.mark.parametrize("shape", [(3, 2, 40, 52), (2, 3, 30, 30), (20, 1, 230, 230)])  # the last beyond a million
@pytest.mark.parametrize(("box", "size"), [(Box(-3, 2, 50, 20), 16), (Box(2, -4, 25, 60), 64), (Box(0, 0, 30, 30), 30)])
@pytest.mark.filterwarnings("ignore:Divide by zero")
def test_prepared_arrays_are_those_of_monai_within_rounding(normalise, shape, box, size):
    rng = np.random.default_rng(0)
    label = (rng.random(shape) > 0.7).astype(np.uint8)
    level = np.zeros(shape, np.float32)
    level[..., 5, 5] = 3  # so rare that both percentiles are 0
    for image in (rng.gamma(2, 50, shape).astype(np.float32), level):
        ends = min(box.top + box.height, shape[2]), min(box.left + box.width, shape[3])
        starts = max(box.top, 0), max(box.left, 0)
        crop = SpatialCrop(roi_start=starts, roi_end=ends)
        beyond = [max(-box.top, 0), box.top + box.height - ends[0], max(-box.left, 0), box.left + box.width - ends[1]]
        seen = Compose([crop, *MONAI[normalise]])(image.reshape(-1, *shape[2:]))
        seen = BorderPad(beyond, value=float(seen.min()))(seen)
        seen = Resize((size, size), mode="bilinear", anti_aliasing=True)(seen)
        drawn = Resize((size, size), mode="nearest-exact")(BorderPad(beyond)(crop(label.reshape(-1, *shape[2:]))))
        ours, labels = preprocess(Decoded(image, label), size, box, normalise)
        rounding = 8 * np.finfo(np.float32).eps * float(seen.abs().max())
        np.testing.assert_allclose(ours.reshape(seen.shape), seen.numpy(), rtol=0, atol=rounding)
        assert labels.tobytes() == drawn.numpy().astype(np.uint8).tobytes()


@pytest.mark.parametrize("modality", WINDOWS)
def test_hounsfield_units_mean_the_same_in_every_volume(modality):
    low, high = WINDOWS[modality]
    middle = (low + high) / 2
    normalise = make_normaliser(modality, 1)
    for others in (-1024.0, 3000.0):  # whatever else is in the volume
        units = np.array([[[low - 500, low, middle, high, high + 500, others]]], np.float32)
        np.testing.assert_allclose(normalise(units)[0, 0, :5], [-1, -1, 0, 1, 1], atol=1e-6)


def test_channels_without_a_common_unit_are_taken_one_by_one():
    rng = np.random.default_rng(0)
    stack = rng.gamma(2, 50, (4, 2, 12, 12)).astype(np.float32)
    stack[:, 1] = 0.001 * stack[:, 1] + 7  # such as a map of diffusion beside T2
    seen = make_normaliser("mri_by_channel", 2)(stack.reshape(8, 12, 12)).reshape(4, 2, 12, 12)
    for channel in (0, 1):
        expected = normalise_mri(stack[:, channel])
        np.testing.assert_array_equal(seen[:, channel], expected)
        assert float(seen[:, channel].std()) == pytest.approx(1, abs=0.01)
    together = make_normaliser("mri", 2)(stack.reshape(8, 12, 12)).reshape(4, 2, 12, 12)
    assert float(together[:, 1].std()) < 0.01  # as one volume, the second channel would be flat


@pytest.mark.parametrize(("slices", "height"), [(10, 20.0), (5, 40.0), (13, 15.38)])
def test_slices_are_resampled_to_a_distance(slices, height):
    """A ramp along the slices stays one; a label keeps its place, within half a slice."""
    ramp = (10.0 * np.arange(20, dtype=np.float32) + 5)[:, None, None, None].repeat(4, 2).repeat(4, 3)  # mm
    found = resample_slices(ramp, slices)[:, 0, 0, 0]
    assert found[1:-1] == pytest.approx((np.arange(slices)[1:-1] + 0.5) * height, abs=0.6)
    label = np.zeros((20, 1, 4, 4), np.uint8)
    label[6:15] = 1  # 60 to 150 mm
    kept = np.flatnonzero(resize_label(label, 4, Box(0, 0, 4, 4), slices).any(axis=(1, 2, 3)))
    assert abs(kept[0] * height - 60) <= height / 2 + 0.1
    assert abs((kept[-1] + 1) * height - 150) <= height / 2 + 0.1
    assert resample_slices(ramp, None) is ramp


@pytest.mark.parametrize("size", [1, 7, 50_000, EXACT + 5, 1_500_001])
def test_percentiles_are_those_of_sorted_values(size):
    """Equal to the bit to NumPy's, or of fewer values to torch's, whatever the distribution."""
    rng = np.random.default_rng(size)
    background = np.where(rng.random(size) < 0.7, 0, rng.normal(300, 90, size))
    for values in (rng.normal(size=size), background, rng.integers(0, 9, size), np.full(size, 5), np.arange(size)):
        voxels = values.astype(np.float32)
        if size > EXACT:
            expected = np.percentile(voxels, CLIPPED).astype(np.float32)
        else:
            shares = torch.tensor([percent / 100 for percent in CLIPPED])
            expected = torch.quantile(torch.from_numpy(voxels), shares).numpy()
        assert _percentiles(voxels, CLIPPED) == expected.tolist()
