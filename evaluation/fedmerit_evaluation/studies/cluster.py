"""Run folders executed side by side, by the processes of a dask.distributed cluster, or one by one in this process.

The cluster is one on this machine unless the user names another. A process that is lost is replaced, and the run that
it was at is done again from its last complete round: what a run gives does not depend on where it ran.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from fedmerit import plugins
from fedmerit.errors import BadInput, RunFailed
from fedmerit.machine import free_memory
from fedmerit_evaluation.studies import execution
from fedmerit_evaluation.studies.execution import (
    AS_RECORDED,
    After,
    Places,
    choose_worker_count,
    estimate_memory,
    execute_one,
)
from fedmerit_evaluation.studies.run_processes import begin_processes

if TYPE_CHECKING:  # it takes a second to import
    from distributed import Client, Future

OnEnd = Callable[[Path, str | None], None]
OnRound = Callable[[Path, Mapping[str, Any]], None]

SLURM = "slurm"  # in the place of an address
ROUNDS = "fedmerit-rounds"  # topic under which workers tell of rounds
SETTINGS = {  # of dask's own, for what is begun here
    "distributed.worker.multiprocessing-method": "forkserver",  # processes begin with everything imported
    "distributed.worker.memory.target": False,  # workers hold no results that could be spilled
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,  # what PyTorch keeps would hold it up for ever
    "distributed.worker.memory.terminate": 0.95,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.tick.interval": "500ms",  # whatever a worker does besides takes from the run it is at
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "1s",
}


class Workers:
    """Processes that execute runs, begun when they are first needed and kept until `close`.

    Args:
        number: runs at a time; None: by cores and memory, or as many as the cluster has room for.
        cluster: address of a dask scheduler, or ``slurm``; None: processes on this machine.
        tell: called with the address of the dashboard, where there is one.
        patience: seconds to wait for the scheduler at the address.

    Raises:
        BadInput: ``slurm`` without a number.
    """

    def __init__(
        self,
        number: int | None = None,
        cluster: str | None = None,
        tell: Callable[[str], object] = lambda text: None,
        patience: float = 30,
    ):
        if cluster == SLURM and number is None:
            raise BadInput("--cluster slurm: say with --jobs how many jobs to ask for, each with one run at a time")
        self.number, self.cluster, self._tell, self._patience = number, cluster, tell, patience
        self._client: Client | None = None
        self._own: Any = None  # the cluster where it was begun here

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def require_used_by(self, engine: str) -> None:
        """`BadInput` where a number or a cluster was asked for, and runs of ``engine`` have processes of their own."""
        if engine != "local" and (self.number is not None or self.cluster is not None):
            raise BadInput("--jobs, --cluster: runs on NVFlare go one by one on this machine; take --engine local")

    def number_for(self, folder: Path, runs: int) -> int:
        """How many of so many runs such as that of ``folder`` go side by side."""
        if self.cluster is None or self.cluster == SLURM:
            return max(1, min(self.number or choose_worker_count(folder), runs))
        rooms = int(sum(self.client(folder, runs).nthreads().values()))
        return max(1, min(self.number or rooms, rooms, runs))

    def client(self, folder: Path, runs: int) -> "Client":
        """The connection to the cluster, which is begun for runs such as that of ``folder`` if it is not there.

        Raises:
            BadInput: nothing answers at the address, or dask-jobqueue is not installed.
        """
        if self._client is None:
            import dask
            from distributed import Client

            dask.config.set(SETTINGS)
            if self.cluster is None:
                self._own = _embedded(self.number or choose_worker_count(folder))
            elif self.cluster == SLURM:
                self._own = _slurm_cluster(folder)
            try:
                self._client = Client(self._own or self.cluster, timeout=self._patience)
            except (OSError, ValueError) as error:
                raise BadInput(
                    f"--cluster {self.cluster}: no scheduler answers ({error}); start one with `dask scheduler`, and "
                    "give its address, such as tcp://HOST:8786"
                ) from error
            if link := _dashboard(self._client):
                self._tell(f"dashboard: {link}")
        if self._own is not None:
            self._own.scale(max(self.number_for(folder, runs), len(self._own.plan)))
        return self._client

    def close(self) -> None:
        """End what was begun here, at once; a cluster that was there before stays."""
        client, own, self._client, self._own = self._client, self._own, None, None
        if client is not None:
            client.close()
        if own is not None:
            if self.cluster is None:
                _kill(own)
            own.close()


def execute_all(
    folders: Sequence[Path],
    workers: Workers,
    on_end: OnEnd = lambda folder, error: None,
    on_round: OnRound = lambda folder, record: None,
    after: After | None = None,
    threads: int | None = 1,
    places: Places = AS_RECORDED,
) -> dict[Path, str]:
    """Execute runs from their last complete rounds; one that fails does not stop the others.

    What is no `RunFailed` leaves its traceback in ``failed.log`` of the run folder. Where there is room for one at a
    time, they run in this process. A script that calls this has to guard its own start by
    ``if __name__ == "__main__"``, since the processes import it.

    Args:
        folders: run folders that `fedmerit.engines.runs.create` made; begun in this order.
        workers: that execute them.
        on_end: called with every run, and why it failed or None.
        on_round: called with every run's ledger records; from the first again where a process was lost.
        after: called in the run's process when it has come to its end; a function of a module.
        threads: sites at work at a time in each run; None: as it was created with.
        places: of the site folders of them all.

    Returns:
        The runs that failed, and why.
    """
    if not folders:
        return {}
    number = workers.number_for(folders[0], len(folders))
    if number == 1 and workers.cluster is None:
        return execute_in_turn(folders, on_end, on_round, after, threads, places)
    client = workers.client(folders[0], len(folders))
    heard: SimpleQueue[tuple[Path, Any]] = SimpleQueue()
    absolute = {folder: folder.absolute() for folder in folders}  # workers may be in other working directories
    names = {str(place): folder for folder, place in absolute.items()}

    def hear(event: tuple[float, Any]) -> None:
        if (folder := names.get(event[1]["run"])) is not None:
            heard.put((folder, event[1]["record"]))

    client.subscribe_topic(ROUNDS, hear)
    most = number if workers.cluster is None else workers.number or len(folders)  # more workers may come
    failed, waiting, running = dict[Path, str](), list(reversed(folders)), dict[Path, "Future"]()
    try:
        while waiting or running:
            while waiting and len(running) < most:
                folder = waiting.pop()
                found = places if workers.cluster is None else execution.describe_local_view(folder, places)
                parts = plugins.scripts()
                running[folder] = client.submit(_work, absolute[folder], after, threads, found, parts, pure=False)
                running[folder].add_done_callback(partial(_on_future_done, heard, folder))
            folder, told = heard.get()
            if told is not None:
                on_round(folder, told)
            else:
                if fault := _fault_of(running.pop(folder)):
                    failed[folder] = fault
                on_end(folder, fault)
    finally:
        client.unsubscribe_topic(ROUNDS)
        client.cancel(list(running.values()), force=True)
    return failed


def execute_in_turn(
    folders: Sequence[Path],
    on_end: OnEnd = lambda folder, error: None,
    on_round: OnRound = lambda folder, record: None,
    after: After | None = None,
    threads: int | None = None,
    places: Places = AS_RECORDED,
) -> dict[Path, str]:
    """As `execute_all`, one after the other in this process: also for runs that start processes of their own (sim)."""
    failed: dict[Path, str] = {}
    for folder in folders:
        fault = execute_one(folder, partial(on_round, folder), after, threads, places)
        if fault:
            failed[folder] = fault
        on_end(folder, fault)
    return failed


def _work(
    folder: Path, after: After | None, threads: int | None, images: Places | execution.Seen, parts: list[str]
) -> str | None:
    """Execute a run in a worker of the cluster, which may have to find the images first; why it failed, or None."""
    from distributed import get_worker

    worker = get_worker()
    task = worker.state.tasks[worker.get_current_task()]

    def tell(record: Mapping[str, Any]) -> None:
        if task.state == "cancelled":
            raise RunFailed("nobody waits for it any longer; the same command goes on from there")
        worker.log_event(ROUNDS, {"run": str(folder), "record": dict(record)})

    plugins.use_scripts(parts)
    try:
        places = images if isinstance(images, Places) else execution.find(folder, images)
    except BadInput as error:
        return f"worker {worker.address}: {error}"
    return execute_one(folder, tell, after, threads, places)


def _on_future_done(heard: "SimpleQueue[tuple[Path, Any]]", folder: Path, future: "Future") -> None:
    heard.put((folder, None))


def _fault_of(future: "Future") -> str | None:
    """Why a run failed, or None."""
    from distributed import KilledWorker

    if future.cancelled():
        return "the cluster is gone; the same command goes on from there"
    error = future.exception()
    if isinstance(error, KilledWorker):
        return (
            f"the processes that were at it died, {error.allowed_failures + 1} of them: memory may not be enough; the "
            "same command goes on from there, fewer --jobs leave each more memory"
        )
    return f"{type(error).__name__}: {error}" if error is not None else future.result()


def _embedded(most: int) -> Any:
    """A cluster on this machine of up to so many processes, each with one thread; of none so far."""
    from distributed import LocalCluster

    begin_processes()
    return LocalCluster(
        n_workers=0,
        threads_per_worker=1,
        memory_limit=free_memory() // most,
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    )


def _slurm_cluster(folder: Path) -> Any:
    """Jobs of Slurm with a worker each, none so far; partition, account and the like are dask-jobqueue's settings."""
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise BadInput("--cluster slurm: needs dask-jobqueue; `pip install 'fedmerit[slurm]'`") from None
    return SLURMCluster(cores=1, processes=1, memory=f"{2 * estimate_memory(folder) / 1e9:.1f}GB")


def _kill(cluster: Any) -> None:
    """End the processes of an embedded cluster without waiting for the rounds that they are in."""

    async def kill() -> None:
        for nanny in cluster.workers.values():
            nanny.auto_restart = False
            if nanny.pid is not None:
                await nanny.process.process.kill()

    cluster.sync(kill)


def _dashboard(client: "Client") -> str | None:
    """The address of the cluster's dashboard, which needs bokeh at the scheduler."""
    services = client.scheduler_info(n_workers=0).get("services", {})
    there = client.run_on_scheduler(_has_bokeh)
    return str(client.dashboard_link) if "dashboard" in services and there else None


def _has_bokeh() -> bool:
    from importlib.util import find_spec

    return find_spec("bokeh") is not None
