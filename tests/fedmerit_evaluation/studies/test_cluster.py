"""What runs side by side are forked from.

Runs side by side in worker processes: the same results, and no run harms another, whatever befalls it.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from run_factory import make_sites
from tiny import TINY

from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import Ledger
from fedmerit.schema.results import read_results
from fedmerit.server.checkpoint import is_finished
from fedmerit_evaluation.ground_truth.coalitions import test_on_all_sites as everywhere
from fedmerit_evaluation.studies.execution import Workers, execute_all

PROGRAM = """
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from fedmerit_evaluation.studies.run_processes import PRELOADED, begin_processes

def lacking():
    return [name for name in PRELOADED if name not in sys.modules]

if __name__ == "__main__":
    begin_processes()
    here = len(lacking())
    with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
        print(here == len(PRELOADED), pool.submit(lacking).result())
"""


@pytest.mark.slow
def test_begin_processes_imports_in_workers_only(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    reported = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=120, check=True
    )
    assert reported.stdout.split(maxsplit=1) == ["True", "[]\n"]


SITES = ("Alder", "Birch", "Cedar")


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    return make_sites(tmp_path_factory.mktemp("cluster") / "sites", SITES, size=32)


@pytest.fixture(scope="module")
def two():
    """Two workers on this machine, which all tests use."""
    with Workers(2) as workers:
        yield workers


def create(folder, sites, rounds=2, settings=(), method="fedavg", **options):
    settings = TINY | dict(settings)
    runs.create(folder, method=method, sites=sites, rounds=rounds, engine="local", settings=settings, **options)
    return folder


def ignore(record):
    """Instead of an `on_round`."""


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


@pytest.mark.slow
def test_execute_all_parallel_equals_sequential(sites, tmp_path, two):
    asked = {
        "all": {},
        "two": {"method": "fedce", "only": ["Alder", "Cedar"]},
        "one": {"method": "standalone", "only": ["Birch"]},
    }
    rounds, ended = [], []
    failed = execute_all(
        [create(tmp_path / "beside" / name, sites, **options) for name, options in asked.items()],
        two,
        on_end=lambda folder, error: ended.append((folder.name, error)),
        on_round=lambda folder, record: rounds.append((folder.name, record["round"])),
    )
    assert failed == {}
    assert sorted(ended) == sorted((name, None) for name in asked)
    assert sorted(rounds) == sorted((name, number) for name in asked for number in range(2))
    single = [create(tmp_path / "single" / name, sites, **options) for name, options in asked.items()]
    assert execute_all(single, Workers(1)) == {}
    for name in asked:
        assert_same(tmp_path / "single" / name, tmp_path / "beside" / name)


def note_process(folder, sites):
    """Who executed a run, and who was killed at it, into files of the run."""
    (folder / "process.txt").write_text(str(os.getpid()))


def die(folder, sites):
    """What befalls a process that takes too much memory."""
    note_process(folder, sites)
    if folder.name == "victim":
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("beside", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_execute_all_reports_failure_and_finishes_others(sites, tmp_path, request, beside):
    """One after the other in this process, and in two workers, of which one run kills its own."""
    workers, after = (request.getfixturevalue("two"), die) if beside else (Workers(1), note_process)
    spoiled = make_sites(tmp_path / "spoiled", SITES, size=32)
    folders = {
        "spoiled": create(tmp_path / "spoiled-run", spoiled, 1),
        "locked": create(tmp_path / "locked", sites, 1),
        "diverged": create(tmp_path / "diverged", sites, 1, settings={"lr": "1e30"}),
        "broken": create(tmp_path / "broken", sites, 1),
        **({"victim": create(tmp_path / "victim", sites, 1)} if beside else {}),
        "good": create(tmp_path / "good", sites, 1),
    }
    (spoiled / "Birch/site.json").unlink()
    (folders["broken"] / "results.csv").mkdir()
    ended = {}
    with (folders["locked"] / ".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        failed = execute_all(list(folders.values()), workers, on_end=ended.__setitem__, after=after)
    assert set(failed) == {folder for name, folder in folders.items() if name != "good"}
    assert ended == {folder: failed.get(folder) for folder in folders.values()}
    assert "Birch" in failed[folders["spoiled"]]
    assert "another process is at work" in failed[folders["locked"]]
    assert "no site sent a usable reply" in failed[folders["diverged"]]
    assert failed[folders["broken"]].startswith("IsADirectoryError")
    assert not beside or all(words in failed[folders["victim"]] for words in ("died", "same command"))
    log = folders["broken"] / "failed.log"
    assert str(log) in failed[folders["broken"]]
    assert "Traceback" in log.read_text()
    assert list(tmp_path.glob("*/failed.log")) == [log]
    assert is_finished(folders["good"], 1)


@pytest.fixture
def cluster(tmp_path):
    """A scheduler and two workers, in processes of their own, with a copy of the sites of theirs; its address."""
    address = tmp_path / "scheduler.json"
    own = {"FEDMERIT_SITES": str(tmp_path / "copy"), "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    dask = [sys.executable, "-m", "dask"]
    local = ["--host", "127.0.0.1", "--port", "0"]
    process = [
        subprocess.Popen([*dask, "scheduler", *local, "--no-dashboard", "--scheduler-file", str(address)], **quiet)
    ]
    work = [*dask, "worker", "--no-nanny", "--no-dashboard", "--nthreads", "1", "--host", "127.0.0.1"]
    work += ["--scheduler-file", str(address), "--local-directory", str(tmp_path / "scratch")]
    process += [subprocess.Popen(work, env=os.environ | own, **quiet) for _ in range(2)]
    try:
        deadline = time.monotonic() + 120
        while not address.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield address
    finally:
        for one in process:
            one.kill()
            one.wait()


def address_in(file):
    return json.loads(file.read_text())["address"]


@pytest.mark.slow
def test_execute_all_survives_lost_worker(sites, tmp_path, cluster, monkeypatch):
    """The worker is killed in the middle of a run, which continues at the other, from its last complete round.

    The workers are in another working directory than who names the run folders.
    """
    monkeypatch.chdir(tmp_path)
    folders = [create(Path("out") / name, sites, rounds=6) for name in ("one", "other")]
    elsewhere = make_sites(tmp_path / "elsewhere", SITES, size=32)
    shutil.copytree(elsewhere, tmp_path / "copy")  # of others: the workers read what run.json names
    victims, heard = {}, []

    def kill(folder, record):
        heard.append((folder, record["round"]))
        if record["round"] == 2 and not victims:
            found = [one for one in psutil.process_iter() if _holds(one, folder.absolute() / ".lock")]
            victims.update({folder: found})
            for process in found:
                process.kill()

    with Workers(cluster=address_in(cluster)) as workers:
        assert execute_all(folders, workers, on_round=kill, after=everywhere) == {}
    ((victim, killed),) = victims.items()
    assert len(killed) == 1
    assert sum(folder == victim for folder, _ in heard) > 6  # sent again by the other worker
    for folder in folders:
        assert is_finished(folder, 6)
        assert len(Ledger(folder / "ledger.jsonl").records) == 6
        single = create(tmp_path / "single" / folder.name, sites, rounds=6)
        runs.execute(single, ignore)
        assert_same(single, folder)


def _holds(process, file):
    try:
        return any(opened.path == str(file) for opened in process.open_files())
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return False


def test_client_without_scheduler_raises():
    with pytest.raises(BadInput, match=r"--cluster tcp://127.0.0.1:9: no scheduler answers.*dask scheduler"):
        Workers(cluster="tcp://127.0.0.1:9", timeout=0.5).number_for(None, 1)


def test_workers_slurm_needs_jobs():
    with pytest.raises(BadInput, match="--cluster slurm: give the number of Slurm jobs with --jobs"):
        Workers(cluster="slurm")


def test_workers_slurm_job_holds_one_run(sites, tmp_path, monkeypatch):
    dask_jobqueue = pytest.importorskip("dask_jobqueue")
    from fedmerit_evaluation.studies.execution import _slurm_cluster

    run = create(tmp_path / "run", sites)
    asked = {}
    monkeypatch.setattr(dask_jobqueue, "SLURMCluster", lambda **options: asked.update(options))
    _slurm_cluster(run)
    assert asked["cores"] == asked["processes"] == 1
    assert asked["memory"].endswith("GB")


@pytest.mark.slow
def test_workers_end_with_parent(sites, tmp_path):
    folders = [create(tmp_path / name, sites, rounds=1000) for name in ("one", "two")]
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom fedmerit_evaluation.studies.execution import Workers, execute_all\n"
        "if __name__ == '__main__':\n"
        "    with Workers(2) as workers:\n        execute_all([Path(name) for name in sys.argv[1:]], workers)\n"
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
        assert len(family) >= 3  # the server that forks, and two workers
    finally:
        parent.kill()
        parent.wait()
        _, alive = psutil.wait_procs(family, timeout=60)
        for process in alive:
            process.kill()
    assert alive == []
    assert "Traceback" not in parent.stderr.read()
    for folder in folders:  # nobody holds it: it can continue
        with (folder / ".lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_execute_all_without_runs_does_nothing():
    assert execute_all([], Workers(2)) == {}
