"""Which parts of others a plan names."""

import sys
from dataclasses import fields

import pytest

from fedmerit.configuration.external_parts import PLACES, find_external_parts
from fedmerit.configuration.run import TASKS, Network, Training, make_configuration
from fedmerit.methods.registry import METHODS


@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_our_own_parts_names_none(method):
    plan = make_configuration(method, "prostate", 30, 0, TASKS["prostate"], {"optimizer": "sgd"}).to_dict()
    assert find_external_parts(plan | {"values": ["multi_round:every=1,most=256", "leave_one_out_loss"]}) == []


def test_what_a_plan_does_not_say_is_ours():
    assert find_external_parts({"method": "fedavg"}) == []
    assert find_external_parts({"method": "fedavg", "network": None, "training": {}, "values": None}) == []


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


def test_a_plan_without_a_method_names_something_that_is_not_ours():
    assert find_external_parts({}) == [("methods", "None")]


def test_places_are_fields_whose_default_is_the_first_of_ours():
    """A plan that leaves one out means that."""
    kinds = {"network": Network(1, ("prostate",)), "training": Training()}
    for part, name, ours in PLACES.values():
        assert name in {one.name for one in fields(kinds[part])}
        assert getattr(kinds[part], name) == next(iter(ours))
