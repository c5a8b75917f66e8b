"""Sites of the simulator in forked processes: when they end, and what comes of one that dies."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace

import psutil
import pytest

from fedmerit.flare.simulator import fork_sites, watch_processes
from fedmerit.records.ledger import Ledger

FORK = multiprocessing.get_context("fork")
DIES = """
import sys
if "fedmerit.flare.simulator" in sys.orig_argv:
    import os, signal
    from fedmerit.federation.site import Site
    answer = Site.answer
    def die(site, task):
        if site.name == "site2" and task.round == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer(site, task)
    Site.answer = die
"""


@pytest.fixture
def begun():
    """Begin a process for every site."""
    processes = {}

    def begin(**works):
        processes.update({site: FORK.Process(target=work) for site, work in works.items()})
        for process in processes.values():
            process.start()
        return processes

    yield begin
    for process in processes.values():
        process.kill()
        process.join()


def nothing():
    """A site that has done its work."""


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def work_on():
    time.sleep(60)


def work_a_little():
    time.sleep(0.3)


def test_sites_that_have_ended_are_no_error(begun):
    assert list(watch_processes(begun(site1=nothing, site2=work_a_little))) == []


def test_a_death_is_told_while_others_work_on(begun):
    processes = begun(site1=work_on, site2=die, site3=work_on)
    assert next(watch_processes(processes)) == "the process of site site2 ended with exit code -9"
    assert processes["site1"].is_alive()


def test_all_others_are_waited_for(begun):
    processes = begun(site1=work_a_little, site2=die)
    assert list(watch_processes(processes)) == ["the process of site site2 ended with exit code -9"]
    assert processes["site1"].exitcode == 0


def test_a_site_that_cannot_begin_says_why(capfd, tmp_path):
    process, connection = fork_sites(["site1"])["site1"]
    connection.send((Namespace(workspace=str(tmp_path / "none"), client="site1"), None, {}))
    process.join(30)
    assert process.exitcode == 1
    assert f"{tmp_path / 'none'}: it does not exist" in capfd.readouterr().err


def test_sites_end_with_the_simulation_however_it_ends():
    ours, its = FORK.Pipe()

    def simulate():
        its.send([process.pid for process, _ in fork_sites(["site1", "site2"]).values()])
        work_on()

    simulation = FORK.Process(target=simulate)
    simulation.start()
    sites = [psutil.Process(pid) for pid in ours.recv()]
    assert all(site.status() != psutil.STATUS_ZOMBIE for site in sites)
    simulation.kill()
    simulation.join()
    assert psutil.wait_procs(sites, timeout=30)[1] == []


@pytest.mark.slow
def test_a_site_killed_ends_the_run_with_its_name(fedmerit, options, processes_of, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(DIES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    run = tmp_path / "run"
    result = fedmerit("run", "--out", run, *options(engine="sim", rounds=3))
    assert result.exit_code == 1
    assert "the process of site site2 ended with exit code -9" in " ".join(result.output.split())
    assert len(Ledger(run / "ledger.jsonl").records) == 1
    assert processes_of(run) == []


@pytest.mark.slow
def test_a_simulation_that_cannot_begin_ends_with_its_sites(tmp_path):
    command = [sys.executable, "-m", "fedmerit.flare.simulator", str(tmp_path / "run"), str(tmp_path), "1", "site1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert str(tmp_path / "run" / "run.json") in done.stderr
