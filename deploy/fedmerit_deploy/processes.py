"""Processes of startup kits on this machine: start them by their own scripts, find them, end them.

``python -m fedmerit_deploy.processes FOLDER`` is the guard: it ends everything that runs from kits below the
folder as soon as its parent closes its standard input, or dies.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

LEFT_BY_NVFLARE = ("pid.fl", "daemon_pid.fl", "shutdown.fl", "restart.fl")
TIMEOUT_SECONDS = 5.0  # seconds from SIGTERM to SIGKILL


def start(kit: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a kit's startup/start.sh; its output goes to ``start.log`` in the kit.

    Args:
        environment: variables beside this process's own.
    """
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


def find_left_over(kit: Path) -> str:
    """What a killed process left in a kit, so that its start script would start nothing; "" if there is nothing.

    The script takes the process whose number is in ``daemon_pid.fl`` for its own, whatever runs under it now.
    """
    file = kit / "daemon_pid.fl"
    try:
        number = int(file.read_text())
    except (OSError, ValueError):
        return ""
    if not psutil.pid_exists(number) or any(process.pid == number for process in running_processes(kit)):
        return ""
    return f"{file}: names process {number}, which is none of this kit: start.sh would start nothing; delete the file"


def running_processes(folder: Path, job_only: bool = False) -> list[psutil.Process]:
    """Every process at work from kits in, or below, ``folder``; with ``job_only`` only those of jobs."""
    root, found = str(folder.resolve()), []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            ours = any(word == root or word.startswith(root + os.sep) for word in words)
            wanted = not job_only or any(word.endswith((".runner_process", ".worker_process")) for word in words)
            # the guard's own command line names the folder too
            if ours and wanted and __name__ not in words and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


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
def end_processes_on_exit(folder: Path, keep: Sequence[int] = ()) -> Iterator[None]:
    """Within, processes may run from kits below ``folder``; all are ended behind it, even if this process is killed.

    Args:
        folder: above the kits.
        keep: file descriptors, such as a lock's, that stay open until all have ended.
    """
    command = [sys.executable, "-m", "fedmerit_deploy.processes", str(folder.resolve())]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=keep, start_new_session=True)
    try:
        yield
    finally:
        guard.communicate()


if __name__ == "__main__":
    __name__ = "fedmerit_deploy.processes"  # as on the command line, by which `running_processes` knows the guard
    sys.stdin.buffer.read()
    end(Path(sys.argv[1]))
