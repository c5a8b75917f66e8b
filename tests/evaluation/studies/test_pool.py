"""Runs side by side, each in a process of its own: the same results, and no run harms another, whatever befalls it."""

import fcntl
import resource
import subprocess
import sys
import time

import psutil
import pytest
import torch
from run_factory import make_sites

from evaluation.studies import pool
from fedmerit.engines import runs
from fedmerit.federation.checkpoint import is_finished
from fedmerit.records.ledger import Ledger
from fedmerit.records.results import read_results

SITES = ("Alder", "Birch", "Cedar")
TINY = {"architecture": "unet", "width": "4", "depth": "2"}
MEMORY_FILE = "peak.txt"


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    return make_sites(tmp_path_factory.mktemp("pool") / "sites", SITES, size=32)


def create(folder, sites, rounds=2, settings=(), method="fedavg", **options):
    settings = TINY | dict(settings)
    runs.create(folder, method=method, sites=sites, rounds=rounds, engine="local", settings=settings, **options)
    return folder


def ignore(record):
    """In the place of an `on_round`."""


def assert_same(one, other):
    names = sorted(path.name for path in (one / "models").glob("*.pt"))
    assert names
    assert names == sorted(path.name for path in (other / "models").glob("*.pt"))
    for name in names:
        first, second = (torch.load(run / "models" / name, weights_only=True) for run in (one, other))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)
    tables = [
        read_results(run).query("not quantity.str.endswith('seconds')").drop(columns="run") for run in (one, other)
    ]
    assert tables[0].equals(tables[1])


def workers():
    """The processes at work: children of the server that forks them."""
    return [worker for server in psutil.Process().children() for worker in server.children()]


def test_side_by_side_as_one_after_the_other(sites, tmp_path):
    asked = {
        "all": {},
        "two": {"method": "fedce", "only": ["Alder", "Cedar"]},
        "one": {"method": "standalone", "only": ["Birch"]},
    }
    rounds, ended = [], []
    failed = pool.execute_all(
        [create(tmp_path / "pool" / name, sites, **options) for name, options in asked.items()],
        workers=2,
        on_end=lambda folder, error: ended.append((folder.name, error)),
        on_round=lambda folder, record: rounds.append((folder.name, record["round"])),
    )
    assert failed == {}
    assert sorted(ended) == sorted((name, None) for name in asked)
    assert sorted(rounds) == sorted((name, number) for name in asked for number in range(2))
    assert workers() == []
    for name, options in asked.items():
        runs.execute(create(tmp_path / "alone" / name, sites, **options), ignore)
        assert_same(tmp_path / "alone" / name, tmp_path / "pool" / name)


