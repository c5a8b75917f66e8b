"""Sites whose labels mean something else than those of the others."""

import numpy as np
import pytest

from fedmerit_data.checking.label_conventions import compare_conventions, describe_reading, measure_regions

SIDE = 40
TASKS = {"nested": ("disc", "cup"), "beside": ("peripheral", "transition"), "single": ("prostate",)}


def ellipse(row, column, height, width):
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    return ((y / SIDE - row) / height) ** 2 + ((x / SIDE - column) / width) ** 2 <= 1


def case(task, rng, size=1.0, light=1.0, haze=0.0, row=0.5):
    """An image (1, 1, side, side) in which the labels are drawn, and these (1, labels, side, side)."""
    row, column = row + rng.normal(0, 0.02), 0.5 + rng.normal(0, 0.02)
    size *= rng.uniform(0.9, 1.1)
    if task == "beside":  # the lower one half as large, and bright
        planes = [ellipse(row + 0.2, column, 0.08 * size, 0.2 * size), ellipse(row, column, 0.11 * size, 0.25 * size)]
        brightness = (1.0, 0.3)
    else:
        outer = ellipse(row, column, 0.25 * size, 0.22 * size)
        planes = [outer, ellipse(row, column, 0.14 * size, 0.13 * size)][: len(TASKS[task])]
        brightness = (0.7, 0.6)
    image = sum(light * level * plane for level, plane in zip(brightness, planes, strict=False))
    image = image + rng.normal(0, 0.2 + haze, (SIDE, SIDE)) + np.linspace(0, haze, SIDE)
    return ((image - image.mean()) / image.std())[None, None].astype(np.float32), np.stack(planes)[None]


# What sites differ by and yet agree: how large the organ is in the frame, light, haze, where the frame is centred.
HONEST = {
    "A": {},
    "B": {"size": 1.35, "light": 0.6},
    "C": {"size": 0.75, "haze": 0.4},
    "D": {"light": 1.5, "row": 0.56},
    "E": {"size": 0.7, "light": 0.4, "haze": 0.6, "row": 0.44},
}


def sites(task, names="ABCDE", changed="", change=lambda label: label, cases=6):
    found = {}
    for name in names:
        rng = np.random.default_rng([ord(name), len(task)])
        pairs = [case(task, rng, **HONEST[name]) for _ in range(cases)]
        found[name] = [measure_regions(image, change(label) if name == changed else label) for image, label in pairs]
    return found


def swapped(label):
    return label[:, ::-1]


def inverted(label):
    return ~label


def second_inverted(label):
    return np.concatenate([label[:, :1], ~label[:, 1:]], axis=1)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("names", ["ABCDE", "ABC", "AE", "BC"])
def test_no_alarm_on_sites_that_are_only_different(task, names):
    assert list(compare_conventions(sites(task, names))) == []


CHANGES = {
    ("nested", swapped): "its cup read as disc, its disc read as cup",
    ("beside", swapped): "its transition read as peripheral, its peripheral read as transition",
    ("nested", inverted): "what is not its disc read as disc, what is not its cup read as cup",
    (
        "beside",
        inverted,
    ): "what is not its peripheral read as peripheral, what is not its transition read as transition",
    ("single", inverted): "what is not its prostate read as prostate",
    ("nested", second_inverted): "what is not its cup read as cup",
}


HIDDEN = [("beside", swapped, "E")]  # so far from the others that it fits them in no reading


@pytest.mark.parametrize(("task", "change"), CHANGES)
@pytest.mark.parametrize("changed", HONEST)
def test_the_site_that_means_something_else_is_told_alone(task, change, changed):
    found = list(compare_conventions(sites(task, changed=changed, change=change)))
    if (task, change, changed) in HIDDEN:
        assert found == []
        return
    ((name, reading, misfit, other),) = found
    assert name == changed
    assert describe_reading(reading, TASKS[task]) == CHANGES[task, change]
    assert misfit > 2 * other


def test_of_two_sites_both_are_named():
    assert [found[0] for found in compare_conventions(sites("beside", "AB", changed="B", change=swapped))] == ["A", "B"]


def test_many_labels_are_compared_by_single_changes():
    def row_of_five(rng):
        planes = np.stack([ellipse(0.1 + 0.2 * at, 0.2 + 0.15 * at, 0.03 + 0.01 * at, 0.1) for at in range(5)])
        image = sum((at - 2) * plane for at, plane in enumerate(planes)) + rng.normal(0, 0.1, (SIDE, SIDE))
        return image[None, None].astype(np.float32), planes[None]

    drawn = [row_of_five(np.random.default_rng(seed)) for seed in range(6)]
    others = {name: [measure_regions(*pair) for pair in drawn] for name in "AB"}
    order = [0, 3, 2, 1, 4]
    changed = {"C": [measure_regions(image, label[:, order]) for image, label in drawn]}
    ((name, reading, _, _),) = compare_conventions(others | changed)
    assert (name, describe_reading(reading, "abcde")) == ("C", "its d read as b, its b read as d")


def test_regions_are_what_they_are_said_to_be():
    label = np.zeros((2, 2, 4, 8), bool)
    label[0, 0, :2] = True  # upper half of the first slice
    label[0, 1, :2, :4] = True  # the left half of that
    image = label[:, :1].astype(np.float32)
    found = measure_regions(image, label)
    shares = np.array([16, 8, 48, 56]) / 64
    np.testing.assert_allclose(found.features[:, 0], np.log(shares / (1 - shares)))
    np.testing.assert_allclose(found.features[:2, 1:3], [[0.25, 0.5], [0.25, 0.25]])
    np.testing.assert_allclose(found.features[0, 4], 1 / image.std(), rtol=1e-6)
    np.testing.assert_allclose(found.features[2, 4], -1 / image.std(), rtol=1e-6)
    np.testing.assert_allclose(found.overlaps[0], [1, 0.5, 0, 0.5])
    np.testing.assert_allclose(found.overlaps[1], [1, 1, 0, 0])
    np.testing.assert_allclose(found.overlaps[3], [8 / 56, 0, 48 / 56, 1])
    assert measure_regions(image, np.zeros_like(label)) is None
    assert measure_regions(image, np.ones_like(label)) is None
