"""The engines sim and poc: one job on NVFlare's simulator, or on its PocEnv, as a program of its own.

The program is followed by the ledger of the run, and ends with the process that began it.
"""

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

from fedmerit.child_processes import NO_PROXY, child_environment, python_command
from fedmerit.engines.engine import OpenRun
from fedmerit.engines.nvflare.shared_machine import CONCURRENCY_LIMIT
from fedmerit.engines.site_errors import describe_errors, read_errors, warn_of_errors
from fedmerit.errors import RunFailed
from fedmerit.evidence.ledger import Ledger
from fedmerit.machine import FREE_SHARE, free_memory
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.run_info import read_run
from fedmerit.server.checkpoint import is_finished
from fedmerit.site import machine_settings
from fedmerit.trainers.factory import estimate_model_memory

POLL = 0.3  # seconds between looks at the ledger
TIMEOUT_SECONDS = 10.0  # seconds from SIGTERM to SIGKILL
FAULT = re.compile(r"ERROR|Error:|(BadInput|RunFailed|Exception):")  # the last: of this package
PROCESS_TAG = "FEDMERIT_PROGRAM"  # variable by which all processes of one program are known
SITE_MEMORY = 0.13e9  # bytes of a site's process beyond what it shares with the others, whatever the network
WAITING = 18  # vectors of the network's size that it holds besides; measured with 0.5 to 29 million parameters


def run_simulator(run: OpenRun) -> None:
    """Carry out a run on NVFlare's simulator.

    Each site has a process, if memory allows; else NVFlare starts a new one for every task.

    Raises:
        RunFailed: the simulator ended before the run did; judged by the run folder, not by its exit code.
    """
    names, here, workspace = run.sites.names, run.sites.environment(), run.folder / "nvflare"
    threads = run.sites.count_processes(run.config, run.threads)
    needed = estimate_memory(run.config, run.folder, len(names), threads) if threads < len(names) else 0.0
    if threads < len(names) and needed <= FREE_SHARE * free_memory():
        workspace.mkdir(parents=True, exist_ok=True)
        here[CONCURRENCY_LIMIT], threads = f"{threads}:{workspace.resolve()}", len(names)
    execute_program(run, run.laboratory.simulator, [str(threads), *names], here)


def run_poc(run: OpenRun) -> None:
    """Carry out a run on a federation of processes over mutual TLS, which is made for it and ended afterwards.

    Raises:
        RunFailed: the job ended before the run did; judged by the run folder.
    """
    direct = dict.fromkeys(NO_PROXY, ",".join(filter(None, [os.environ.get("no_proxy"), "localhost"])))
    execute_program(run, "fedmerit.engines.nvflare.poc", run.sites.names, run.sites.environment() | direct)


def estimate_memory(config: RunConfiguration, run: Path, sites: int, at_work: int) -> float:
    """Estimate the bytes that processes of ``sites`` take together; those at work hold n + 1 models twice."""
    vector, maps = estimate_model_memory(config, read_run(run)["image_size"])
    return sites * (SITE_MEMORY + WAITING * vector) + at_work * (2 * (sites + 1) * vector + maps)


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
