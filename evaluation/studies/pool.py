"""Run folders executed: side by side, each in a process of its own that is gone when the run ends, or one by one.

Sites' arrays are memory-mapped, so that all processes share one decoded copy of them.
"""

import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from fedmerit.configuration.run import RunConfiguration
from fedmerit.engines import runs
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import write_text
from fedmerit.machine import cores, free_memory
from fedmerit.records.results import read_run
from fedmerit.training.data import Slices, open_sites
from fedmerit.training.networks import build_network
from fedmerit.training.place import device_of, pick_device, spread
from fedmerit.training.prediction import EVALUATION_BATCH
from fedmerit.workers import end_with_parent

OnEnd = Callable[[Path, str | None], None]
OnRound = Callable[[Path, Mapping[str, Any]], None]

BASE_MEMORY = 0.4e9  # bytes of a process that has loaded PyTorch and MONAI
GPU_CONTEXT = 0.6e9  # bytes of a GPU that a process takes before it holds any tensor there
FREE_SHARE = 0.8  # of what is free, to count on
MAPS = 40  # feature maps of the first level's size that training holds per image; measured at widths 16 and 32


def execute_all(
    folders: Sequence[Path],
    workers: int,
    on_end: OnEnd = lambda folder, error: None,
    on_round: OnRound = lambda folder, record: None,
    after: Callable[[Path], None] | None = None,
    threads: int | None = 1,
) -> dict[Path, str]:
    """Execute runs from their last complete rounds; one that fails does not stop the others.

    What is no `RunFailed` leaves its traceback in ``failed.log`` of the run folder. A script that calls this has to
    guard its own start by ``if __name__ == "__main__"``, since the processes import it.

    Args:
        folders: run folders that `fedmerit.engines.runs.create` made; begun in this order.
        workers: runs at a time.
        on_end: called with every run, and why it failed or None.
        on_round: called with every run's ledger records.
        after: called in the run's process when it has come to its end; a function of a module.
        threads: sites at work at a time in each run; None: as it was created with.

    Returns:
        The runs that failed, and why.
    """
    context = multiprocessing.get_context("forkserver")  # a fork of this process would copy its threads' locks
    context.set_forkserver_preload(["evaluation.studies.pool", "fedmerit.engines.local"])
    waiting, running, failed = deque(folders), dict[Connection, tuple[Path, BaseProcess]](), dict[Path, str]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                folder, (ours, theirs) = waiting.popleft(), context.Pipe(duplex=False)
                process: BaseProcess = context.Process(
                    target=_serve, args=(folder, theirs, after, threads), name=folder.name
                )
                with _deaf_to_ctrl_c():
                    process.start()
                theirs.close()
                running[ours] = folder, process
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                folder, process = running[pipe]
                try:
                    told = pipe.recv()
                except (EOFError, OSError):
                    process.join()
                    del running[pipe]
                    pipe.close()
                    if process.exitcode and folder not in failed:
                        failed[folder] = f"its process died ({_fate(process)}); the same command goes on from there"
                    on_end(folder, failed.get(folder))
                else:
                    if isinstance(told, str):
                        failed[folder] = told
                    else:
                        on_round(folder, told)
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()
    return failed


def execute_in_turn(
    folders: Sequence[Path],
    on_end: OnEnd = lambda folder, error: None,
    on_round: OnRound = lambda folder, record: None,
    after: Callable[[Path], None] | None = None,
) -> dict[Path, str]:
    """As `execute_all`, one after the other in this process: for runs that start processes of their own (sim)."""
    failed: dict[Path, str] = {}
    for folder in folders:
        fault = _fault_of(folder, partial(on_round, folder), after, None)
        if fault:
            failed[folder] = fault
        on_end(folder, fault)
    return failed


def workers_for(folder: Path) -> int:
    """How many runs such as that of ``folder`` this machine can train at a time.

    By its cores and free memory, and by the free memory of the GPUs that the run's sites work on.
    """
    config = RunConfiguration.from_dict(read_run(folder)["plan"])
    rooms = [FREE_SHARE * free_memory() / memory_of(folder)]
    rooms += [FREE_SHARE * torch.cuda.mem_get_info(gpu)[0] / gpu_memory_of(folder) for gpu in _gpus(folder)]
    return max(1, min(cores() // config.training.cpu_threads, *map(int, rooms)))


def memory_of(folder: Path) -> float:
    """Bytes that the process of a run needs in the end, estimated: models of all sites, one batch of feature maps."""
    parameters, maps, sites = _sizes(folder)
    return float(BASE_MEMORY + 4.0 * ((5 * sites + 5) * parameters + maps))


def gpu_memory_of(folder: Path) -> float:
    """Bytes of a GPU that the process of a run takes at most: every site's network, the training of one of them."""
    parameters, maps, sites = _sizes(folder)
    return float(GPU_CONTEXT + 4.0 * ((sites + 5) * parameters + maps))


def _sizes(folder: Path) -> tuple[int, float, int]:
    """Parameters of a run's network, numbers in the feature maps of one batch, and sites."""
    info = read_run(folder)
    config = RunConfiguration.from_dict(info["plan"])
    height, width = info["image_size"]
    parameters = sum(parameter.numel() for parameter in build_network(config.network).parameters())
    images = max(config.training.batch_size, EVALUATION_BATCH / 2)  # training holds what evaluation lets go
    return parameters, MAPS * config.network.width * height * width * images, len(info["sites"])


def _gpus(folder: Path) -> list[torch.device]:
    """The GPUs that the sites of a run work on."""
    info = read_run(folder)
    setting = info["device"] or spread(info["sites"], torch.cuda.device_count())
    devices = {pick_device(device_of(site, setting), site) for site in info["sites"]}
    return sorted((device for device in devices if device.type == "cuda"), key=str)


def images_of(folder: Path) -> int:
    """How many training images a run takes in all, over sites, rounds and epochs: what its time goes by."""
    info = read_run(folder)
    config = RunConfiguration.from_dict(info["plan"])
    sites = open_sites(Path(info["sites_folder"]), info["sites"])
    per_round = sum(len(Slices(site.cases("training"))) for site in sites)
    return int(per_round * config.rounds * config.training.epochs)


def _serve(folder: Path, pipe: Connection, after: Callable[[Path], None] | None, threads: int | None) -> None:
    """Execute one run in this process, which ends with the one that began it."""
    end_with_parent()
    try:
        if fault := _fault_of(folder, pipe.send, after, threads):
            pipe.send(fault)
    finally:
        pipe.close()


def _fault_of(
    folder: Path,
    on_round: Callable[[Mapping[str, Any]], None],
    after: Callable[[Path], None] | None,
    threads: int | None,
) -> str | None:
    """Execute a run; why it failed, or None."""
    try:
        runs.execute(folder, on_round, threads)
        if after is not None:
            after(folder)
    except (BadInput, RunFailed) as error:
        return str(error)
    except Exception as error:  # such as a GPU out of memory: it would end a night's work at the first run
        log = folder / "failed.log"
        write_text(log, traceback.format_exc())
        return f"{type(error).__name__}: {error}\nlog: {log}"
    return None


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """What is begun in here never hears Ctrl-C, since it inherits the mask: this process decides when it ends."""
    resource_tracker.ensure_running()  # its start would lift the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fate(process: BaseProcess) -> str:
    code = process.exitcode or 0
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
