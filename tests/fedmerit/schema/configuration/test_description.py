"""run.json, the network's input, and the parts of other packages that a run names."""

import json
import sys
from dataclasses import fields

import pytest

from fedmerit.errors import BadInput
from fedmerit.files import write_json
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.data import Preprocessing, common
from fedmerit.schema.configuration.run import (
    PLACES,
    RunConfiguration,
    describe,
    find_external_parts,
    make_configuration,
    read_plan,
)
from fedmerit.schema.configuration.settings import TASKS, Network, Training

CONFIG = make_configuration("fedce", "fundus", 7, 3, TASKS["fundus"], {"combine": "plus", "lr": "0.1"})


def test_it_says_what_was_run_and_a_run_can_be_made_of_it_again():
    reported = json.loads(json.dumps(describe("mine", CONFIG, ("B", "A"), "sim")))
    expected = {
        **{"run": "mine", "method": "fedce", "seed": 3, "sites": ["B", "A"], "task": "fundus", "rounds": 7},
        **{"engine": "sim", "labels": ["disc", "cup"]},
        "parameters": {"combine": "plus", "error": "absolute"},
    }
    assert {name: reported[name] for name in expected} == expected
    assert reported["training"]["lr"] == 0.1
    assert RunConfiguration.from_dict(reported["plan"]) == CONFIG


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        ({"method": "fedavg"}, "lacks plan; expected what `fedmerit run` wrote"),
        ({"plan": {}}, "plan: lacks method"),
        ({"plan": CONFIG.to_dict() | {"method": "magic"}}, "method 'magic': unknown"),
    ],
)
def test_a_plan_that_is_none_is_reported_with_its_file(tmp_path, content, reported):
    write_json(tmp_path / "run.json", content)
    with pytest.raises(BadInput) as error:
        read_plan(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'run.json'}: {reported}")


SITE = {"name": "A", "image_size": [64, 64], "channels": 1, "field_of_view": 120.0, "crop": "whole", "source": "x"}
FED = Preprocessing((64, 64), 120.0)


def test_by_site_json():
    assert Preprocessing.from_dict(SITE) == FED
    assert Preprocessing.from_dict(SITE | {"channels": 3, "normalisation": "photo"}).normalisation == "photo"
    assert FED.spacing == (1.875, 1.875)
    assert Preprocessing((64, 64)).spacing is None


def test_sites_that_differ_have_none_in_common():
    assert common({"A": SITE, "B": SITE | {"name": "B"}}) == FED
    assert common({"A": SITE, "B": SITE | {"field_of_view": 100.0}}) is None
    assert common({"A": SITE, "B": {"image_size": [64, 64], "channels": 1}}) is None


def test_a_run_carries_it_and_earlier_ones_have_none():
    shape = {"in_channels": 1, "labels": ["a"]}
    with_it = make_configuration("fedavg", "t", 1, 0, shape, {}, preprocessing=FED)
    without = make_configuration("fedavg", "t", 1, 0, shape, {})
    assert RunConfiguration.from_dict(with_it.to_dict()) == with_it
    assert "preprocessing" not in without.to_dict()
    assert RunConfiguration.from_dict(without.to_dict()).preprocessing is None


@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_our_own_parts_names_none(method):
    plan = make_configuration(method, "prostate", 30, 0, TASKS["prostate"], {"optimizer": "sgd"}).to_dict()
    assert find_external_parts(plan | {"values": ["multi_round:every=1,most=256", "leave_one_out_loss"]}) == []


def test_each_is_named_with_its_group_and_none_is_imported():
    plan = {
        "method": "theirs.parts:Method",
        "network": {"architecture": "theirs.parts:network", "width": 4},
        "training": {"loss": "focal", "optimizer": "theirs.parts:lion", "lr": 0.1},
        "values": ["one_round:every=2", "theirs:most=9", "banzhaf"],
    }
    assert find_external_parts(plan) == [
        ("methods", "theirs.parts:Method"),
        ("networks", "theirs.parts:network"),
        ("losses", "focal"),
        ("optimizers", "theirs.parts:lion"),
        ("observers", "theirs"),
        ("observers", "banzhaf"),
    ]
    assert "theirs" not in sys.modules


def test_places_are_fields_whose_default_is_the_first_of_ours():
    """A plan that leaves one out means that."""
    kinds = {"network": Network(1, ("prostate",)), "training": Training()}
    for part, name, ours in PLACES.values():
        assert name in {one.name for one in fields(kinds[part])}
        assert getattr(kinds[part], name) == next(iter(ours))
