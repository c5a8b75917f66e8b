"""Label noise: exact shares, rules, seeds."""

import numpy as np
import pytest

from fedmerit.errors import BadInput
from fedmerit_lab.partitioning.label_noise import RULES, TrainingMasks, disturb

SEED = (3, 1)


def ellipse(height, width, radius, row=24, column=24, size=48):
    rows, columns = np.ogrid[:size, :size]
    return ((rows - row) / height) ** 2 + ((columns - column) / width) ** 2 <= radius**2


def case(name, patient, *, slices=6, empty=(), used=None, size=1.0):
    """Disc and cup, larger from slice to slice; ``empty`` slices show nothing."""
    label = np.zeros((slices, 2, 48, 48), np.uint8)
    for position in range(slices):
        if position not in empty:
            label[position, 0] = ellipse(8, 6, size + position / 20)
            label[position, 1] = ellipse(4, 3, size + position / 20)
    return TrainingMasks(name, patient, label, range(slices) if used is None else used)


@pytest.fixture
def masks():
    return [case("a1", "a", empty=(0, 5)), case("a2", "a", used=(1, 3)), case("b", "b", slices=4, size=1.3)]


def changed(masks, disturbed):
    """(case, slice) of all masks that are not what they were."""
    return {
        (item.case, position)
        for item in masks
        if item.case in disturbed
        for position in range(len(item.label))
        if (disturbed[item.case].label[position] != item.label[position]).any()
    }


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("share", "number"), [(0.1, 1), (0.2, 2), (0.25, 3), (0.5, 5), (1, 10)])
def test_the_share_of_training_slices_with_a_mask_is_exact(masks, rule, share, number):
    before = [item.label.copy() for item in masks]
    disturbed = disturb("HK", masks, share, rule, SEED)
    reported = {(name, position) for name, item in disturbed.items() for position in item.positions}
    assert changed(masks, disturbed) == reported
    assert len(reported) == number
    used = {(item.case, position) for item in masks for position in item.slices if item.label[position].any()}
    assert reported <= used
    for item, label in zip(masks, before, strict=True):
        assert (item.label == label).all()  # what came in is left unchanged
    for item in disturbed.values():
        assert item.label.dtype == np.uint8
        assert item.label.max() <= 1


@pytest.mark.parametrize("rule", RULES)
def test_a_larger_share_adds_to_a_smaller_one(masks, rule):
    smaller, larger = (disturb("HK", masks, share, rule, SEED) for share in (0.3, 0.8))
    assert len(changed(masks, smaller)) == 3
    for name, item in smaller.items():
        for position in item.positions:
            assert (larger[name].label[position] == item.label[position]).all()


def apply(rule, mask, other=None, seed=0):
    return RULES[rule](mask, mask if other is None else other, np.random.default_rng(seed))


@pytest.mark.parametrize("seed", range(8))
def test_shift_moves_by_half_the_extent(seed):
    mask = case("a", "a").label[2]
    moved = apply("shift", mask, seed=seed)
    assert (moved.sum(axis=(1, 2)) == mask.sum(axis=(1, 2))).all()  # the frame is large enough
    away = [np.array(np.nonzero(plane)).mean(axis=1) - 24 for plane in moved]
    np.testing.assert_allclose(away[0], away[1])
    rows, columns = (np.ptp(np.nonzero(mask[0])[axis]) + 1 for axis in (0, 1))
    along = np.hypot(2 * away[0][0] / rows, 2 * away[0][1] / columns)
    assert 1 <= along <= 1 + 2 * np.sqrt(2) / columns  # rounded away from zero by less than a pixel


def test_swapped_masks_are_another_patients(masks):
    disturbed = disturb("HK", masks, 1, "swap", SEED)
    for item in masks:
        theirs = [
            other.label[position] for other in masks if other.patient != item.patient for position in other.slices
        ]
        for position in disturbed[item.case].positions:
            new = disturbed[item.case].label[position]
            assert any((new == candidate).all() for candidate in theirs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"share": 0}, "label noise HK=0: expected a share above 0 and at most 1"),
        ({"share": 1.5}, "label noise HK=1.5: expected a share"),
        ({"share": 0.01}, r"label noise HK=0.01: none of its \d+ training slices .* would be wrong; a share of 0"),
        ({"rule": "blur"}, "noise rule 'blur': unknown; expected one of shift, offset, swap"),
        ({"masks": [case("a", "a", empty=range(6))]}, "label noise HK: none of its training slices shows a label"),
        ({"masks": [case("a", "a")], "rule": "swap"}, "label noise HK: swapping needs 2 training patients"),
        (
            {"masks": [case(a, a, slices=1) for a in "ab"], "rule": "swap", "share": 1},
            "no other training patient's mask differs",
        ),
    ],
)
def test_bad_input(masks, change, message):
    options = {"masks": masks, "share": 0.5, "rule": "shift"} | change
    with pytest.raises(BadInput, match=message):
        disturb("HK", options["masks"], options["share"], options["rule"], SEED)


def test_an_offset_is_the_same_for_every_mask_whatever_is_drawn():
    mask = np.zeros((1, 20, 20), np.uint8)
    mask[0, 5:9, 3:9] = 1
    for seed in range(3):
        np.testing.assert_array_equal(apply("offset", mask, seed=seed), np.roll(mask, 3, axis=2))
