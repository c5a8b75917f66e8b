"""The simulator: processes of sites, their slots and wake-ups, and what is reported when one dies."""

import multiprocessing
import os
import select
import signal
import subprocess
import threading
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from fedmerit.engines.nvflare import shared_machine
from fedmerit.engines.nvflare.program import _explain_failure, estimate_memory
from fedmerit.engines.nvflare.shared_machine import CONCURRENCY_LIMIT, concurrency_slot
from fedmerit.engines.nvflare.simulator import fork_sites, watch_processes
from fedmerit.evidence.ledger import Ledger
from fedmerit.files import write_json
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.configuration.settings import TASKS

FORK = multiprocessing.get_context("fork")
DIES = """
import sys
if "fedmerit.engines.nvflare.simulator" in sys.orig_argv:
    import os, signal
    from fedmerit.site.site import Site
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


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def work_on():
    time.sleep(3600)


def test_a_death_is_reported_while_others_work_on(begun):
    processes = begun(site1=work_on, site2=die, site3=work_on)
    assert (
        next(watch_processes(processes))
        == "the process of site site2 ended with exit code -9, killed as if out of memory"
    )
    assert processes["site1"].is_alive()


def test_a_site_that_cannot_begin_says_why(capfd, tmp_path):
    process, connection = fork_sites(["site1"])["site1"]
    connection.send((Namespace(workspace=str(tmp_path / "none"), client="site1"), None, {}))
    process.join(300)
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
    assert psutil.wait_procs(sites, timeout=300)[1] == []


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


@pytest.mark.parametrize(
    ("width", "size", "measured"),
    [(8, 64, 0.8e9), (8, 128, 0.92e9), (32, 64, 4.0e9), (64, 64, 15.9e9), (8, 256, 1.36e9)],
)
def test_memory_is_near_what_processes_of_six_sites_took(tmp_path, width, size, measured):
    """Two at work; measured on an x86 processor with PyTorch 2.13, what they share left out."""
    config = make_configuration("fedce", "prostate", 3, 0, TASKS["prostate"], {"width": str(width)})
    write_json(tmp_path / "run.json", {"image_size": [size, size]})
    assert 0.8 * measured < estimate_memory(config, tmp_path, 6, 2) < 1.6 * measured


def test_what_an_earlier_try_left_in_the_log_is_not_this_ones(tmp_path):
    earlier = "BadInput: cuda:1 is not there\n"
    (tmp_path / "nvflare.log").write_text(f"{earlier}a round began\n")
    reported = _explain_failure(tmp_path / "nvflare.log", len(earlier), tmp_path, 0.0)
    assert "cuda:1" not in reported
    assert "no error in its log, which ends with:\na round began" in reported


def most_at_work(number, together):
    """The most of ``number`` threads that were in a slot at once; each waits there for ``together`` of them."""
    at_work, most, lock, meeting = set(), [], threading.Lock(), threading.Barrier(together)

    def work(name):
        with concurrency_slot(), concurrency_slot():  # a thread that has a slot needs no other
            with lock:
                at_work.add(name)
                most.append(len(at_work))
            meeting.wait(300)
            with lock:
                at_work.discard(name)

    with ThreadPoolExecutor(number) as threads:
        list(threads.map(work, range(number)))
    assert len(most) == number  # every thread had a slot
    return max(most)


def test_as_many_are_at_work_as_there_are_slots(monkeypatch, tmp_path):
    monkeypatch.setenv(CONCURRENCY_LIMIT, f"2:{tmp_path}")
    assert most_at_work(6, together=2) == 2


def test_a_process_that_dies_frees_its_slot(monkeypatch, tmp_path):
    def die_in_slot():
        with concurrency_slot():
            os._exit(1)

    monkeypatch.setenv(CONCURRENCY_LIMIT, f"1:{tmp_path}")
    for _ in range(2):
        process = multiprocessing.get_context("fork").Process(target=die_in_slot)
        process.start()
        process.join(300)
        assert process.exitcode == 1


@pytest.fixture
def created(monkeypatch):
    monkeypatch.setattr(shared_machine, "_events", {})
    shared_machine.create_wake_ups(["Alder", "Birch"])


def is_woken(site):
    waiting = select.poll()
    waiting.register(shared_machine._events[site], select.POLLIN)
    return bool(waiting.poll(0))


def test_a_site_that_was_woken_before_sleeps_no_more_and_only_once(created):
    shared_machine.wake_up(["Alder", "a site of another machine"])
    shared_machine.wake_up(["Alder"])
    assert (is_woken("Alder"), is_woken("Birch")) == (True, False)
    shared_machine.wait_for_wake_up("Alder", 3600)
    assert not is_woken("Alder")
    shared_machine.wait_for_wake_up("Alder", 0.01)  # sleeps on, at most so long
    shared_machine.wake_up()
    assert is_woken("Birch")


def test_a_forked_process_is_woken(created):
    process = multiprocessing.get_context("fork").Process(target=shared_machine.wait_for_wake_up, args=("Birch", 3600))
    process.start()
    shared_machine.wake_up(["Birch"])
    process.join(300)
    assert process.exitcode == 0


@pytest.mark.slow
def test_a_simulation_ends_with_the_command_that_began_it(options, processes_of, wait_for, scripts, tmp_path):
    run = tmp_path / "run"
    words = [str(word) for word in options(engine="sim", rounds=200)]
    command = subprocess.Popen([scripts / "fedmerit", "run", "--out", run, *words], start_new_session=True)
    ledger = run / "ledger.jsonl"
    wait_for(lambda: ledger.exists() and ledger.read_text().count("\n") >= 1, 600)
    assert len(processes_of(run)) > 2
    command.kill()
    command.wait()
    wait_for(lambda: processes_of(run) == [], 60)