def test_what_fails_is_told_and_the_others_finish(sites, tmp_path):
    spoiled = make_sites(tmp_path / "spoiled", SITES, size=32)
    folders = {
        "spoiled": create(tmp_path / "spoiled-run", spoiled),
        "locked": create(tmp_path / "locked", sites),
        "diverged": create(tmp_path / "diverged", sites, settings={"lr": "1e30"}),
        "broken": create(tmp_path / "broken", sites),
        "good": create(tmp_path / "good", sites),
    }
    (spoiled / "Birch/site.json").unlink()
    (folders["broken"] / "results.csv").mkdir()
    ended = {}
    with (folders["locked"] / ".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        failed = pool.execute_all(list(folders.values()), workers=2, on_end=ended.__setitem__)
    assert set(failed) == {folders[name] for name in ("spoiled", "locked", "diverged", "broken")}
    assert ended == {folder: failed.get(folder) for folder in folders.values()}
    assert "Birch" in failed[folders["spoiled"]]
    assert "another process is at work" in failed[folders["locked"]]
    assert "no site sent a usable reply" in failed[folders["diverged"]]
    assert failed[folders["broken"]].startswith("IsADirectoryError")
    log = folders["broken"] / "failed.log"
    assert str(log) in failed[folders["broken"]]
    assert "Traceback" in log.read_text()
    assert list(tmp_path.glob("*/failed.log")) == [log]
    assert is_finished(folders["good"], 2)


@pytest.mark.slow
def test_a_killed_run_is_told_and_goes_on_to_the_same_end(sites, tmp_path):
    victim, other = create(tmp_path / "victim", sites, rounds=12), create(tmp_path / "other", sites)

    def kill(folder, record):
        if folder == victim and record["round"] == 0:
            (worker,) = workers()
            worker.kill()

    failed = pool.execute_all([victim, other], workers=1, on_round=kill)
    assert list(failed) == [victim]
    assert "SIGKILL" in failed[victim]
    assert "same command" in failed[victim]
    assert is_finished(other, 2)
    done = len(Ledger(victim / "ledger.jsonl").records)
    assert 1 <= done < 12

    heard = []
    assert pool.execute_all([victim], workers=1, on_round=lambda folder, record: heard.append(record["round"])) == {}
    assert heard == list(range(12))
    undisturbed = create(tmp_path / "undisturbed", sites, rounds=12)
    runs.execute(undisturbed, ignore)
    assert_same(undisturbed, victim)


@pytest.mark.slow
def test_no_process_outlives_the_one_that_began_it(sites, tmp_path):
    folders = [create(tmp_path / name, sites, rounds=1000) for name in ("one", "two")]
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom evaluation.studies.pool import execute_all\n"
        "if __name__ == '__main__':\n    execute_all([Path(name) for name in sys.argv[1:]], 2)\n"
    )
    parent = psutil.Popen([sys.executable, str(script), *map(str, folders)], stderr=subprocess.PIPE, text=True)
    family = []
    try:
        deadline = time.monotonic() + 300
        while not all(Ledger(folder / "ledger.jsonl").records for folder in folders):
            assert parent.poll() is None, parent.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        family = parent.children(recursive=True)
        assert len(family) >= 3  # the server that forks, and two runs
    finally:
        parent.kill()
        parent.wait()
        _, alive = psutil.wait_procs(family, timeout=60)
        for process in alive:
            process.kill()
    assert alive == []
    assert parent.stderr.read() == ""
    for folder in folders:  # nobody holds it: it can go on
        with (folder / ".lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_no_runs_are_no_work():
    assert pool.execute_all([], workers=2) == {}


@pytest.fixture
def machine(monkeypatch):
    """A machine of so many free cores and bytes."""

    def have(cores, memory):
        monkeypatch.setattr(pool, "cores", lambda: cores)
        monkeypatch.setattr(pool, "free_memory", lambda: memory)

    return have


def test_workers_go_by_cores_and_memory(sites, tmp_path, machine):
    run = create(tmp_path / "run", sites)
    need = pool.memory_of(run)
    for cores, memory, expected in ((8, 100 * need, 8), (8, 5 * need, 4), (1, 100 * need, 1), (8, need / 2, 1)):
        machine(cores, memory)
        assert pool.workers_for(run) == expected
    machine(8, 100 * need)
    assert pool.workers_for(create(tmp_path / "threads", sites, settings={"cpu_threads": "4"})) == 2
    assert pool.workers_for(create(tmp_path / "more", sites, settings={"cpu_threads": "16"})) == 1


def test_workers_go_by_the_memory_of_gpus_too(sites, tmp_path, machine, monkeypatch):
    run = create(tmp_path / "run", sites)
    need = pool.gpu_memory_of(run)
    free = {"cuda:0": 100 * need, "cuda:1": 4 * need}
    monkeypatch.setattr(pool, "_gpus", lambda folder: list(free))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (free[gpu], 0))
    machine(8, 100 * pool.memory_of(run))
    assert pool.workers_for(run) == 3
    free["cuda:1"] = need / 2
    assert pool.workers_for(run) == 1


def test_the_gpus_of_a_run(sites, tmp_path, monkeypatch):
    run = create(tmp_path / "run", sites)
    assert pool._gpus(run) == ([] if not torch.cuda.is_available() else [torch.device("cuda")])
    monkeypatch.setattr(pool, "pick_device", lambda device, site: torch.device(device))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pool._gpus(run) == [torch.device("cuda:0"), torch.device("cuda:1")]
    mixed = create(tmp_path / "mixed", sites, device="Alder=cpu,Birch=cpu,Cedar=cpu")
    assert pool._gpus(mixed) == []


def test_memory_goes_by_network_batch_size_and_sites(sites, tmp_path):
    least = pool.memory_of(create(tmp_path / "least", sites))
    assert least > pool.BASE_MEMORY
    for name, options in {
        "wider": {"settings": {"width": "16"}},
        "deeper": {"settings": {"depth": "4"}},
        "batches": {"settings": {"batch_size": "64"}},
    }.items():
        assert pool.memory_of(create(tmp_path / name, sites, **options)) > least
    assert pool.memory_of(create(tmp_path / "fewer", sites, only=["Alder", "Birch"])) < least


def note_peak(folder):
    """The largest resident set of this process so far, in bytes, into a file of the run."""
    (folder / MEMORY_FILE).write_text(str(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="tiny"),
        pytest.param(
            {"architecture": "unet", "width": "16", "depth": "4", "batch_size": "16"}, id="wide", marks=pytest.mark.slow
        ),
    ],
)
def test_memory_is_near_what_a_run_takes(sites, tmp_path, settings):
    run = create(tmp_path / "run", sites, rounds=1, settings=settings)
    assert pool.execute_all([run], workers=1, after=note_peak) == {}
    taken = int((run / MEMORY_FILE).read_text())
    assert 0.7 * taken < pool.memory_of(run) < 1.5 * taken, f"{taken:.3g} bytes"


def test_images_of_a_run(sites, tmp_path):
    run = create(tmp_path / "run", sites, rounds=3, settings={"epochs": "2"}, only=["Alder", "Birch"])
    assert pool.images_of(run) == 2 * 15 * 3 * 2  # sites, images, rounds, epochs
