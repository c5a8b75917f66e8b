"""Execute the runs of a study: each in this process, or in parallel by the processes of a dask.distributed cluster.

The cluster is on this machine unless the user names another. A lost process is replaced, and its run continues from the
last complete round: results do not depend on where a run was executed. A failure is returned as a text, so it does not
end the study. Workers on other machines execute with the same software and the same sites: run folders are in a folder
that all machines share; site folders are the worker's own copy if its variable FEDMERIT_SITES (of the server's,
FEDMERIT_SERVER_SITES) names one, else the recorded folder, with the same digests as here.
"""

import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from fedmerit import plugins
from fedmerit.child_processes import python_command
from fedmerit.engines import runs
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import read_json, sha256, write_text
from fedmerit.machine import FREE_SHARE, cores, free_memory, pick_device
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.configuration.run import read_plan
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import open_sites
from fedmerit.site.machine_settings import SERVER_SITES, SITES, assign_devices, configured_device
from fedmerit.trainers.monai.network_checks import count_feature_maps, count_parameters
from fedmerit.trainers.monai.prediction import EVALUATION_BATCH, GPU_BATCH
from fedmerit.trainers.monai.samples import build_samples
from fedmerit.trainers.privacy_budget import steps_per_round
from fedmerit.trust import TRUST, require_place
from fedmerit.version import PACKAGES, install_advice
from fedmerit_evaluation.studies.run_processes import begin_processes

if TYPE_CHECKING:  # it takes a second to import
    from distributed import Client, Future


BASE_MEMORY = 0.4e9  # bytes of a process with PyTorch and MONAI
GPU_CONTEXT = 0.6e9  # bytes of a GPU that a process takes before its first tensor
CONTROL = "nvidia-cuda-mps-control"  # the program of NVIDIA's Multi-Process Service (MPS)
SERVICE = PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"  # variables by which processes find it
PROBE = "import torch; torch.zeros(1, device='cuda')"
MPS_TIMEOUT = 120.0  # seconds, of importing PyTorch beside other work
log = logging.getLogger(__name__)


def has_own_processes(folder: Path) -> bool:
    """Return whether the sites of a run have processes of their own, which take the machine's cores."""
    info = read_run(folder)
    return info["engine"] != "local" or "script" in info


