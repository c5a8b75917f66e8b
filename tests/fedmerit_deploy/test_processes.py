"""Processes of kits: started by the kit's own script, found by its folder, ended with all that belongs to it."""

import subprocess
from contextlib import suppress

import pytest

from fedmerit_deploy import processes
from fedmerit_deploy.processes import end, end_processes_on_exit, running_processes, start

SLEEP = "import time; time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); {SLEEP}"


@pytest.fixture
def kit(tmp_path):
    """A kit of two processes, the second as one of a job; nothing of it is left when the test ends."""
    made = tmp_path / "kits/A"
    script(made, f'python3 -S -c "{SLEEP}" "$PWD/startup" & python3 -S -c "{SLEEP}" "$PWD" a.worker_process &')
    yield made
    end(tmp_path / "kits")


def script(kit, command):
    (kit / "startup").mkdir(parents=True, exist_ok=True)
    (kit / "startup/start.sh").write_text(f'cd "$(dirname "$0")/.."\n{command}\n')


def jobs(found):
    return [process.cmdline()[-1] == "a.worker_process" for process in found]


def test_processes_are_known_by_their_kit(kit, wait_for):
    other = kit.with_name("AB")  # no folder in A
    script(other, f'python3 -S -c "{SLEEP}" "$PWD" &')
    start(kit)
    start(other)
    wait_for(lambda: sorted(jobs(running_processes(kit.parent))) == [False, False, True], 300)
    assert sorted(jobs(running_processes(kit))) == [False, True]
    assert jobs(running_processes(kit, job_only=True)) == [True]
    end(kit)
    assert running_processes(kit) == []
    assert jobs(running_processes(kit.parent)) == [False]


def test_a_script_runs_as_on_a_machine_that_was_just_started(kit):
    """What killed processes left is gone, nobody answers its questions, and all that it says goes into one file."""
    script(kit, 'ls; read -r word || echo "nobody there"; echo "$WORD" >&2')
    for name in ("pid.fl", "daemon_pid.fl", "shutdown.fl", "restart.fl", "kept.fl"):
        (kit / name).touch()
    start(kit, {"WORD": "for the kit"})
    assert (kit / "start.log").read_text().split("\n") == [
        "kept.fl",
        "start.log",
        "startup",
        "nobody there",
        "for the kit",
        "",
    ]
    script(kit, "exit 3")
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        start(kit)


def test_who_does_not_end_when_asked_is_killed(kit, wait_for, monkeypatch):
    monkeypatch.setattr(processes, "TIMEOUT_SECONDS", 0.1)
    script(kit, f'python3 -S -c "{STUBBORN}" "$PWD" &')
    start(kit)
    wait_for(lambda: "ready" in (kit / "start.log").read_text(), 300)
    end(kit)
    assert running_processes(kit) == []


def test_nothing_outlives_its_guard(kit, wait_for):
    with suppress(ZeroDivisionError), end_processes_on_exit(kit.parent):
        start(kit)
        wait_for(lambda: len(running_processes(kit.parent)) == 2, 300)  # the guard itself is none of them
        raise ZeroDivisionError
    assert running_processes(kit.parent) == []
