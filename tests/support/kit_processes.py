"""Start and end the processes of startup kits, by their own scripts.

This file as a program is the guard: it reads a folder, and ends everything that runs from kits below it as soon as its
parent closes its standard input, or dies.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from fedmerit_deploy.processes import running_processes

LEFT_BY_NVFLARE = ("pid.fl", "daemon_pid.fl", "shutdown.fl", "restart.fl")
TIMEOUT_SECONDS = 5.0  # seconds from SIGTERM to SIGKILL


def start(kit: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a kit's startup/start.sh, with further variables; its output goes to ``start.log`` in the kit."""
    for name in LEFT_BY_NVFLARE:  # of processes that were killed: the script would take another's for its own
        (kit / name).unlink(missing_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # it says python3
    with (kit / "start.log").open("ab") as log:
        subprocess.run(
            ["bash", str(kit.resolve() / "startup" / "start.sh")],
            env=os.environ | {"PATH": path} | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            check=True,
        )


def end(folder: Path, signal_first: signal.Signals = signal.SIGTERM) -> None:
    """End every process at work from kits in, or below, ``folder``, the scripts that would restart them first."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while family := running_processes(folder):
        sent = signal_first if time.monotonic() < deadline else signal.SIGKILL
        for process in sorted(family, key=_is_python):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL if not _is_python(process) else sent)
        psutil.wait_procs(family, timeout=1)


def _is_python(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("python")
    except psutil.Error:
        return True


@contextmanager
def end_processes_on_exit(folder: Path) -> Iterator[None]:
    """Let processes run from kits below ``folder``; all end after the block, even if this process is killed."""
    guard = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, start_new_session=True, text=True)
    assert guard.stdin
    print(folder.resolve(), file=guard.stdin, flush=True)
    try:
        yield
    finally:
        guard.communicate()


if __name__ == "__main__":
    kits = Path(sys.stdin.readline().rstrip("\n"))
    sys.stdin.read()
    end(kits)


def wait_for_sites(opened: Any, sites: Sequence[str], seconds: float) -> None:
    """Until all sites are connected, as an admin's session sees it."""
    from fedmerit_deploy import session  # the guard starts faster without

    deadline = time.monotonic() + seconds
    while lacking := set(sites) - set(session.connected(opened)):
        assert time.monotonic() < deadline, f"{', '.join(sorted(lacking))}: not connected within {seconds:g} seconds"
        time.sleep(0.5)
