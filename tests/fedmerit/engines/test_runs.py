"""A run that was stopped anywhere continues to the same end."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from chains import verify
from gate import Gate
from refusals import contents
from stopping import stop_at
from tiny import TINY

from fedmerit.engines import image_sites, runs
from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import Ledger
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.configuration.settings import TASKS
from fedmerit.schema.results import ResultsFile
from fedmerit.server.checkpoint import is_finished
from fedmerit.server.models import ModelsInTheClear
from fedmerit.server.server import Federation
from fedmerit.site.site import Site


def stopped_at(
    run: Path, sites: Path, owner: Any, name: str, count: int, instead: Callable[..., object] = lambda *_: None
) -> Path:
    """Start a local run and stop it as `stop_at` does."""
    settings = TINY
    runs.create(run, method="fedce", sites=sites, rounds=3, engine="local", threads=1, settings=settings)
    stop_at(run, owner, name, count, instead)
    return run


@pytest.mark.parametrize(
    ("method", "reported"), [("cgsv", "models of their own anyway"), ("pooled", "no site one of its own")]
)
def test_a_last_round_of_their_own_is_for_sites_of_one_model(tmp_path, sites, method, reported):
    with pytest.raises(BadInput, match=f"last_round=own: .*{reported}; leave it out"):
        runs.create(tmp_path / "run", method, sites, rounds=2, engine="local", settings={"last_round": "own"})
    assert not (tmp_path / "run").exists()


def test_of_two_runs_begun_at_once_one_is_the_run(tmp_path, sites, monkeypatch):
    """Both have found the folder free before either writes into it."""
    both, describe = threading.Barrier(2), runs.describe

    def wait_and_describe(*arguments):
        both.wait(60)
        return describe(*arguments)

    monkeypatch.setattr(runs, "describe", wait_and_describe)
    run, refused = tmp_path / "run", []

    def create(seed):
        try:
            runs.create(run, method="fedavg", sites=sites, rounds=1, seed=seed, engine="local")
        except BadInput as error:
            refused.append((seed, str(error)))

    threads = [threading.Thread(target=create, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    ((loser, why),) = refused
    assert "exists already" in why or "another process is at work" in why
    assert json.loads((run / "run.json").read_text())["seed"] == 3 - loser


@pytest.fixture
def stopped(tmp_path, sites):
    """A run that was stopped: ``stopped(Ledger, "append", 2)``."""
    return lambda *stop: stopped_at(tmp_path / "run", sites, *stop)


@pytest.fixture(scope="module")
def after_two_rounds(tmp_path_factory, sites):
    """Never change it."""
    return stopped_at(tmp_path_factory.mktemp("stopped") / "run", sites, Site, "train", 7)


@pytest.fixture
def stopped_later(after_two_rounds, tmp_path):
    """A run that was stopped when two rounds were done."""
    return Path(shutil.copytree(after_two_rounds, tmp_path / "run"))


def half_a_line(ledger: Ledger, record: object) -> None:
    with ledger.path.open("a") as file:
        file.write('{"round": 1, "participants": ["si')


def half_the_rows(results: ResultsFile, rows: list[Any]) -> None:
    ResultsFile(results.path).append(rows[: len(rows) // 2])
    with results.path.open("a") as file:
        file.write("run,fedce,0,1,si")


# Per round the local engine trains three sites, then appends to results.csv, to the ledger, writes the checkpoint.
STOPS: dict[str, tuple[Any, ...]] = {
    "before anything": (Site, "train", 1),
    "first rows half written": (ResultsFile, "append", 1, half_the_rows),
    "in the middle of a round": (Site, "train", 6),
    "before the site remembers": (Site, "_remember", 8),
    "rows half written": (ResultsFile, "append", 2, half_the_rows),
    "ledger line half written": (Ledger, "append", 2, half_a_line),
    "before the checkpoint": (Federation, "_checkpoint", 2),
    "in the middle of the test": (Site, "evaluate", 5),
    "before the models are saved": (ModelsInTheClear, "save", 1),
    "before the test's rows": (ResultsFile, "append", 4),
    "before the last checkpoint": (Federation, "_checkpoint", 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("stop", STOPS)
def test_local_run_stopped_anywhere_ends_the_same(stopped, trained, fedmerit, assert_same_run, stop):
    run = stopped(*STOPS[stop])
    result = fedmerit("run", "--resume", "--out", run)
    assert result.exit_code == 0, result.output
    assert_same_run(trained(), run)
    assert verify(run / "ledger.jsonl") == 3


def test_memory_of_later_rounds_does_not_disturb(stopped_later, trained, assert_same_run):
    run = stopped_later
    for name in ("site1", "site2", "site3"):
        memory = torch.load(run / "sites" / name / "round_00001.pt", weights_only=True)
        changed = {key: value + 1 if isinstance(value, torch.Tensor) else value for key, value in memory.items()}
        torch.save(changed, run / "sites" / name / "round_00002.pt")
        torch.save(changed, run / "sites" / name / "round_00007.pt")
    runs.execute(run, lambda record: None)
    assert_same_run(trained(), run)


def test_rows_and_records_after_the_checkpoint_are_dropped(stopped_later, trained, assert_same_run):
    run = stopped_later
    with (run / "results.csv").open("a") as file:
        file.write("run,fedce,0,2,site1,,,,,weight,1.0\nrun,fedce,0,2,site1,,,,,co")
    Ledger(run / "ledger.jsonl").append({"round": 2, "participants": []})
    with (run / "ledger.jsonl").open("a") as file:
        file.write("not JSON\n{")
    runs.execute(run, lambda record: None)
    assert_same_run(trained(), run)


@pytest.mark.parametrize("engine", ["local", pytest.param("sim", marks=pytest.mark.slow)])
def test_resume_of_a_finished_run_trains_nothing(fedmerit, trained, tmp_path, assert_same_run, monkeypatch, engine):
    whole = trained(engine=engine, threads=3) if engine == "sim" else trained()
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    before = contents(run)
    monkeypatch.setattr(Site, "train", None)
    monkeypatch.setattr(Site, "evaluate", None)
    monkeypatch.setattr(subprocess, "Popen", None)
    result = fedmerit("run", "--resume", "--out", run)
    assert result.exit_code == 0, result.output
    assert contents(run) == before


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("fedavg", {}, 2),
        ("cycle", {"exchange": "peer", "warmup_by": "own"}, 3),  # each has to be there to be asked
    ],
)
def test_count_processes_without_threads_follows_cores_and_exchange(monkeypatch, method, settings, expected):
    monkeypatch.setattr(image_sites, "cores", lambda: 2)
    config = make_configuration(method, "prostate", 100, 0, TASKS["prostate"], settings)
    sites = image_sites.ImageSites(Path(), [SimpleNamespace(name=name) for name in ("site1", "site2", "site3")])
    assert sites.count_processes(config, None) == expected


@pytest.fixture
def started(scripts, options, tmp_path, kill, wait_for):
    """``fedmerit run`` in a process of its own, once its ledger holds some records; it does not end by itself."""

    def start(records: int, rounds: int = 3, **changes: object) -> Path:
        run = tmp_path / "run"
        gate = Gate(tmp_path / "gate", run, rounds - 1)
        command = [str(scripts / "fedmerit"), "run", "--out", str(run), *options(rounds=rounds, guard="off", **changes)]
        with (tmp_path / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                command, env=os.environ | gate.environment, stdout=output, stderr=subprocess.STDOUT
            )

        def far_enough() -> bool:
            assert process.poll() is None, (tmp_path / "output.txt").read_text()
            return (run / "run.json").exists() and len(Ledger(run / "ledger.jsonl").records) >= records

        try:
            wait_for(far_enough, 600)
        except BaseException:
            kill(run)
            raise
        finally:
            start.process = process
        return run

    yield start
    process = getattr(start, "process", None)
    if process is not None and process.poll() is None:
        process.kill()
    if process is not None:
        process.wait(timeout=30)


@pytest.fixture
def check_killed(started, kill, processes_of, trained, fedmerit, assert_same_run):
    def check(records: int, rounds: int, **changes: object) -> None:
        run = started(records, rounds=rounds, **changes)
        kill(run)
        assert not is_finished(run, rounds)
        result = fedmerit("run", "--resume", "--out", run)
        assert result.exit_code == 0, result.output
        assert_same_run(trained(rounds=rounds), run)
        assert verify(run / "ledger.jsonl") == rounds
        assert processes_of(run) == []

    return check


@pytest.mark.slow  # `test_memory_of_later_rounds_does_not_disturb` and others have the same in this process
def test_killed_local_run_ends_the_same(check_killed):
    check_killed(1, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("records", "threads"), [(0, 3), (1, 2), (2, 1)])
def test_simulator_run_killed_later_or_earlier(check_killed, records, threads):
    check_killed(records, 3, engine="sim", threads=threads)


@pytest.mark.slow
def test_simulator_whose_command_was_killed_keeps_others_out(started, fedmerit, processes_of, kill):
    run = started(1, engine="sim", threads=1, rounds=6)
    command = next(process for process in processes_of(run) if "run" in process.cmdline())
    command.kill()
    command.wait(timeout=30)
    result = fedmerit("run", "--resume", "--out", run)
    assert not is_finished(run, 6)
    assert result.exit_code == 2
    assert "another process" in result.stderr
    kill(run)


@pytest.mark.slow
def test_local_and_simulator_may_follow_each_other(started, kill, trained, fedmerit, assert_same_run):
    """What a site remembers is the same whichever engine it worked for."""
    run = started(1, engine="sim", threads=3)
    kill(run)
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"engine": "local", "threads": 1}))
    result = fedmerit("run", "--resume", "--out", run)
    assert result.exit_code == 0, result.output
    assert_same_run(trained(), run)
