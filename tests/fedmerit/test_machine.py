"""Cores and memory that a process may use, the processes that workers are forked from."""

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from fedmerit import machine
from fedmerit.files import write_text

GIB = 1024**3


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A machine of 8 cores and 16 GiB; called with the process's groups and the files below them."""
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * GIB))

    def make(own, files):
        write_text(tmp_path / "own", own)
        for name, text in files.items():
            write_text(tmp_path / "cgroup" / name, f"{text}\n")

    return make


def test_without_groups_the_whole_machine(groups):
    assert (machine.cores(), machine.free_memory()) == (8, 16 * GIB)
    groups("0::/\n", {})
    assert (machine.cores(), machine.free_memory()) == (8, 16 * GIB)


def test_a_system_that_knows_no_affinity(groups, monkeypatch):
    """Such as macOS."""
    monkeypatch.delattr(os, "sched_getaffinity")
    for known, expected in ((6, 6), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda known=known: known)
        assert machine.cores() == expected


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 8), ("300000 100000", 3), ("350000 100000", 3), ("50000 100000", 1), ("3200000 100000", 8)],
)
def test_cores_of_version_2(groups, quota, expected):
    groups("0::/\n", {"cpu.max": quota})
    assert machine.cores() == expected


def test_every_group_around_limits(groups):
    groups(
        "0::/slice/pod/box\n",
        {
            "slice/cpu.max": "200000 100000",
            "slice/pod/cpu.max": "max 100000",
            "slice/pod/box/cpu.max": "400000 100000",
            "slice/pod/memory.max": str(4 * GIB),
            "slice/pod/memory.current": str(3 * GIB),
            "slice/pod/memory.stat": f"anon 1\nfile 2\ninactive_file {GIB}",
            "slice/pod/box/memory.max": "max",
            "slice/pod/box/memory.current": str(GIB),
        },
    )
    assert (machine.cores(), machine.free_memory()) == (2, 2 * GIB)


@pytest.mark.parametrize("inside", [True, False], ids=["as the host has it", "mounted as its own"])
def test_version_1(groups, inside):
    below = "docker/box/" if inside else ""
    groups(
        "11:memory:/docker/box\n3:cpu,cpuacct:/docker/box\n2:freezer:/\n1:name=systemd:/docker/box\n",
        {
            f"cpu/{below}cpu.cfs_quota_us": "150000",
            f"cpu/{below}cpu.cfs_period_us": "50000",
            f"memory/{below}memory.limit_in_bytes": str(2 * GIB),
            f"memory/{below}memory.usage_in_bytes": str(3 * GIB // 2),
            f"memory/{below}memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB // 4}",
        },
    )
    assert (machine.cores(), machine.free_memory()) == (3, 3 * GIB // 4)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library keeps nothing to give back")
def test_what_is_free_between_what_is_in_use_goes_back_to_the_system():
    def own_memory():
        return psutil.Process().memory_full_info().uss

    last = [bytes(64 * 1024) for _ in range(2000)].pop()  # keeps the system from having those before it
    before = own_memory()
    machine.give_back_memory()
    assert len(last) == 64 * 1024
    assert own_memory() < before - 60 * 1024**2


@pytest.mark.parametrize(
    ("said", "has"),
    [("flags : avx512f avx512_bf16", True), ("flags : avx512f", False), ("Features : asimd bf16", True), (None, True)],
)
def test_a_processor_is_known_by_its_instructions(tmp_path, monkeypatch, said, has):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    if said:
        write_text(tmp_path / "cpuinfo", f"processor : 0\n{said}\n")
    assert machine.computes_bfloat16() is has


PROGRAM = """
import signal, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from fedmerit.workers import begin_fork_server

def seen():
    return "colorsys" in sys.modules, signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])

if __name__ == "__main__":
    begin_fork_server(["colorsys"])
    with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
        print(*pool.submit(seen).result(), *seen())
"""


def test_workers_begin_with_what_was_imported_and_blocking_ctrl_c(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    reported = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=300, check=True
    )
    assert reported.stdout.split() == ["True", "True", "False", "False"]
