"""Estimators that look at images, on site folders whose arrays are known."""

from types import SimpleNamespace

import numpy as np
import pytest
from games_reference import shapley_by_permutations, table
from run_factory import make_sites
from torch import nn

from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites
from fedmerit_lab.valuation import image_estimators
from fedmerit_lab.valuation.image_estimators import (
    IntensityDistance,
    KNNShapley,
    LabelDistance,
    LabelVolume,
    knn_shapley,
)

SITES = ("Alder", "Birch", "Cedar")


@pytest.fixture
def run(tmp_path):
    """Instead of an `ObservedRun`: three sites of 15 training slices of 16 x 16 pixels, two draws."""
    root = make_sites(tmp_path / "sites", SITES, size=16)
    brighter = root / "Cedar" / "training0_image.npy"
    np.save(brighter, np.load(brighter) + 3)
    return SimpleNamespace(path=root, folders=open_sites(root), sites=list(SITES), count=2)


def slices_of(run, site, kind, split="training"):
    """(15, 16, 16) straight from the files."""
    return np.concatenate([np.load(run.path / site / f"{split}{number}_{kind}.npy")[:, 0] for number in range(5)])


def wasserstein(one, other):
    """Mean distance of the sorted, each repeated until they are as many."""
    return np.abs(np.sort(np.repeat(one, len(other))) - np.sort(np.repeat(other, len(one)))).mean()


def nearness(of_sites):
    return [-wasserstein(own, np.concatenate([other for other in of_sites if other is not own])) for own in of_sites]


def test_volumes_are_labelled_pixels_in_every_draw(run):
    expected = [slices_of(run, site, "label").sum() for site in SITES]
    assert LabelVolume().values(run).tolist() == [[pixels] * 2 for pixels in expected]


def test_distances_are_from_the_organ_sizes_and_intensities_of_all_others(run):
    sizes = [slices_of(run, site, "label").mean(axis=(1, 2)) for site in SITES]
    np.testing.assert_allclose(LabelDistance().values(run)[:, 1], nearness(sizes), rtol=1e-5)
    images = [slices_of(run, site, "image") for site in SITES]
    percentiles = [np.percentile(one, np.linspace(0, 100, 101), axis=(1, 2)).ravel() for one in images]
    values = IntensityDistance().values(run)[:, 0]
    np.testing.assert_allclose(values, nearness(percentiles), rtol=1e-5)
    assert values.argmin() == 2  # Cedar's are brighter


@pytest.mark.parametrize("k", [1, 4])
def test_nearest_neighbour_values_share_out_the_use_of_the_nearest(run, monkeypatch, k):
    """By mean intensity, all that a 1 x 1 convolution keeps: the sum over sites is the mean Dice of the K nearest."""
    network = nn.Sequential(nn.Conv2d(1, 1, 1))
    nn.init.ones_(network[0].weight)
    nn.init.zeros_(network[0].bias)
    monkeypatch.setattr(image_estimators, "final_models", lambda path: lambda folder: network)
    values = KNNShapley(k=k).values(run)
    masks, means = (np.concatenate([slices_of(run, site, kind) for site in SITES]) for kind in ("label", "image"))
    means, found = means.mean(axis=(1, 2)), []
    for site in SITES:
        asked = zip(
            slices_of(run, site, "image", "validation"), slices_of(run, site, "label", "validation"), strict=True
        )
        for image, mask in asked:
            near = np.abs(means - image.mean()).argsort()[:k]
            found += [2 * (mask & masks[one]).sum() / (mask.sum() + masks[one].sum()) for one in near]
    assert values.shape == (3, 2)
    assert values[:, 0].sum() == pytest.approx(np.mean(found), abs=1e-6)
    assert (values[:, 0] > 0).all()


def test_slices_are_not_compared_by_a_network_of_volumes(run, monkeypatch):
    network = nn.Conv2d(1, 1, 1)
    network.patch = (8, 8, 8)
    monkeypatch.setattr(image_estimators, "final_models", lambda path: lambda folder: network)
    with pytest.raises(BadInput, match="knn_shapley: compares slices"):
        KNNShapley().values(run)


def test_nearest_neighbour_values_are_the_shapley_values_of_their_game():
    """Σ over the K nearest there of their use, by K: every coalition of six points, literally."""
    random = np.random.default_rng(0)
    use, distance = random.random((2, 6)), random.random((2, 6))
    for k in (1, 2, 8):
        values = knn_shapley(use, distance.argsort(axis=1), k)
        for question in range(2):

            def worth(one, question=question, k=k):
                near = sorted((int(name) for name in one), key=lambda point: distance[question, point])[:k]
                return sum(use[question, point] for point in near) / k

            expected = shapley_by_permutations(table([str(point) for point in range(6)], worth), "012345")
            np.testing.assert_allclose(values[question], expected, atol=1e-12)
