"""Sites with the same training images are known by their enrolments, or by what was prepared, and share a value."""

import shutil

import numpy as np
import pytest
from run_factory import make_sites
from stopping import stop_at
from tiny import TINY

from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import Ledger
from fedmerit.files import read_json, write_json
from fedmerit.server.recorder import Recorder
from fedmerit_evaluation.valuation.observed_run import ObservedRun, sites_sharing_images
from fedmerit_evaluation.valuation.valued_runs import value_runs

SITES = ("Alder", "Birch", "Cedar")


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Three sites, and a fourth that is Birch by another name."""
    folder = make_sites(tmp_path_factory.mktemp("twins") / "sites", SITES, size=16)
    shutil.copytree(folder / "Birch", folder / "Dogwood")
    info = read_json(folder / "Dogwood" / "site.json")
    write_json(folder / "Dogwood" / "site.json", {**info, "name": "Dogwood"})
    return folder


@pytest.fixture(scope="module", params=["on", pytest.param("off", marks=pytest.mark.slow)])
def run(request, sites, tmp_path_factory):
    """With the guard sites enrol, without it their prepared folders say what they hold: never change it."""
    run = tmp_path_factory.mktemp("twins") / request.param
    runs.create(run, method="standalone", sites=sites, rounds=2, engine="local", threads=1, values=["local_only"],
                settings={**TINY, "guard": request.param})  # fmt: skip
    runs.execute(run, lambda record: None)
    return run


def test_local_only_divides_value_of_shared_images(run):
    assert ("enrolled" in Ledger(run / "ledger.jsonl").records[0].get("guard", {})) == (run.name == "on")
    observed = ObservedRun(run, draws=2)
    assert observed.sites == [*SITES, "Dogwood"]
    assert observed.holders.tolist() == [1, 2, 1, 2]
    said = value_runs([run], ["local_only", "local_only:copies=apart"], draws=2).of_each
    np.testing.assert_allclose(
        said["local_only"], said["local_only:copies=apart"] / np.array([1, 2, 1, 2])[None, :, None]
    )
    assert (said["local_only:copies=apart"] > 0).all()


def test_holders_tolerate_a_missing_case(run, sites, tmp_path):
    """Three of four are enough."""
    lesser = shutil.copytree(sites, tmp_path / "sites")
    lists = read_json(lesser / "Dogwood/datalist.json")
    lists["training"] = lists["training"][:-1]
    write_json(lesser / "Dogwood/datalist.json", lists)
    again = tmp_path / "run"
    runs.create(again, method="standalone", sites=lesser, rounds=1, engine="local", threads=1, values=["local_only"],
                settings={**TINY, "guard": run.name})  # fmt: skip
    runs.execute(again, lambda record: None)
    assert sites_sharing_images(again, read_json(again / "run.json")) == {
        "Alder": set(), "Birch": {"Dogwood"}, "Cedar": set(), "Dogwood": {"Birch"},
    }  # fmt: skip


def test_holders_without_knowledge_are_one(run, tmp_path):
    away = shutil.copytree(run, tmp_path / "run")
    (away / "ledger.jsonl").unlink()
    info = {**read_json(away / "run.json"), "sites_folder": None}
    assert sites_sharing_images(away, info) == {}
    write_json(away / "run.json", info)
    assert ObservedRun(away).holders.tolist() == [1, 1, 1, 1]


def test_sites_sharing_images_rejects_invalid_ledger(run, tmp_path):
    spoiled = shutil.copytree(run, tmp_path / "run")
    (spoiled / "ledger.jsonl").write_text('{"guard": {"enrolled": {"Alder": 1}}}\n')
    with pytest.raises(BadInput, match=r"ledger\.jsonl: not a ledger of rounds"):
        sites_sharing_images(spoiled, read_json(run / "run.json"))


@pytest.mark.parametrize("run", ["on"], indirect=True)
def test_sites_sharing_images_of_resumed_run_are_equal(run, sites, tmp_path, assert_same_run):
    again = tmp_path / run.name
    runs.create(again, method="standalone", sites=sites, rounds=2, engine="local", threads=1, values=["local_only"],
                settings={**TINY, "guard": run.name})  # fmt: skip
    stop_at(again, Recorder, "observed", 1)
    runs.execute(again, lambda record: None)
    assert_same_run(run, again)
    assert ObservedRun(again).holders.tolist() == [1, 2, 1, 2]