def choose_worker_count(folder: Path) -> int:
    """Return the number of concurrent runs such as that of ``folder`` on this machine.

    It follows from its cores and free memory, and the free memory of the GPUs of the run's sites.
    """
    if has_own_processes(folder):
        return 1
    info = read_run(folder)
    rooms = [FREE_SHARE * free_memory() / estimate_memory(folder)]
    rooms += [FREE_SHARE * torch.cuda.mem_get_info(gpu)[0] / estimate_gpu_memory(folder) for gpu in _gpus(folder)]
    return max(1, min(cores() // (info["threads"] or 1), *map(int, rooms)))


def estimate_memory(folder: Path) -> float:
    """Estimate the bytes of the process of a run: models of all sites, one batch of feature maps."""
    parameters, maps, sites = _sizes(folder)
    return float(BASE_MEMORY + 4.0 * ((5 * sites + 5) * parameters + maps))


def estimate_gpu_memory(folder: Path) -> float:
    """Estimate the bytes of a GPU for the process of a run: every site's network, the training of one of them."""
    parameters, maps, sites = _sizes(folder, GPU_BATCH)
    return float(GPU_CONTEXT + 4.0 * ((sites + 5) * parameters + maps))


def _sizes(folder: Path, evaluated: int = EVALUATION_BATCH) -> tuple[int, float, int]:
    """Return the parameters of a run's network, the numbers in the feature maps of one batch, and the sites."""
    info = read_run(folder)
    config = read_plan(folder)
    return count_parameters(config), count_feature_maps(config, info["image_size"], evaluated), len(info["sites"])


def _gpus(folder: Path) -> list[torch.device]:
    info = read_run(folder)
    setting = assign_devices(info["device"], info["sites"])
    devices = {pick_device(configured_device(site, setting), site) for site in info["sites"]}
    return sorted((device for device in devices if device.type == "cuda"), key=str)


def count_training_images(folder: Path) -> int:
    """Count the training images of a run over sites, rounds and steps: its time is proportional to this."""
    training = read_plan(folder).training
    if training.steps:
        return count_steps(folder) * training.batch_size
    return read_plan(folder).rounds * sum(_count_samples(folder)) * training.epochs


def count_steps(folder: Path) -> int:
    """Count the steps of a run over sites and rounds."""
    config = read_plan(folder)
    return config.rounds * sum(steps_per_round(samples, config.training) for samples in _count_samples(folder))


def _count_samples(folder: Path) -> list[int]:
    """Return the number of training samples of each site of a run."""
    info, patch = read_run(folder), read_plan(folder).network.patch
    sites = open_sites(require_place(info["sites_folder"], folder), info["sites"], info["fold"])
    return [len(build_samples(site.cases("training"), patch)) for site in sites]


Execute = Callable[..., None]  # with the arguments of `fedmerit.engines.runs.execute`
After = Callable[[Path, Any], None]  # of a run folder, and the folder of its sites here, or None


class Places(NamedTuple):
    """The current folders of sites on this machine; None: those in run.json."""

    sites: Path | None = None
    server_sites: Path | None = None


AS_RECORDED = Places()


def execute_one(
    folder: Path,
    on_round: Callable[[Mapping[str, Any]], None],
    after: After | None = None,
    threads: int | None = None,
    places: Places = AS_RECORDED,
    execute: Execute | None = None,
) -> str | None:
    """Execute a run from its last complete round.

    Args:
        threads: concurrent sites; None: as created.
        execute: the function that executes the run; None: `fedmerit.engines.runs.execute`.

    Returns:
        Why it failed, or None. Errors other than `RunFailed` leave a traceback in ``failed.log`` of the run folder.
    """
    try:
        (execute or runs.execute)(folder, on_round, threads, *places)
        if after is not None:
            recorded = read_run(folder).get("sites_folder")
            after(folder, places.sites or (Path(recorded) if recorded else None))
    except (BadInput, RunFailed) as error:
        return str(error)
    except Exception as error:  # such as a GPU out of memory: it must not end the other runs
        file = folder / "failed.log"
        write_text(file, traceback.format_exc())
        return f"{type(error).__name__}: {error}\nlog: {file}"
    return None


Digests = Mapping[str, str]  # by site


@dataclass(frozen=True)
class Seen:
    """A description of what a worker has to find of a run."""

    run: str  # SHA-256 of run.json
    sites: tuple[Path, Digests]  # their folder here, and their digests
    server_sites: tuple[Path, Digests] | None
    software: Mapping[str, str]


def describe_local_view(folder: Path, places: Places = AS_RECORDED) -> Seen:
    """Describe a run as seen on this machine, with its sites in these places."""
    info = read_run(folder)
    sites, own = places.sites or info["sites_folder"], places.server_sites or info["server_sites"]
    return Seen(sha256(folder / "run.json"), _seen(sites), _seen(own) if own else None, _software())


def _seen(place: Path | str) -> tuple[Path, Digests]:
    place = Path(place).resolve()
    return place, _digests(place)


def find(folder: Path, seen: Seen) -> Places:
    """Find the folders of a run's sites on this machine, and of the server's own if it has any.

    Raises:
        BadInput: other software, so results would differ; or the run folder is not shared with this machine, or no
            folder here holds the same sites.
    """
    here = _software()
    if other := [
        f"{name} is {here[name]} there, not {known}" for name, known in seen.software.items() if here[name] != known
    ]:
        raise BadInput(f"{'; '.join(other)}: results would differ; install the same on all machines")
    if not (folder / "run.json").is_file() or sha256(folder / "run.json") != seen.run:
        raise BadInput(f"{folder}: is not the same here as where it was made; choose an --out that all machines share")
    own = seen.server_sites and _find(SERVER_SITES, *seen.server_sites)
    return Places(_find(SITES, *seen.sites), own)


def _find(variable: str, stated: Path, digests: Digests) -> Path:
    places = [*filter(None, [os.environ.get(variable)]), str(stated)]
    for place in map(Path, places):
        if place.is_dir() and _digests(place) == digests:
            for name, digest in digests.items():
                _require_arrays(place / name, digest)
            return place
    raise BadInput(
        f"{' and '.join(places)}: not the sites {', '.join(digests)} of the study; share their folder, "
        f"or copy it and name the copy in {variable} of the worker"
    )


def _digests(root: Path) -> dict[str, str]:
    return {site.name: site.digest for site in open_sites(root)}


@cache
def _require_arrays(site: Path, digest: str) -> None:
    """Raise `BadInput` if an array differs from site.json; read once per process and digest."""
    for name, known in read_json(site / "site.json").get("checksums", {}).items():
        if not (site / name).is_file() or sha256(site / name) != known:
            raise BadInput(f"{site / name}: differs from site.json; copy the site folder again")


@cache
def _software() -> dict[str, str]:
    """Return what the bits of a result depend on, apart from the run."""
    gpus = sorted({torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())})
    return {
        **{name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "GPU": ", ".join(gpus) or "none",
    }


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
    """A pool of processes that execute runs; they start when first needed and stay until `close`.

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
        self._shared = ExitStack()  # of GPUs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def require_used_by(self, asked: RunOptions) -> None:
        """Raise `BadInput` if a number or a cluster is given and the sites of the runs have processes of their own."""
        if asked.has_own_processes and (self.number is not None or self.cluster is not None):
            raise BadInput(
                "--jobs, --cluster: runs on NVFlare, or with a script, are executed one by one on this machine; use "
                "--engine local and prepared sites"
            )

    def number_for(self, folder: Path, runs: int) -> int:
        """Return the number of concurrent runs, of ``runs`` runs such as that of ``folder``."""
        if self.cluster is None or self.cluster == SLURM:
            return max(1, min(self.number or choose_worker_count(folder), runs))
        rooms = int(sum(self.client(folder, runs).nthreads().values()))
        return max(1, min(self.number or rooms, rooms, runs))

    def client(self, folder: Path, runs: int) -> "Client":
        """Return the connection to the cluster, which starts for runs such as that of ``folder`` if necessary.

        Raises:
            BadInput: nothing answers at the address, or dask-jobqueue is not installed.
        """
        if self._client is None:
            import dask
            from distributed import Client

            dask.config.set(SETTINGS)
            if self.cluster is None:
                if _gpus(folder):
                    self._shared.enter_context(shared_gpus())
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
        self._shared.close()


def execute_all(
    folders: Sequence[Path],
    workers: Workers,
    on_end: OnEnd = lambda folder, error: None,
    on_round: OnRound = lambda folder, record: None,
    after: After | None = None,
    threads: int | None = 1,
    places: Places = AS_RECORDED,
    execute: Execute | None = None,
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
        execute: the function of a module that executes a run; None: `fedmerit.engines.runs.execute`.

    Returns:
        The runs that failed, and why.
    """
    if not folders:
        return {}
    number = workers.number_for(folders[0], len(folders))
    if number == 1 and workers.cluster is None:
        return execute_in_turn(folders, on_end, on_round, after, threads, places, execute)
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
                found = places if workers.cluster is None else describe_local_view(folder, places)
                parts = plugins.scripts(), os.environ.get(TRUST, "")
                running[folder] = client.submit(
                    _work, absolute[folder], after, threads, found, parts, execute, pure=False
                )
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
    execute: Execute | None = None,
) -> dict[Path, str]:
    """Execute the runs one after the other in this process; for engines that start their own processes, such as sim."""
    failed: dict[Path, str] = {}
    for folder in folders:
        fault = execute_one(folder, partial(on_round, folder), after, threads, places, execute)
        if fault:
            failed[folder] = fault
        on_end(folder, fault)
    return failed


def _work(
    folder: Path,
    after: After | None,
    threads: int | None,
    images: Places | Seen,
    parts: tuple[list[str], str],
    execute: Execute | None,
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
        places = images if isinstance(images, Places) else find(folder, images)
    except BadInput as error:
        return f"worker {worker.address}: {error}"
    return execute_one(folder, tell, after, threads, places, execute)


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


@contextmanager
def shared_gpus() -> Iterator[bool]:
    """Have processes that begin in here share GPUs by NVIDIA's MPS, where it can be started; yields whether they do.

    Without it a GPU gives each process slices of time, in which a small network leaves most of it idle. A service of
    the user's, which `PIPES` names, stays; one of ours ends with this context.
    """
    if PIPES in os.environ:
        yield True
        return
    control = shutil.which(CONTROL)
    if control is None:
        yield False
        return
    folder = tempfile.mkdtemp(prefix="mps-")
    os.environ |= dict.fromkeys(SERVICE, folder)
    fault = _begin_mps(control)
    if fault:
        log.warning("GPUs are shared in turn, as MPS does not start: %.200s", fault)
        _end_mps(control, folder)
        yield False
        return
    try:
        yield True
    finally:
        _end_mps(control, folder)


def _begin_mps(control: str) -> str:
    """Start the service, and a process that computes by it; why that failed, or an empty text."""
    for command in ([control, "-d"], python_command("-c", PROBE)):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MPS_TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode:
            return (done.stderr or done.stdout or f"exit code {done.returncode}").strip().splitlines()[-1]
    return ""


def _end_mps(control: str, folder: str) -> None:
    try:
        subprocess.run([control], input="quit\n", capture_output=True, text=True, timeout=MPS_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("MPS could not be ended: %s", error)
    for variable in SERVICE:
        os.environ.pop(variable, None)
    shutil.rmtree(folder, ignore_errors=True)


def _embedded(most: int) -> Any:
    """Return a cluster on this machine for up to ``most`` processes with one thread each; none is started yet."""
    from distributed import LocalCluster

    begin_processes()
    return LocalCluster(
        n_workers=0,
        threads_per_worker=1,
        memory_limit=free_memory() // most,
        env={name: os.environ[name] for name in SERVICE if name in os.environ},  # the process forked from has it not
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    )


def _slurm_cluster(folder: Path) -> Any:
    """Return a cluster of Slurm jobs with a worker each, none yet; dask-jobqueue has the settings of the site."""
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise BadInput(f"--cluster slurm: needs dask-jobqueue; {install_advice('slurm')}") from None
    python = shlex.join(python_command())
    return SLURMCluster(cores=1, processes=1, python=python, memory=f"{2 * estimate_memory(folder) / 1e9:.1f}GB")


def _kill(cluster: Any) -> None:
    """End the processes of an embedded cluster without waiting for their rounds."""

    async def kill() -> None:
        for nanny in cluster.workers.values():
            nanny.auto_restart = False
            if nanny.pid is not None:
                await nanny.process.process.kill()

    cluster.sync(kill)


def _dashboard(client: "Client") -> str | None:
    """Return the address of the cluster's dashboard, which needs bokeh at the scheduler."""
    services = client.scheduler_info(n_workers=0).get("services", {})
    there = client.run_on_scheduler(_has_bokeh)
    return str(client.dashboard_link) if "dashboard" in services and there else None


def _has_bokeh() -> bool:
    from importlib.util import find_spec

    return find_spec("bokeh") is not None
