"""The plan for all sites' volumes, against the numbers of nnU-Net's published rules."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.settings import Network
from fedmerit.schema.survey import QUANTITIES, Survey, Surveyed, Tally
from fedmerit.trainers.monai.network_checks import MAPS, check_image_size
from fedmerit_data.planning import FEWEST, Fingerprint, make_plan, merge, quantile

PROSTATE = Fingerprint(60, 0.6, 3.6, 3.0, 20, 192)


def tally(name, **of_bins):
    edges = QUANTITIES[name].edges
    return Tally(tuple(of_bins.get(f"b{place}", 0) for place in range(len(edges) + 1)))


def answers(**more):
    own = {
        "pixel_spacing": tally("pixel_spacing", b4=10),  # 0.5 to 0.6 mm
        "slice_spacing": tally("slice_spacing", b7=10),  # 3 to 3.5 mm
        "slices": tally("slices", b3=10),  # 15 to 20
        "field_of_view": tally("field_of_view", b6=10),  # 180 to 220 mm
    }
    other = own | {"pixel_spacing": tally("pixel_spacing", b7=30)}  # 0.8 to 1 mm
    return Survey(5, {"A": Surveyed(10, 180, own, 5), "B": Surveyed(30, 540, other | more, 5)}, {})


def test_sites_are_merged_by_patients():
    found = merge(answers())
    assert found.patients == 40
    assert found.pixel_spacing == pytest.approx(0.8 + 0.2 * 10 / 30)  # the 20th of 40
    assert (found.slice_spacing, found.slices, found.field_of_view) == (3.25, 17.5, 220)
    assert found.finest_slices == pytest.approx(3.05)


def test_a_quantity_below_every_floor_is_named():
    survey = answers()
    hidden = {
        name: replace(one, tallies={**one.tallies, "slices": tally("slices")}) for name, one in survey.sites.items()
    }
    with pytest.raises(BadInput, match="no site shows slices of a case of 5 patients or more"):
        merge(replace(survey, sites=hidden))


@pytest.mark.parametrize(("share", "value"), [(0.25, 1.5), (0.5, 2), (0.75, 3), (1, 4)])
def test_quantiles_lie_within_their_bin(share, value):
    assert quantile([0, 2, 2, 0], (1, 2, 4), share) == pytest.approx(value)
    assert quantile([5, 0, 0, 0], (1, 2, 4), share) == 1
    assert quantile([0, 0, 0, 5], (1, 2, 4), share) == 4


@pytest.mark.parametrize(
    ("found", "distance", "size"),
    [
        (PROSTATE, 3.0, 320),  # slices 6 times as far apart as pixels: their 10th percentile
        (replace(PROSTATE, pixel_spacing=1.25), 3.6, 160),  # just 3 times: the median
        (Fingerprint(60, 1.0, 1.0, 0.8, 100, 200), 1.0, 192),
    ],
)
def test_target_spacing(found, distance, size):
    plan = make_plan(found)
    assert (plan.slice_distance, plan.size) == (distance, size)
    assert plan.spacing == (distance, found.field_of_view / size, found.field_of_view / size)


def test_more_memory_gives_larger_patches_and_then_batches():
    plans = [make_plan(PROSTATE, memory) for memory in (0.25, 1, 4, 16, 64)]
    voxels = [math.prod(plan.patch) for plan in plans]
    assert voxels == sorted(voxels)
    assert voxels[0] < voxels[-1]
    assert plans[-1].patch[1:] == (320, 320)
    assert plans[-1].batch_size > FEWEST == plans[0].batch_size
    assert make_plan(PROSTATE, 1, width=32).patch == plans[0].patch  # as a quarter of the memory
    with pytest.raises(BadInput, match=r"memory 0.0001 GB: too little"):
        make_plan(PROSTATE, 1e-4)


def test_every_plan_fits_its_memory_and_its_network():
    random = np.random.default_rng(0)
    for _ in range(60):
        pixel, apart, slices, field = random.uniform([0.3, 0.5, 3, 60], [2, 10, 200, 400])
        found = Fingerprint(int(random.integers(5, 500)), pixel, apart, apart * random.uniform(0.5, 1), slices, field)
        memory = float(np.exp(random.uniform(np.log(0.2), np.log(40))))
        plan = make_plan(found, memory)
        assert 4 * MAPS * plan.width * plan.batch_size * math.prod(plan.patch) <= memory * 1e9
        shape = {"patch": plan.patch, "spacing": plan.spacing, "depth": plan.depth}
        check_image_size(Network(1, ("organ",), **shape), (plan.size, plan.size))
        assert plan == type(plan).from_dict(plan.to_dict(), "plan.json")
