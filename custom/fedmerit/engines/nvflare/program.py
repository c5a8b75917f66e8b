"""A run on NVFlare as a program of its own: followed by its ledger, ended with the process that began it."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil

from fedmerit.child_processes import child_environment, python_command
from fedmerit.engines.engine import OpenRun
from fedmerit.engines.site_errors import describe_errors, read_errors, warn_of_errors
from fedmerit.errors import RunFailed
from fedmerit.evidence.ledger import Ledger
from fedmerit.server.checkpoint import is_finished
from fedmerit.site import machine_settings

POLL = 0.3  # seconds between looks at the ledger
TIMEOUT_SECONDS = 10.0  # seconds from SIGTERM to SIGKILL
FAULT = re.compile(r"ERROR|Error:|(BadInput|RunFailed|Exception):")  # the last: of this package
PROCESS_TAG = "FEDMERIT_PROGRAM"  # variable by which all processes of one program are known


def execute_program(run: OpenRun, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Have a program train, or go on with, a run, and end all processes of the program afterwards.

    Args:
        run: NVFlare works in the folder ``nvflare`` of the run. The program inherits the lock, and so holds the run
            folder even if this process is killed.
        module: the program, as ``python -m`` names it.
        arguments: what the program is given after the run folder and NVFlare's folder.
        environment: variables that the program and its processes get beside those of this process.

    Raises:
        RunFailed: the program ended before the run did; judged by the run folder, not by the exit code.
    """
    folder, rounds = run.folder, run.config.rounds
    follow = Ledger(folder / "ledger.jsonl").follower(run.on_round)
    if not is_finished(folder, rounds):
        log, workspace, tag = folder / "nvflare.log", folder / "nvflare", uuid4().hex
        here = {PROCESS_TAG: tag, machine_settings.RUN: str(folder.resolve()), **environment}
        began = time.time()
        with log.open("ab") as output:
            begin = output.tell()
            process = subprocess.Popen(  # the program ends when its standard input does, however this process ends
                python_command("-m", module, str(folder), str(workspace), *arguments),
                env=child_environment(here),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[run.lock],
            )
        try:
            while process.poll() is None:
                follow()
                time.sleep(POLL)
        finally:
            end_processes(tag)
            process.communicate()
        if not is_finished(folder, rounds):
            raise RunFailed(_explain_failure(log, begin, folder, began))
        warn_of_errors(folder, began)
    follow()


def end_with_parent_command() -> None:
    """Have this program, and all its processes, end when the process that began it does."""
    if PROCESS_TAG in os.environ:
        threading.Thread(target=_end_at_end_of_input, daemon=True).start()


def _end_at_end_of_input() -> None:
    while os.read(sys.stdin.fileno(), 1):  # ends when the other end of the pipe is closed, even by SIGKILL
        pass
    end_processes(os.environ[PROCESS_TAG])
    os._exit(1)


def end_processes(tag: str) -> None:
    """End the other processes of a program: NVFlare's are in sessions of their own, and may outlive the program."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while family := _find_processes(tag):
        for process in sorted(family, key=_is_python):  # first the scripts, which would start their programs again
            with suppress(psutil.Error):
                process.terminate() if _is_python(process) and time.monotonic() < deadline else process.kill()
        psutil.wait_procs(family, timeout=1)


def _find_processes(tag: str) -> list[psutil.Process]:
    family = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_tagged = process.pid != os.getpid() and process.environ().get(PROCESS_TAG) == tag
            if is_tagged and process.status() != psutil.STATUS_ZOMBIE:
                family.append(process)
    return family


def _is_python(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("python")
    except psutil.Error:
        return True


def _explain_failure(log: Path, begin: int, run: Path, began: float) -> str:
    """Return what the sites' errors and the log say since ``began``, byte ``begin`` on: before was an earlier try."""
    text = log.read_bytes()[begin:].decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    faults = [line for line in lines if FAULT.search(line)]
    errors = describe_errors(read_errors(run, began))
    last = "\n".join([*faults[-5:], *errors] or ["no error in its log, which ends with:", *lines[-5:]])
    return f"NVFlare ended before the run did:\n{last}\nlogs: {log}, and by site below {run / 'nvflare'}"
