"""What a run requires of sites and settings, and what sites commit to."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from certificates import issue
from pretending import tiny_plan
from run_factory import make_sites

from fedmerit.contract.method import Outcome
from fedmerit.errors import BadInput, RunFailed
from fedmerit.evidence.signatures import read_certificate
from fedmerit.files import read_json, write_json
from fedmerit.methods.fedavg import FedAvg
from fedmerit.schema.configuration.data import Preprocessing
from fedmerit.schema.expected import check_enrolment
from fedmerit.schema.messages import Enrolment
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.server.requirements import (
    require_decentralised,
    require_one_model_for_all,
    require_outcome,
    require_sites,
    require_visible_models,
)
from fedmerit.server.run_guard import check_certificate, collect_enrolments, is_kept
from fedmerit.site.enrolment import make_enrolment
from fedmerit.trainers.monai.network_checks import require_compatible_images
from fedmerit.trainers.monai.samples import Slices
from fedmerit.trainers.monai.trainer import read_holdings

GOOD = {"name": "A", "task": "prostate", "channels": 1, "labels": ("prostate",), "image_size": (32, 32)}
OUTCOME = Outcome(torch.ones(2), torch.ones(2), torch.full((2,), 0.5), torch.ones(3))
GOOD |= {"info": {"image_size": [32, 32], "field_of_view": 100.0, "crop": "whole"}}


@pytest.mark.parametrize("sites", [(), ("A",)])
def test_sharing_needs_two_sites_and_training_locally_one(sites):
    with pytest.raises(BadInput, match=r"fedavg needs at least 2; .*--method standalone"):
        require_sites(tiny_plan("fedavg"), sites)
    require_sites(tiny_plan("fedavg"), ("A", "B"))
    if sites:
        require_sites(tiny_plan("standalone"), sites)


def test_krum_needs_three_sites():
    with pytest.raises(BadInput, match="sites A, B: krum needs at least 3; add sites, or take another method"):
        require_sites(tiny_plan("krum"), ("A", "B"))
    require_sites(tiny_plan("krum"), ("A", "B", "C"))


def test_images_have_to_fit_the_network():
    require_compatible_images(tiny_plan("fedavg"), SimpleNamespace(**GOOD))
    for changed in ({"task": "fundus"}, {"channels": 3}, {"labels": ("disc", "cup")}):
        with pytest.raises(BadInput, match=r"site A: task, channels and labels are .*, the run expects .*'prostate'"):
            require_compatible_images(tiny_plan("fedavg"), SimpleNamespace(**GOOD | changed))
    own = replace(tiny_plan("fedavg"), preprocessing=Preprocessing((32, 32), field_of_view=120.0))
    with pytest.raises(BadInput, match="site A: its images are prepared by another data plan, size or field of view"):
        require_compatible_images(own, SimpleNamespace(**GOOD))
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
    ("method", "reported"), [("cgsv", "models of their own anyway"), ("pooled", "no site one of its own")]
)
def test_a_last_round_of_their_own_is_for_sites_of_one_model(method, reported):
    require_one_model_for_all(tiny_plan(method))
    plan = tiny_plan("fedavg")
    require_one_model_for_all(apart := replace(plan, training=replace(plan.training, last_round="own")))
    with pytest.raises(BadInput, match=f"last_round=own: .*{reported}; leave it out"):
        require_one_model_for_all(replace(apart, method=method, parameters={}))


SITES = ("Alder", "Birch", "Cedar")


@pytest.fixture
def kits(tmp_path):
    """Certificates of three sites with the organisations given, and the root's."""

    def make(*organisations):
        issue(tmp_path, "root")
        for site, organisation in zip(SITES, organisations, strict=True):
            issue(tmp_path, site, "root", organisation)
        return {site: (tmp_path / f"{site}.crt").read_text() for site in SITES}, read_certificate(tmp_path / "root.crt")

    return make


def enrolments(certificates):
    return {
        site: Enrolment(0, {"training": 2}, {"training": 10}, (f"{site}0", f"{site}1"), pem)
        for site, pem in certificates.items()
    }


def collected(there, root):
    kept = {site: one.sealed() for site, one in there.items()}
    return collect_enrolments(SITES, kept, root, torch.zeros(3, 3, dtype=torch.bool), {})


@pytest.mark.parametrize(
    ("organisations", "absent", "vouched", "groups"),
    [
        (("north", "south", "north"), "", True, [0, 1, 0]),
        (("north", "south", "north"), "", False, [0, 1, 2]),  # nobody vouches for them
        (("north", "south", "north"), "Cedar", True, [0, 1, 2]),
        (("fedmerit", "fedmerit", "fedmerit"), "", True, [0, 1, 2]),  # all are of one: each is by itself
        (("fedmerit", "fedmerit", "fedmerit"), "Cedar", True, [0, 1, 2]),
    ],
)
def test_sites_of_one_organisation_are_one(kits, organisations, absent, vouched, groups):
    certificates, root = kits(*organisations)
    there = {site: one for site, one in enrolments(certificates).items() if site != absent}
    found = collected(there, root if vouched else None)
    assert found.organisations.tolist() == groups
    assert found.counts.tolist() == [10, 10, 0 if absent else 10]


