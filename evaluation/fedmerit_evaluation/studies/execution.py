"""Execute one run of a study in this process, estimate what it needs of a machine, and find its sites on a worker.

A failure is returned as a text, so it does not end the study. Workers on other machines execute with the same software
and the same sites: run folders are in a folder that all machines share; site folders are the worker's own copy if its
variable FEDMERIT_SITES (of the server's, FEDMERIT_SERVER_SITES) names one, else the recorded folder, with the same
digests as here.
"""

import os
import platform
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedmerit.engines import runs
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import read_json, sha256, write_text
from fedmerit.machine import cores, free_memory
from fedmerit.schema.configuration.description import read_plan
from fedmerit.schema.run_info import read_run
from fedmerit.trainers.monai.data import open_sites
from fedmerit.trainers.monai.machine_settings import SERVER_SITES, SITES, assign_devices, configured_device, pick_device
from fedmerit.trainers.monai.network_checks import count_feature_maps, count_parameters
from fedmerit.trainers.monai.patches import build_samples
from fedmerit.trainers.monai.prediction import EVALUATION_BATCH, GPU_BATCH
from fedmerit.trust import require_place
from fedmerit.version import PACKAGES

BASE_MEMORY = 0.4e9  # bytes of a process with PyTorch and MONAI
GPU_CONTEXT = 0.6e9  # bytes of a GPU that a process takes before its first tensor
FREE_SHARE = 0.8  # of free memory to use


def has_own_processes(folder: Path) -> bool:
    """Whether the sites of a run have processes of their own, which take the machine's cores: it runs by itself."""
    info = read_run(folder)
    return info["engine"] != "local" or "script" in info


def choose_worker_count(folder: Path) -> int:
    """The number of concurrent runs such as that of ``folder`` on this machine.

    By its cores and free memory, and the free memory of the GPUs of the run's sites.
    """
    if has_own_processes(folder):
        return 1
    info = read_run(folder)
    config = read_plan(folder)
    rooms = [FREE_SHARE * free_memory() / estimate_memory(folder)]
    rooms += [FREE_SHARE * torch.cuda.mem_get_info(gpu)[0] / estimate_gpu_memory(folder) for gpu in _gpus(folder)]
    return max(1, min(cores() // (config.training.cpu_threads * (info["threads"] or 1)), *map(int, rooms)))


def estimate_memory(folder: Path) -> float:
    """Estimated bytes of the process of a run: models of all sites, one batch of feature maps."""
    parameters, maps, sites = _sizes(folder)
    return float(BASE_MEMORY + 4.0 * ((5 * sites + 5) * parameters + maps))


def estimate_gpu_memory(folder: Path) -> float:
    """Estimated bytes of a GPU for the process of a run: every site's network, the training of one of them."""
    parameters, maps, sites = _sizes(folder, GPU_BATCH)
    return float(GPU_CONTEXT + 4.0 * ((sites + 5) * parameters + maps))


def _sizes(folder: Path, evaluated: int = EVALUATION_BATCH) -> tuple[int, float, int]:
    """Parameters of a run's network, numbers in the feature maps of one batch, and sites."""
    info = read_run(folder)
    config = read_plan(folder)
    return count_parameters(config), count_feature_maps(config, info["image_size"], evaluated), len(info["sites"])


def _gpus(folder: Path) -> list[torch.device]:
    info = read_run(folder)
    setting = assign_devices(info["device"], info["sites"])
    devices = {pick_device(configured_device(site, setting), site) for site in info["sites"]}
    return sorted((device for device in devices if device.type == "cuda"), key=str)


def count_training_images(folder: Path) -> int:
    """Training images of a run over sites, rounds and steps: its time is proportional to this."""
    info = read_run(folder)
    config = read_plan(folder)
    training = config.training
    sites = open_sites(require_place(info["sites_folder"], folder), info["sites"], info["fold"])
    if training.steps:
        return config.rounds * len(sites) * training.steps * training.batch_size
    per_epoch = sum(len(build_samples(site.cases("training"), config.network.patch)) for site in sites)
    return config.rounds * per_epoch * training.epochs


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
) -> str | None:
    """Execute a run from its last complete round.

    Args:
        threads: concurrent sites; None: as created.

    Returns:
        Why it failed, or None. Errors other than `RunFailed` leave a traceback in ``failed.log`` of the run folder.
    """
    try:
        runs.execute(folder, on_round, threads, *places)
        if after is not None:
            recorded = read_run(folder).get("sites_folder")
            after(folder, places.sites or (Path(recorded) if recorded else None))
    except (BadInput, RunFailed) as error:
        return str(error)
    except Exception as error:  # such as a GPU out of memory: it must not end the other runs
        log = folder / "failed.log"
        write_text(log, traceback.format_exc())
        return f"{type(error).__name__}: {error}\nlog: {log}"
    return None


Digests = Mapping[str, str]  # by site


@dataclass(frozen=True)
class Seen:
    """What a worker has to find of a run."""

    run: str  # SHA-256 of run.json
    sites: tuple[Path, Digests]  # their folder here, and their digests
    server_sites: tuple[Path, Digests] | None
    software: Mapping[str, str]


def describe_local_view(folder: Path, places: Places = AS_RECORDED) -> Seen:
    """A run as seen on this machine, with its sites in these places."""
    info = read_run(folder)
    sites, own = places.sites or info["sites_folder"], places.server_sites or info["server_sites"]
    return Seen(sha256(folder / "run.json"), _seen(sites), _seen(own) if own else None, _software())


def _seen(place: Path | str) -> tuple[Path, Digests]:
    place = Path(place).resolve()
    return place, _digests(place)


def find(folder: Path, seen: Seen) -> Places:
    """The folders of a run's sites on this machine, and of the server's own if it has any.

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
    """`BadInput` if an array differs from site.json; read once per process and digest."""
    for name, known in read_json(site / "site.json").get("checksums", {}).items():
        if not (site / name).is_file() or sha256(site / name) != known:
            raise BadInput(f"{site / name}: differs from site.json; copy the site folder again")


@cache
def _software() -> dict[str, str]:
    """What the bits of a result depend on, apart from the run."""
    gpus = sorted({torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())})
    return {
        **{name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "GPU": ", ".join(gpus) or "none",
    }
