"""What a worker on another machine needs, and what it refuses."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from run_factory import make_sites
from tiny import TINY

from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.files import sha256, write_json
from fedmerit.site.machine_settings import SITES as VARIABLE
from fedmerit_evaluation.studies import execution
from fedmerit_evaluation.studies.execution import Places

SITES = ("Alder", "Birch")


@pytest.fixture
def sites(tmp_path):
    """Site folders that state what their arrays are."""
    root = make_sites(tmp_path / "sites", SITES, size=32)
    for site in SITES:
        info = json.loads((root / site / "site.json").read_text())
        sums = {file.name: sha256(file) for file in (root / site).glob("*.npy")}
        write_json(root / site / "site.json", info | {"checksums": sums})
    return root


@pytest.fixture
def run(sites, tmp_path):
    folder = tmp_path / "out" / "run"
    runs.create(folder, method="fedavg", sites=sites, rounds=1, engine="local", settings=TINY)
    return folder


def test_find_returns_recorded_sites(run, sites):
    assert execution.find(run, execution.describe_local_view(run)) == (sites, None)


def test_find_prefers_copy_of_worker(run, sites, tmp_path, monkeypatch):
    seen = execution.describe_local_view(run)
    copy = shutil.copytree(sites, tmp_path / "copy")
    monkeypatch.setenv(VARIABLE, str(copy))
    assert execution.find(run, seen)[0] == copy
    shutil.rmtree(sites)
    assert execution.find(run, seen)[0] == copy
    heard = []
    runs.execute(run, heard.append, sites=copy)
    assert len(heard) == 1


def test_find_returns_moved_sites(run, sites):
    moved = sites.rename(sites.with_name("moved"))
    assert execution.find(run, execution.describe_local_view(run, Places(moved))) == (moved, None)


def test_find_rejects_other_sites(run, sites, tmp_path, monkeypatch):
    seen = execution.describe_local_view(run)
    copy = shutil.copytree(sites, tmp_path / "copy")
    write_json(copy / "Birch/datalist.json", json.loads((copy / "Birch/datalist.json").read_text()) | {"more": []})
    monkeypatch.setenv(VARIABLE, str(copy))
    assert execution.find(run, seen)[0] == sites  # what run.json names is whole
    shutil.rmtree(sites)
    with pytest.raises(BadInput, match=rf"not the sites Alder, Birch .* name the copy in {VARIABLE}"):
        execution.find(run, seen)


def test_find_rejects_damaged_array(run, sites):
    seen = execution.describe_local_view(run)
    file = min((sites / "Alder").glob("*image.npy"))
    np.save(file, np.load(file) + 1)
    with pytest.raises(BadInput, match=f"{file.name}: differs from site.json"):
        execution.find(run, seen)


def test_find_rejects_unshared_run_folder(run, tmp_path):
    seen = execution.describe_local_view(run)
    with pytest.raises(BadInput, match="choose an --out that all machines share"):
        execution.find(tmp_path / "elsewhere", seen)


def test_find_rejects_other_software(run):
    seen = execution.describe_local_view(run)
    other = replace(seen, software={**seen.software, "torch": "1.0.0"})
    with pytest.raises(BadInput, match=r"torch is .* there, not 1\.0\.0: results would differ"):
        execution.find(run, other)
