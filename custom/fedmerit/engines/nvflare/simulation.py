"""The sim engine: one job on NVFlare's simulator, in a process of its own (`simulator.py`), followed by its ledger."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from fedmerit.engines.nvflare.concurrency_limit import CONCURRENCY_LIMIT
from fedmerit.errors import RunFailed
from fedmerit.evidence.ledger import Ledger
from fedmerit.machine import free_memory
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.run_info import read_run
from fedmerit.server.checkpoint import is_finished
from fedmerit.site import machine_settings
from fedmerit.trainers.monai.network_checks import count_feature_maps, count_parameters

POLL = 0.3  # seconds
SITE_MEMORY = 0.13e9  # bytes of a site's process beyond what it shares with the others, whatever the network
WAITING = 18  # vectors of the network's size that it holds besides; measured with 0.5 to 29 million parameters
FREE_SHARE = 0.8  # of what is free, to count on
FAULT = re.compile(r"ERROR|Error:|(BadInput|RunFailed|Exception):")  # the last: of this package
PROCESS_TAG = "FEDMERIT_SIMULATION"  # variable by which all processes of one simulation are known


def run_simulator(
    config: RunConfiguration,
    sites: Sequence[str],
    root: Path,
    run: Path,
    threads: int,
    devices: str,
    on_round: Callable[[Mapping[str, Any]], None],
    lock: int,
    server_sites: str | None = None,
    program: str = "fedmerit.engines.nvflare.simulator",
) -> None:
    """Run, or resume, ``run`` on NVFlare's simulator.

    Args:
        root: the folder of their site folders.
        threads: sites at work at a time. Each site has a process, if memory allows; else a new one for every task.
        devices: setting as `fedmerit.site.machine_settings.configured_device` reads it.
        lock: file descriptor that holds the run folder; the simulator inherits it, and so holds the folder
            even if this process is killed.
        server_sites: folder of the server's own site folders, if it has any.
        program: module of the program, with the arguments of `fedmerit.engines.nvflare.simulator`.

    Raises:
        RunFailed: the simulator ended before the run did; judged by the run folder, not by its exit code.
    """
    follow = Ledger(run / "ledger.jsonl").follower(on_round)
    if not is_finished(run, config.rounds):
        log, workspace = run / "nvflare.log", run / "nvflare"
        mark = uuid4().hex
        here = {
            PROCESS_TAG: mark,
            machine_settings.SITES: str(root),
            machine_settings.RUN: str(run.resolve()),
            machine_settings.DEVICES: devices,
            machine_settings.SERVER_SITES: server_sites or "",  # run.json decides, not this process's environment
        }
        if threads < len(sites) and estimate_memory(config, run, len(sites), threads) <= FREE_SHARE * free_memory():
            workspace.mkdir(parents=True, exist_ok=True)
            here[CONCURRENCY_LIMIT], threads = f"{threads}:{workspace.resolve()}", len(sites)
        command = [sys.executable, "-m", program, str(run), str(workspace), str(threads), *sites]
        with log.open("ab") as output:
            begun = output.tell()
            process = subprocess.Popen(  # which ends when its standard input does, however this process ends
                command,
                env=os.environ | here,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[lock],
            )
        try:
            while process.poll() is None:
                follow()
                time.sleep(POLL)
        finally:
            end_simulation(mark)
            process.communicate()
        if not is_finished(run, config.rounds):
            raise RunFailed(_explain_failure(log, begun, workspace))
    follow()


def estimate_memory(config: RunConfiguration, run: Path, sites: int, at_work: int) -> float:
    """Bytes that processes of ``sites`` take together, estimated; of those at work a message of n + 1 models, twice."""
    vector = 4 * count_parameters(config)
    maps = 4 * count_feature_maps(config, read_run(run)["image_size"])
    return sites * (SITE_MEMORY + WAITING * vector) + at_work * (2 * (sites + 1) * vector + maps)


def end_simulation(mark: str) -> None:
    """End the other processes of a simulation: NVFlare's are in sessions of their own, and may outlive ours."""
    family = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            ours = process.pid != os.getpid() and process.environ().get(PROCESS_TAG) == mark
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                process.terminate()
                family.append(process)
    for process in psutil.wait_procs(family, timeout=10)[1]:
        process.kill()
    psutil.wait_procs(family, timeout=10)


def _explain_failure(log: Path, begun: int, workspace: Path) -> str:
    """By what the log has from byte ``begun`` on: the lines before are of an earlier try."""
    text = log.read_bytes()[begun:].decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    faults = [line for line in lines if FAULT.search(line)]
    last = "\n".join(faults[-5:] or ["no error in its log, which ends with:", *lines[-5:]])
    return f"the simulator ended before the run did:\n{last}\nlogs: {log}, and by site below {workspace}"
