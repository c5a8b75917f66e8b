"""The engines sim and poc: one job on NVFlare's simulator, or on its PocEnv, in a program of its own."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmerit.engines.nvflare.concurrency_limit import CONCURRENCY_LIMIT
from fedmerit.engines.nvflare.program import execute_program
from fedmerit.machine import free_memory
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.run_info import read_run
from fedmerit.site import machine_settings
from fedmerit.trainers.factory import estimate_model_memory

SITE_MEMORY = 0.13e9  # bytes of a site's process beyond what it shares with the others, whatever the network
WAITING = 18  # vectors of the network's size that it holds besides; measured with 0.5 to 29 million parameters
FREE_SHARE = 0.8  # of what is free, to count on
NO_PROXY = ("no_grpc_proxy", "no_proxy")  # variables by which gRPC reaches a host directly


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
    workspace = run / "nvflare"
    here = {
        machine_settings.SITES: str(root),
        machine_settings.DEVICES: devices,
        machine_settings.SERVER_SITES: server_sites or "",  # run.json decides, not this process's environment
    }
    if threads < len(sites) and estimate_memory(config, run, len(sites), threads) <= FREE_SHARE * free_memory():
        workspace.mkdir(parents=True, exist_ok=True)
        here[CONCURRENCY_LIMIT], threads = f"{threads}:{workspace.resolve()}", len(sites)
    arguments = [str(threads), *sites]
    execute_program(run, config.rounds, program, arguments, here, on_round, lock)


def run_poc(
    config: RunConfiguration,
    sites: Sequence[str],
    root: Path,
    run: Path,
    devices: str,
    on_round: Callable[[Mapping[str, Any]], None],
    lock: int,
    server_sites: str | None = None,
) -> None:
    """Run, or resume, ``run`` on a federation of processes over mutual TLS that is made for it and ended afterwards.

    The arguments are those of `run_simulator`. ``run/nvflare`` keeps the federation.
    """
    here = {
        machine_settings.SITES: str(root.resolve()),
        machine_settings.DEVICES: devices,
        machine_settings.SERVER_SITES: server_sites or "",
        **dict.fromkeys(NO_PROXY, ",".join(filter(None, [os.environ.get("no_proxy"), "localhost"]))),
    }
    execute_program(run, config.rounds, "fedmerit.engines.nvflare.poc", sites, here, on_round, lock)


def estimate_memory(config: RunConfiguration, run: Path, sites: int, at_work: int) -> float:
    """Bytes that processes of ``sites`` take together, estimated; of those at work a message of n + 1 models, twice."""
    vector, maps = estimate_model_memory(config, read_run(run)["image_size"])
    return sites * (SITE_MEMORY + WAITING * vector) + at_work * (2 * (sites + 1) * vector + maps)
