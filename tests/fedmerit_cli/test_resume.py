"""`fedmerit run` on folders that are not free, `--resume` and `--only`."""

import fcntl
import shutil
from pathlib import Path

import pytest
from refusals import contents, refused

from fedmerit.files import write_json
from fedmerit.schema.run_info import read_run
from fedmerit.trust import allow_places


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def test_a_folder_of_something_else_is_left_unchanged(fedmerit, options, run):
    run.mkdir()
    (run / "thesis.txt").write_text("all of it")
    refused(fedmerit("run", "--out", run, *options()), str(run))
    assert contents(run) == {"thesis.txt": b"all of it"}


# --resume


@pytest.mark.parametrize("out", ["nothing", "bare"])
def test_resume_of_what_is_no_run(fedmerit, tmp_path, out):
    (tmp_path / "bare").mkdir()
    refused(fedmerit("run", "--resume", "--out", tmp_path / out), "run.json")
    assert not (tmp_path / "nothing").exists()
    assert list((tmp_path / "bare").iterdir()) == []


@pytest.mark.parametrize(
    ("file", "content"),
    [("run.json", b"{}"), ("checkpoint.pt", b"half of it"), ("checkpoint.pt", b""), ("ledger.jsonl", b"\xff\n" * 3)],
    ids=["run.json lacks everything", "checkpoint is none", "checkpoint is empty", "ledger is no text"],
)
def test_resume_of_a_spoiled_run_names_the_file(fedmerit, own_run, file, content):
    (own_run / file).write_bytes(content)
    before = contents(own_run)
    refused(fedmerit("run", "--resume", "--out", own_run), str(own_run / file))
    assert contents(own_run) == before


@pytest.mark.parametrize(
    ("settings", "changes", "word"),
    [
        ((), {"method": "fedavg"}, "method"), ((), {"rounds": 4}, "rounds"), ((), {"seed": 1}, "seed"),
        ((), {"engine": "sim"}, "engine"), ((), {"threads": 2}, "threads"), ((), {"device": "cpu"}, "device"),
        ((), {"sites": "elsewhere"}, "sites"), (("combine=plus",), {}, "combine"), (("lr=0.01",), {}, "lr")
    ],
)  # fmt: skip
def test_resume_with_another_option(fedmerit, options, own_run, settings, changes, word):
    before = contents(own_run)
    refused(fedmerit("run", "--resume", "--out", own_run, *options(*settings, **changes)), str(own_run), word)
    assert contents(own_run) == before


def test_resume_on_other_sites(fedmerit, own_sites, own_run):
    shutil.rmtree(own_sites / "site3")
    write_json(own_run / "run.json", read_run(own_run) | {"sites_folder": str(own_sites)})
    refused(fedmerit("run", "--resume", "--out", own_run), "run.json", "nobody named on this machine", "--sites")
    allow_places(own_sites)
    refused(fedmerit("run", "--resume", "--out", own_run), "site1, site2", "site1, site2, site3")


@pytest.mark.parametrize("engine", ["local", pytest.param("sim", marks=pytest.mark.slow)])
def test_a_second_process_on_one_run(fedmerit, trained, tmp_path, engine):
    whole = trained(engine=engine, threads=3) if engine == "sim" else trained()
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "checkpoint.pt").unlink()
    before = contents(run)
    with (run / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(fedmerit("run", "--resume", "--out", run), str(run), "another process")
    assert contents(run) == before


def test_a_run_that_has_ended_needs_no_sites_that_were_moved(fedmerit, own_sites, own_run, tmp_path):
    write_json(own_run / "run.json", read_run(own_run) | {"sites_folder": str(own_sites)})
    moved = shutil.move(own_sites, tmp_path / "moved")
    before = contents(own_run)
    for places in ((), ("--sites", moved)):
        result = fedmerit("run", "--resume", "--out", own_run, *places)
        assert result.exit_code == 0, result.output
        assert f"{own_run} has ended: nothing is left to train." in result.output
        assert f"run folder: {own_run}" in result.output
    refused(fedmerit("run", "--resume", "--out", own_run, "--seed", "1"), "was started with seed 0, not 1")
    assert contents(own_run) == before
    (own_run / "checkpoint.pt").unlink()
    refused(fedmerit("run", "--resume", "--out", own_run), "no such folder", "--resume --sites PLACE says where they")


# --only


@pytest.mark.slow
def test_only_some_sites_take_part(fedmerit, options, small, sites, tmp_path, assert_same_run):
    """As a run of a folder of these only; and it can be resumed."""
    two = tmp_path / "two"
    for name in ("site1", "site3"):
        shutil.copytree(sites / name, two / name)
    (tmp_path / "run.toml").write_text('only = "site3,site1"\n')
    for folder, changes, more in (("expected", {"sites": two}, ()), ("only", {}, ("--config", tmp_path / "run.toml"))):
        result = fedmerit("run", "--out", tmp_path / folder, *options(*small[1::2], rounds=1, **changes), *more)
        assert result.exit_code == 0, result.output
    assert_same_run(tmp_path / "expected", tmp_path / "only")
    assert (read_run(tmp_path / "only")["only"], read_run(tmp_path / "only")["sites"]) == (["site1", "site3"],) * 2
    assert fedmerit("verify", tmp_path / "only").exit_code == 3
    for again in ((), ("--only", "site1,site3")):
        result = fedmerit("run", "--resume", "--out", tmp_path / "only", *again)
        assert result.exit_code == 0, result.output
    result = fedmerit("run", "--resume", "--out", tmp_path / "only", "--only", "site1,site2")
    refused(result, "only ['site1', 'site3'], not ['site1', 'site2']")
    assert_same_run(tmp_path / "expected", tmp_path / "only")
