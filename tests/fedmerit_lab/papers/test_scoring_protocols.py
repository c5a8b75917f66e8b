"""Dice of one model by several protocols, against numbers worked out explicitly."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from run_factory import SITES, make_run, make_sites

from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.schema.configuration.settings import Network
from fedmerit.schema.site_folder import Case, SiteFolder
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.saved_networks import save_network
from fedmerit_evaluation.results.evaluation import evaluate
from fedmerit_evaluation.results.views import Dice
from fedmerit_lab.papers.scoring_protocols import NO_BATCH_NORM, PROTOCOLS, Slices, audit

ONE, OTHER = (Case(name, name, Path(name), Path(name)) for name in "ab")
COUNTS = [  # tp, fp, fn of slices of one label; two volumes
    (ONE, (0, 0, 0)),  # empty in both
    (ONE, (0, 4, 0)),  # a false alarm
    (ONE, (6, 2, 2)),  # 12 / 16 = 0.75
    (OTHER, (1, 0, 1)),  # 2 / 3
    (OTHER, (0, 0, 2)),  # missed: 0
]
BY_HAND = Slices([(case, 0) for case, _ in COUNTS], np.array([[counts] for _, counts in COUNTS]))


def test_every_protocol_explicitly():
    """Volumes: 12 / (12 + 6 + 2) = .6 and 2 / (2 + 3) = .4; on organ slices 12 / 16 = .75 and .4."""
    assert BY_HAND.volume_dice == pytest.approx(0.5)
    assert BY_HAND.with_reference.volume_dice == pytest.approx((0.75 + 0.4) / 2)
    assert BY_HAND.slice_dice(both_empty=1.0) == pytest.approx((1 + 0 + 0.75 + 2 / 3 + 0) / 5)
    assert BY_HAND.with_reference.slice_dice() == pytest.approx((0.75 + 2 / 3 + 0) / 3)


def test_a_label_that_is_nowhere_is_left_out():
    counts = np.array([[(6, 2, 2), (0, 0, 0)], [(0, 0, 0), (0, 3, 0)]])
    slices = Slices([(ONE, 0), (OTHER, 0)], counts)
    assert slices.volume_dice == pytest.approx((0.75 + 0.0) / 2)
    assert slices.slice_dice(both_empty=1.0) == pytest.approx(((0.75 + 1) / 2 + (1 + 0) / 2) / 2)
    assert slices.with_reference.slice_dice() == pytest.approx(0.75)
    assert math.isnan(Slices([(OTHER, 0)], counts[1:, :1]).volume_dice)


BATCH_NORM = Network(in_channels=1, labels=("prostate",), architecture="unet", width=2, depth=3, norm="batch")


@pytest.fixture
def run(tmp_path):
    run = make_run(tmp_path / "run")
    save_network(run / "models", "global", initial_network(BATCH_NORM, 0), BATCH_NORM)
    return run


def test_the_audit_of_a_run(run, tmp_path):
    sites = make_sites(tmp_path / "sites", size=32)
    table = audit(run, sites).set_index("Protocol")
    assert list(table.index) == list(PROTOCOLS)
    assert list(table) == ["What is scored", *SITES, "Mean"]
    dice = Dice(evaluate(run, sites)).sites["dice"].droplevel(["method", "seed"])
    assert table.loc["as-used", list(SITES)].to_dict() == pytest.approx((100 * dice).to_dict())
    assert table.loc["as-used", "Mean"] == pytest.approx(100 * dice.mean())
    # the factory's discs are in every slice, so that organ slices are all slices
    assert table.loc["organ-volumes", "Alder"] == pytest.approx(table.loc["volumes", "Alder"])
    assert table.loc["organ-slices", "Alder"] == pytest.approx(table.loc["slices", "Alder"])
    assert table.loc["batch-statistics", "Alder"] != pytest.approx(table.loc["volumes", "Alder"])
    assert audit(run, sites, "slices, volumes")["Protocol"].to_list() == ["slices", "volumes"]
    again = audit(run, sites, "drawn-slices,batch-statistics").set_index("Protocol")  # the same draw, nothing moved
    pd.testing.assert_frame_equal(again, table.loc[again.index, again.columns])
    with pytest.raises(BadInput, match="--protocols 'voxels': unknown; expected one of as-used, volumes"):
        audit(run, sites, "slices,voxels")
    with pytest.raises(BadInput, match="--protocols slices, slices: name each once"):
        audit(run, sites, "slices, slices")


def test_surfaces_stand_beside_the_masks_that_are_used(run, tmp_path):
    sites = make_sites(tmp_path / "sites", size=32)
    for site in SITES:
        lists = read_json(sites / site / "datalist.json")
        for case in lists["testing"]:
            case["spacing"] = [3.0, 0.5, 0.5]
        write_json(sites / site / "datalist.json", lists)
    table, as_used = audit(run, sites).set_index("Protocol"), Dice(evaluate(run, sites)).sites
    for surface in ("hd95", "nsd"):
        assert table.loc["as-used", surface] == pytest.approx(as_used[surface].mean())
        assert table[surface].notna().sum() == 1
    assert "hd95" not in audit(run, sites, "volumes")


def test_batches_are_normalised_by_their_own_statistics(tmp_path):
    """Running statistics that fit no image change `volumes`, and nothing of `batch-statistics`."""
    sites, found = make_sites(tmp_path / "sites", ("Alder",)), []
    for shift in (0.0, 5.0):
        network = initial_network(BATCH_NORM, 0)
        for name, buffer in network.named_buffers():
            if name.endswith("running_mean"):
                buffer += shift
        run = make_run(tmp_path / f"run{shift}")
        save_network(run / "models", "global", network, BATCH_NORM)
        found.append(audit(run, sites, "volumes,batch-statistics")["Alder"].to_list())
    (volumes, by_batch), (shifted, still) = found
    assert by_batch == still
    assert volumes != shifted


def test_without_batch_norm_the_table_says_so(tmp_path):
    run, sites = make_run(tmp_path / "run"), make_sites(tmp_path / "sites", ("Alder",))
    description = Network(in_channels=1, labels=("prostate",), architecture="unet", width=2, depth=3, norm="instance")
    save_network(run / "models", "global", initial_network(description, 0), description)
    table = audit(run, sites).set_index("Protocol")
    assert table.loc["batch-statistics", "What is scored"].endswith(NO_BATCH_NORM)
    assert table.loc["batch-statistics", "Alder"] == table.loc["volumes", "Alder"]


def test_drawn_slices_are_of_all_patients(tmp_path):
    """Fifteen cases of three slices: a share of 1 draws each slice once, a small one the same few for one seed."""
    site = SiteFolder(make_sites(tmp_path, ("Alder",)) / "Alder")
    every = Slices.of([case for cases in site.splits.values() for case in cases])
    assert len(every.places) == 45
    assert every.drawn(1.0, 0).places == every.places
    few = every.drawn(0.1, 7)
    assert len(few.places) == len(set(few.places)) == 4
    assert few.places == every.drawn(0.1, 7).places != every.drawn(0.1, 8).places
    assert len(every.drawn(1e-9, 0).places) == 1


def test_predicting_leaves_the_network_as_it_was(run, tmp_path):
    site = SiteFolder(make_sites(tmp_path / "sites", ("Alder",)) / "Alder")
    network = initial_network(BATCH_NORM, 0).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    counts = Slices.of(site.cases("testing")).predicted(network, amp=False).counts
    assert counts is not None
    assert counts.shape == (15, 1, 3)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
