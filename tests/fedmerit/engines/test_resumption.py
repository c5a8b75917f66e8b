"""Images that are not what they were when a run was begun, or not where."""

import shutil
from pathlib import Path

import pytest
from run_factory import prepare_again

from fedmerit.engines import resumption, runs
from fedmerit.errors import BadInput
from fedmerit.files import read_json


@pytest.fixture
def begun(own_sites, server_sites_data, tmp_path, monkeypatch):
    """A run that was created, with images of the server's own; to execute it trains nothing."""
    server = Path(shutil.copytree(server_sites_data.parent / "server", tmp_path / "server"))
    runs.create(tmp_path / "run", "fedavg", own_sites, rounds=1, engine="local", server_sites=server)
    monkeypatch.setattr(runs, "run_local", lambda run: None)
    return tmp_path / "run"


@pytest.mark.parametrize("which", ["own_sites/site2", "server/site4"])
def test_a_run_whose_site_was_prepared_again_does_not_continue(begun, tmp_path, which):
    root, name = which.split("/")
    runs.execute(begun, lambda record: None)
    prepare_again(tmp_path / which)
    with pytest.raises(BadInput, match=rf"{root}: {name} is not what .*run was started with; .* another --out"):
        runs.execute(begun, lambda record: None)


def test_a_run_whose_sites_were_moved_continues(begun, own_sites, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(runs, "run_local", lambda run: trained.extend(run.sites.folders))
    shutil.move(own_sites, tmp_path / "elsewhere")
    runs.execute(begun, lambda record: None, sites=tmp_path / "elsewhere")
    assert {folder.path.parent for folder in trained} == {tmp_path / "elsewhere"}


def test_a_run_finds_sites_that_were_moved_where_it_is_reported(begun, own_sites, tmp_path):
    elsewhere = {"sites": Path(shutil.move(own_sites, tmp_path / "elsewhere"))}
    with pytest.raises(BadInput, match=r"own_sites: no such folder, .* --resume --sites PLACE says where they are"):
        runs.execute(begun, lambda record: None)
    resumption.relocate(begun, elsewhere)
    resumption.require_same(begun, elsewhere)
    runs.execute(begun, lambda record: None)
    prepare_again(Path(shutil.copytree(elsewhere["sites"], tmp_path / "again")) / "site2")
    with pytest.raises(BadInput, match=r"again: site2 is not what .*run was started with"):
        resumption.relocate(begun, {"sites": tmp_path / "again"})
    assert read_json(begun / "run.json")["sites_folder"] == str(elsewhere["sites"])


def test_a_run_that_ended_and_whose_sites_are_elsewhere_continues_with_nothing(begun, own_sites, tmp_path, monkeypatch):
    asked = {"rounds": 1, "sites": own_sites}
    assert resumption.needs_resuming(begun, asked)
    monkeypatch.setattr(resumption, "is_finished", lambda run, rounds: True)
    assert resumption.needs_resuming(begun, asked)
    elsewhere = shutil.move(own_sites, tmp_path / "elsewhere")
    assert not resumption.needs_resuming(begun, asked | {"sites": elsewhere})
    with pytest.raises(BadInput, match="was started with rounds 1, not 2"):
        resumption.needs_resuming(begun, {"rounds": 2})
