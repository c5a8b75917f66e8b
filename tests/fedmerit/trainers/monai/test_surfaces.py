"""Dice, HD95 and NSD against implementations of others, and against the definitions, literally."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from scipy.spatial.distance import cdist

from fedmerit.schema.scores import TOLERANCE, Overlap
from fedmerit.trainers.monai import surfaces
from fedmerit.trainers.monai.surfaces import measure_surfaces, surface_dice_by_area

SPACINGS = [(1.0, 1.0, 1.0), (3.6, 0.6, 0.6), (0.5, 2.0, 1.25)]
# NSD at 2 mm of `blobs` by seed and spacing, by surface-distance 0.1 (Google DeepMind)
BY_AREA = {
    (0, SPACINGS[0]): 0.982638, (0, SPACINGS[1]): 0.988617, (0, SPACINGS[2]): 0.973713, (1, SPACINGS[0]): 0.975409,
    (1, SPACINGS[1]): 0.979809, (1, SPACINGS[2]): 0.974644, (2, SPACINGS[0]): 0.977645, (2, SPACINGS[1]): 0.988417,
    (2, SPACINGS[2]): 0.965013, (3, SPACINGS[0]): 0.987203, (3, SPACINGS[1]): 0.990816, (3, SPACINGS[2]): 0.979351
}  # fmt: skip


def blobs(seed, shape=(9, 20, 17)):
    """Two smooth random masks that agree in part, some of them at the border."""
    random = np.random.default_rng(seed)
    base = gaussian_filter(random.normal(size=shape), 1.5)
    return [base + 0.3 * gaussian_filter(random.normal(size=shape), 1.0) > 0.1 for _ in range(2)]


def literal(predicted, reference, spacing):
    """HD95 and NSD by voxels, every distance computed: a surface voxel has a neighbour outside, or the array's end."""
    points = []
    for mask in (predicted, reference):
        padded = np.pad(mask, 1)
        inner = mask.copy()
        for axis in range(3):
            for step in (-1, 1):
                inner &= np.roll(padded, step, axis)[1:-1, 1:-1, 1:-1]
        points.append(np.argwhere(mask & ~inner) * spacing)
    distances = cdist(*points)
    ways = distances.min(axis=1), distances.min(axis=0)
    return max(np.percentile(way, 95) for way in ways), np.mean(np.concatenate(ways) <= TOLERANCE)


def measured(predicted, reference, spacing):
    (found,) = measure_surfaces(predicted[:, None], reference[:, None], spacing)
    return found


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mapped", [True, False])
def test_random_masks(seed, spacing, mapped, monkeypatch):
    monkeypatch.setattr(surfaces, "MAPPED", 2**25 if mapped else 0)
    predicted, reference = blobs(seed)
    found = measured(predicted, reference, spacing)
    assert (found.hd95, found.nsd) == pytest.approx(literal(predicted, reference, spacing), abs=1e-4)
    assert surface_dice_by_area(predicted, reference, spacing) == pytest.approx(BY_AREA[seed, spacing], abs=1e-5)
    both = int((predicted & reference).sum())
    counted = Overlap("0", "a", both, int(predicted.sum()) - both, int(reference.sum()) - both)
    assert counted.dice == pytest.approx(2 * both / (predicted.sum() + reference.sum()))


def test_empty_masks():
    full, empty = blobs(0)[0], np.zeros((9, 20, 17), bool)
    for one, other, nsd in ((full, empty, 0.0), (empty, full, 0.0), (empty, empty, None)):
        found = measured(one, other, SPACINGS[0])
        assert (found.hd95, found.nsd, surface_dice_by_area(one, other, SPACINGS[0])) == (None, nsd, nsd)
    assert measured(full, full, None) is None
    assert surface_dice_by_area(full, full, None) is None
    assert surface_dice_by_area(full, full, SPACINGS[1]) == 1


def test_huge_masks_and_single_slices():
    """Two cubes moved against each other, whose distances are known; a disc in pixels."""
    one = np.zeros((40, 200, 200), bool)
    one[10:30, 20:160, 20:160] = True
    other = np.roll(one, 10, axis=2)
    found = measured(one, other, (2.0, 0.5, 0.5))
    assert found.hd95 == pytest.approx(5.0)
    assert measured(one, other, (2.0, 0.1, 0.1)).nsd == 1
    flat = np.zeros((1, 30, 30), bool)
    flat[0, 10:20, 10:20] = True
    assert surface_dice_by_area(flat, np.roll(flat, 1, axis=2), None) == 1
    assert 0.5 < surface_dice_by_area(flat, np.roll(flat, 4, axis=2), None) < 0.7
