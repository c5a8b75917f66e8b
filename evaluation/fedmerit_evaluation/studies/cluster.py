"""Execute run folders in parallel by the processes of a dask.distributed cluster, or one by one in this process.

The cluster is on this machine unless the user names another. A lost process is replaced, and its run continues from the
last complete round: results do not depend on where a run was executed.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from fedmerit import plugins
from fedmerit.errors import BadInput, RunFailed
from fedmerit.machine import free_memory
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.trust import TRUST
from fedmerit_evaluation.studies import execution
from fedmerit_evaluation.studies.execution import AS_RECORDED, After, Places, choose_worker_count, execute_one
from fedmerit_evaluation.studies.run_processes import begin_processes

if TYPE_CHECKING:  # it takes a second to import
    from distributed import Client, Future

OnEnd = Callable[[Path, str | None], None]
OnRound = Callable[[Path, Mapping[str, Any]], None]

SLURM = "slurm"  # instead of an address
ROUNDS = "fedmerit-rounds"  # topic on which workers report rounds
SETTINGS = {  # of dask, for clusters started here
    "distributed.worker.multiprocessing-method": "forkserver",  # processes start with everything imported
    "distributed.worker.memory.target": False,  # workers have no results to spill
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,  # memory that PyTorch keeps would pause it for ever
    "distributed.worker.memory.terminate": 0.95,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.tick.interval": "500ms",  # other work of a worker slows its run
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "1s",
}


class Workers:
    """Processes that execute runs; they start when first needed and stay until `close`.

    Args:
        number: concurrent runs; None: by cores and memory, or the size of the cluster.
        cluster: address of a dask scheduler, or ``slurm``; None: processes on this machine.
        tell: called with the address of the dashboard, if there is one.
        timeout: seconds to wait for the scheduler.

    Raises:
        BadInput: ``slurm`` without a number.
    """

    def __init__(
        self,
        number: int | None = None,
        cluster: str | None = None,
        tell: Callable[[str], object] = lambda text: None,
        timeout: float = 30,
    ):
        if cluster == SLURM and number is None:
            raise BadInput(
                "--cluster slurm: give the number of Slurm jobs with --jobs; each executes one run at a time"
            )
        self.number, self.cluster, self._tell, self._timeout = number, cluster, tell, timeout
        self._client: Client | None = None
        self._own: Any = None  # the cluster, if it was started here

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def require_used_by(self, asked: RunOptions) -> None:
        """`BadInput` if a number or a cluster is given and the sites of such runs have processes of their own."""
        if asked.has_own_processes and (self.number is not None or self.cluster is not None):
            raise BadInput(
                "--jobs, --cluster: runs on NVFlare, or with a script, are executed one by one on this machine; use "
                "--engine local and prepared sites"
            )

    def number_for(self, folder: Path, runs: int) -> int:
        """The number of concurrent runs, of ``runs`` runs such as that of ``folder``."""
        if self.cluster is None or self.cluster == SLURM:
            return max(1, min(self.number or choose_worker_count(folder), runs))
        rooms = int(sum(self.client(folder, runs).nthreads().values()))
        return max(1, min(self.number or rooms, rooms, runs))

    def client(self, folder: Path, runs: int) -> "Client":
        """The connection to the cluster, which starts for runs such as that of ``folder`` if necessary.

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
                self._client = Client(self._own or self.cluster, timeout=self._timeout)
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
        """End at once what was started here; a cluster of the user stays."""
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

    Errors other than `RunFailed` leave a traceback in ``failed.log`` of the run folder. If only one run fits at a time,
    they run in this process. A script that calls this has to guard its own start by ``if __name__ == "__main__"``,
    since the processes import it.

    Args:
        folders: run folders that `fedmerit.engines.runs.create` made; started in this order.
        on_end: called with every run, and why it failed or None.
        on_round: called with every run's ledger records; from the first again if a process was lost.
        after: called in the run's process after its end; a function of a module.
        threads: concurrent sites in each run; None: as created.

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
                parts = plugins.scripts(), os.environ.get(TRUST, "")
                running[folder] = client.submit(_work, absolute[folder], after, threads, found, parts, pure=False)
                running[folder].add_done_callback(lambda _, ended=folder: heard.put((ended, None)))
            folder, record = heard.get()
            if record is not None:
                on_round(folder, record)
            else:
                if fault := _failure(running.pop(folder)):
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
    """As `execute_all`, one by one in this process: also for runs that start processes of their own (sim)."""
    failed: dict[Path, str] = {}
    for folder in folders:
        fault = execute_one(folder, partial(on_round, folder), after, threads, places)
        if fault:
            failed[folder] = fault
        on_end(folder, fault)
    return failed


def _work(
    folder: Path,
    after: After | None,
    threads: int | None,
    images: Places | execution.Seen,
    parts: tuple[list[str], str],
) -> str | None:
    """Execute a run in a worker of the cluster; find the images first if necessary. Why it failed, or None.

    ``parts``: the scripts that it may import, and what `TRUST` says where the command was given.
    """
    from distributed import get_worker

    worker = get_worker()
    task = worker.state.tasks[worker.get_current_task()]

    def tell(record: Mapping[str, Any]) -> None:
        if task.state == "cancelled":
            raise RunFailed("cancelled; the same command resumes it")
        worker.log_event(ROUNDS, {"run": str(folder), "record": dict(record)})

    plugins.use_scripts(parts[0])
    os.environ[TRUST] = parts[1]
    try:
        places = images if isinstance(images, Places) else execution.find(folder, images)
    except BadInput as error:
        return f"worker {worker.address}: {error}"
    return execute_one(folder, tell, after, threads, places)


def _failure(future: "Future") -> str | None:
    from distributed import KilledWorker

    if future.cancelled():
        return "the cluster is gone; the same command resumes it"
    error = future.exception()
    if isinstance(error, KilledWorker):
        return (
            f"{error.allowed_failures + 1} of its processes died: memory may be too small; the same command resumes, "
            "fewer --jobs give each more memory"
        )
    return f"{type(error).__name__}: {error}" if error is not None else future.result()


def _embedded(most: int) -> Any:
    """A cluster on this machine for up to ``most`` processes with one thread each; none is started yet."""
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
    """Slurm jobs with a worker each, none yet; partition, account and the like are settings of dask-jobqueue."""
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise BadInput("--cluster slurm: needs dask-jobqueue; `pip install 'fedmerit[slurm]'`") from None
    return SLURMCluster(cores=1, processes=1, memory=f"{2 * execution.estimate_memory(folder) / 1e9:.1f}GB")


def _kill(cluster: Any) -> None:
    """End the processes of an embedded cluster without waiting for their rounds."""

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