def test_images_that_stand_twice_count_once(kits):
    certificates, root = kits("a", "b", "c")
    there = enrolments(certificates)
    there["Birch"] = Enrolment(0, {"training": 2}, {"training": 10}, ("same", "same"), certificates["Birch"])
    assert collected(there, root).counts.tolist() == [10, 5, 10]


def test_a_certificate_is_the_sites_own_and_the_roots_work(kits, tmp_path):
    certificates, root = kits("a", "b", "c")
    there = enrolments(certificates)
    assert check_certificate(there["Alder"], "Alder", root) is None
    assert check_certificate(there["Alder"], "Birch", root) == "enrolment with another site's certificate"
    (tmp_path / "others").mkdir()
    issue(tmp_path / "others", "root")
    issue(tmp_path / "others", "Alder", "root", "a")
    strange = Enrolment(0, {}, {}, (), (tmp_path / "others" / "Alder.crt").read_text())
    for enrolment in (strange, Enrolment(0, {}, {}, ()), Enrolment(0, {}, {}, (), "no certificate")):
        assert check_certificate(enrolment, "Alder", root) == "enrolment without a certificate of this federation"
        assert check_certificate(enrolment, "Alder", None) is None


WHOLE = Enrolment(
    0,
    {"training": 20, "validation": 3},
    {"training": 100, "validation": 15},
    tuple(f"{case:032x}" for case in (*range(19), 18)),
    "certificate",
    "5e" * 16,
)


def part(cases, images, **changed):
    counts = {"cases": WHOLE.cases | {"training": cases}, "slices": WHOLE.slices | {"training": images}}
    return replace(WHOLE, **{"round": 3, "fingerprint": WHOLE.fingerprint[:cases], **counts, **changed})


@pytest.mark.parametrize(
    ("later", "kept"),
    [
        (part(20, 100), True), (part(19, 95), True), (part(17, 85), False), (part(19, 100 + 1), False),
        (part(20, 95), False), (part(19, 95, fingerprint=(*WHOLE.fingerprint[:18], "f" * 32)), False),
        (part(19, 95, fingerprint=(*WHOLE.fingerprint[:18], WHOLE.fingerprint[0])), False),
        (part(19, 95, seal="6f" * 16), False), (part(19, 95, slices={"training": 95, "validation": 16}), False),
        (part(20, 100, certificate="new", seal="6f" * 16), True),
        (part(19, 95, certificate="new", seal="6f" * 16), False)
    ],
)  # fmt: skip
def test_a_site_that_enrols_again_has_some_of_the_same_images(later, kept):
    """With fewer cases than at first others were taken, as long as the counts fitted."""
    assert is_kept(WHOLE.sealed(), later.sealed()) == kept


def test_a_case_without_a_slice_to_train_on_is_no_training_case(tmp_path):
    """As `prepare --slices organ` leaves photographs that show none: the site is not refused for it."""
    root = make_sites(tmp_path / "sites", ("Alder",), size=16)
    lists = read_json(root / "Alder" / "datalist.json")
    for place, entry in enumerate(lists["training"]):
        entry["slices"] = [] if place < 3 else [1]
    write_json(root / "Alder" / "datalist.json", lists)
    folder = SiteFolder(root / "Alder")
    one = make_enrolment(
        read_holdings(folder, len(Slices(folder.cases("training")))), tiny_plan("fedavg"), 0, "", "secret"
    )
    assert check_enrolment(one, 0) is None
    assert (one.cases["training"], one.slices["training"], len(one.fingerprint)) == (2, 2, 2)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (OUTCOME, "gave Outcome; expected its state and an Outcome"),
        ((None, replace(OUTCOME, contribution=torch.ones(1))), r"gave contribution of shape \(1,\); .* shape \(2,\)"),
        ((None, replace(OUTCOME, reputation=np.ones(2))), "gave reputation as ndarray"),
        ((None, replace(OUTCOME, quantities={"quota": torch.ones(2, 2)})), r"gave quota of shape \(2, 2\)"),
        ((None, replace(OUTCOME, weights=torch.ones(2))), "gave weights whose sum is 2; expected 1"),
        (
            (None, replace(OUTCOME, models=torch.ones(2))),
            r"gave models of shape \(2,\) in torch.float32; expected \(3,\)",
        ),
        (
            (None, replace(OUTCOME, models=torch.ones(3).half())),
            r"gave models of shape \(3,\) in torch.float16; expected",
        ),
        (
            (None, replace(OUTCOME, models=torch.ones(2, 3))),
            "gave a model for each site; declare has_site_models in its class",
        ),
    ],
)
def test_an_outcome_against_the_contract_is_named(given, fault):
    require_outcome((None, OUTCOME), FedAvg(), torch.zeros(2, 3), "round 0: own")
    with pytest.raises(RunFailed, match=f"round 0: own {fault}"):
        require_outcome(given, FedAvg(), torch.zeros(2, 3), "round 0: own")
