"""What sites and settings have to be for a run."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from pretending import tiny_plan

from fedmerit.errors import BadInput
from fedmerit.federation.requirements import (
    require_compatible_images,
    require_decentralised,
    require_one_model_for_all,
    require_sites,
    require_visible_models,
)

GOOD = {"name": "A", "task": "prostate", "channels": 1, "labels": ("prostate",), "image_size": (32, 32)}


@pytest.mark.parametrize("sites", [(), ("A",)])
def test_sharing_needs_two_sites_and_training_alone_one(sites):
    with pytest.raises(BadInput, match=r"fedavg needs at least 2; .*--method standalone"):
        require_sites(tiny_plan("fedavg"), sites)
    require_sites(tiny_plan("fedavg"), ("A", "B"))
    if sites:
        require_sites(tiny_plan("standalone"), sites)


def test_krum_needs_three_sites():
    with pytest.raises(BadInput, match="sites A, B: krum needs at least 3; add sites, or take another method"):
        require_sites(tiny_plan("krum"), ("A", "B"))
    require_sites(tiny_plan("krum"), ("A", "B", "C"))


def test_names_that_would_be_taken_for_coalitions_cannot_be_observed():
    plain = tiny_plan("fedavg")
    require_sites(plain, ("A+B", "C"))
    with pytest.raises(BadInput, match=r"site A\+B: --values names coalitions .*; rename the site"):
        require_sites(replace(plain, values=("multi_round:every=1",)), ("C", "A+B"))


def test_what_a_method_cannot_start_with_is_told_by_its_name():
    with pytest.raises(BadInput, match=r"method fedci: .*13 sites"):
        require_sites(tiny_plan("fedci"), [f"site{number:02d}" for number in range(13)])


def test_images_have_to_fit_the_network():
    require_compatible_images(tiny_plan("fedavg"), SimpleNamespace(**GOOD))
    for changed in ({"task": "fundus"}, {"channels": 3}, {"labels": ("disc", "cup")}):
        with pytest.raises(BadInput, match=r"site A: task, channels and labels are .*, the run expects .*'prostate'"):
            require_compatible_images(tiny_plan("fedavg"), SimpleNamespace(**GOOD | changed))
    with pytest.raises(BadInput, match="33"):  # which cannot be halved once
        require_compatible_images(tiny_plan("fedavg"), SimpleNamespace(**GOOD | {"image_size": (33, 32)}))


def test_all_images_in_one_place_are_nowhere_else():
    require_decentralised(tiny_plan("fedavg"))
    with pytest.raises(BadInput, match=r"method pooled: .*--engine local"):
        require_decentralised(tiny_plan("pooled"))


def test_a_server_that_sees_no_models_has_no_rule_for_them():
    plain = tiny_plan("fedavg")
    require_visible_models(plain, ["he"])
    for name, value in (("statistics", "own"), ("last_round", "own")):
        asked = replace(plain, training=replace(plain.training, **{name: value}))
        require_visible_models(asked, ["percentile:percentile=10"])
        with pytest.raises(BadInput, match=rf"{name}=own: the server of this run sees no .*; leave it out"):
            require_visible_models(asked, ["he"])


@pytest.mark.parametrize(
    ("method", "told"), [("cgsv", "models of their own anyway"), ("pooled", "no site one of its own")]
)
def test_a_last_round_of_their_own_is_for_sites_of_one_model(method, told):
    require_one_model_for_all(tiny_plan(method))
    plan = tiny_plan("fedavg")
    require_one_model_for_all(apart := replace(plan, training=replace(plan.training, last_round="own")))
    with pytest.raises(BadInput, match=f"last_round=own: .*{told}; leave it out"):
        require_one_model_for_all(replace(apart, method=method, parameters={}))


def test_sites_that_name_each_other_have_names_that_may_leave(tmp_path):
    require_sites(tiny_plan("cycle", 12), ["Sitë_1", "Site.2"])
    require_sites(tiny_plan("fedavg"), ["Site 1", "Site 2"])
    with pytest.raises(BadInput, match="site Site 2: sites of cycle name each other"):
        require_sites(tiny_plan("cycle", 12), ["Site1", "Site 2"])
