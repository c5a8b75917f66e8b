"""The engines sim and poc: one job on NVFlare's simulator, or on its PocEnv, in a program of its own."""

import os
from pathlib import Path

from fedmerit.engines.engine import OpenRun
from fedmerit.engines.nvflare.program import execute_program
from fedmerit.engines.nvflare.shared_machine import CONCURRENCY_LIMIT
from fedmerit.machine import free_memory
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.run_info import read_run
from fedmerit.trainers.factory import estimate_model_memory

SITE_MEMORY = 0.13e9  # bytes of a site's process beyond what it shares with the others, whatever the network
WAITING = 18  # vectors of the network's size that it holds besides; measured with 0.5 to 29 million parameters
FREE_SHARE = 0.8  # of what is free, to count on
NO_PROXY = ("no_grpc_proxy", "no_proxy")  # variables by which gRPC reaches a host directly


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
