"""What a run will take of a machine: memory, images to train on; and so how many go side by side.

One run of a study executed to its end in this process: its failure is a text, not the end of the study.

Workers on other machines: they run what this machine runs, and read the same sites, wherever those lie there.

Run folders have to be in a folder that all machines share. Site folders are read from a worker's own copy where its
variable FEDMERIT_SITES (of the server's, FEDMERIT_SERVER_SITES) names one, else from the folder in which they lie here;
in either case they must have the digests that they have here.
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

from fedmerit.configuration.description import PACKAGES, read_plan
from fedmerit.engines import runs
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import read_json, sha256, write_text
from fedmerit.machine import cores, free_memory
from fedmerit.records.results import read_run
from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit.trainers.monai_trainer.machine_settings import (
    SERVER_SITES,
    SITES,
    assign_devices,
    configured_device,
    pick_device,
)
from fedmerit.trainers.monai_trainer.network_checks import count_feature_maps, count_parameters
from fedmerit.trainers.monai_trainer.patches import build_samples

BASE_MEMORY = 0.4e9  # bytes of a process that has loaded PyTorch and MONAI
GPU_CONTEXT = 0.6e9  # bytes of a GPU that a process takes before it holds any tensor there
FREE_SHARE = 0.8  # of what is free, to count on


def choose_worker_count(folder: Path) -> int:
    """How many runs such as that of ``folder`` this machine can train at a time.

    By its cores and free memory, and by the free memory of the GPUs that the run's sites work on.
    """
    info = read_run(folder)
    config = read_plan(folder)
    rooms = [FREE_SHARE * free_memory() / estimate_memory(folder)]
    rooms += [FREE_SHARE * torch.cuda.mem_get_info(gpu)[0] / estimate_gpu_memory(folder) for gpu in _gpus(folder)]
    return max(1, min(cores() // (config.training.cpu_threads * (info["threads"] or 1)), *map(int, rooms)))


def estimate_memory(folder: Path) -> float:
    """Bytes that the process of a run needs in the end, estimated: models of all sites, one batch of feature maps."""
    parameters, maps, sites = _sizes(folder)
    return float(BASE_MEMORY + 4.0 * ((5 * sites + 5) * parameters + maps))


def estimate_gpu_memory(folder: Path) -> float:
    """Bytes of a GPU that the process of a run takes at most: every site's network, the training of one of them."""
    parameters, maps, sites = _sizes(folder)
    return float(GPU_CONTEXT + 4.0 * ((sites + 5) * parameters + maps))


def _sizes(folder: Path) -> tuple[int, float, int]:
    """Parameters of a run's network, numbers in the feature maps of one batch, and sites."""
    info = read_run(folder)
    config = read_plan(folder)
    return count_parameters(config), count_feature_maps(config, info["image_size"]), len(info["sites"])


def _gpus(folder: Path) -> list[torch.device]:
    """The GPUs that the sites of a run work on."""
    info = read_run(folder)
    setting = assign_devices(info["device"], info["sites"])
    devices = {pick_device(configured_device(site, setting), site) for site in info["sites"]}
    return sorted((device for device in devices if device.type == "cuda"), key=str)


def count_training_images(folder: Path) -> int:
    """How many training images a run takes in all, over sites, rounds and steps: what its time goes by."""
    info = read_run(folder)
    config = read_plan(folder)
    training = config.training
    sites = open_sites(Path(info["sites_folder"]), info["sites"])
    if training.steps:
        return config.rounds * len(sites) * training.steps * training.batch_size
    per_epoch = sum(len(build_samples(site.cases("training"), config.network.patch)) for site in sites)
    return config.rounds * per_epoch * training.epochs


After = Callable[[Path, Path], None]  # of a run folder, and of the folder in which its sites lie here


class Places(NamedTuple):
    """Where site folders lie by now, or on this machine; None: where run.json says."""

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
        folder: the run folder.
        on_round: called with every round's ledger record.
        after: called when it has come to its end.
        threads: sites at work at a time; None: as it was created with.
        places: of its site folders.

    Returns:
        Why it failed, or None. What is no `RunFailed` leaves its traceback in ``failed.log`` of the run folder.
    """
    try:
        runs.execute(folder, on_round, threads, *places)
        if after is not None:
            after(folder, places.sites or Path(read_run(folder)["sites_folder"]))
    except (BadInput, RunFailed) as error:
        return str(error)
    except Exception as error:  # such as a GPU out of memory: it would end a night's work at the first run
        log = folder / "failed.log"
        write_text(log, traceback.format_exc())
        return f"{type(error).__name__}: {error}\nlog: {log}"
    return None


Digests = Mapping[str, str]  # by site


@dataclass(frozen=True)
class Seen:
    """What a worker has to see of a run."""

    run: str  # SHA-256 of run.json
    sites: tuple[Path, Digests]  # where they lie here, and what they are
    server_sites: tuple[Path, Digests] | None
    software: Mapping[str, str]


def describe_local_view(folder: Path, places: Places = AS_RECORDED) -> Seen:
    """What there is of a run on this machine, where its sites lie in these places."""
    info = read_run(folder)
    sites, own = places.sites or info["sites_folder"], places.server_sites or info["server_sites"]
    return Seen(sha256(folder / "run.json"), _seen(sites), _seen(own) if own else None, _software())


def _seen(place: Path | str) -> tuple[Path, Digests]:
    place = Path(place).resolve()
    return place, _digests(place)


def find(folder: Path, seen: Seen) -> Places:
    """Where a run's sites lie on this machine, and the server's own where it has any.

    Raises:
        BadInput: results would have other bits here; or the run folder is not shared with this machine, or no folder
            here holds the same sites.
    """
    here = _software()
    if other := [
        f"{name} is {here[name]} there, not {known}" for name, known in seen.software.items() if here[name] != known
    ]:
        raise BadInput(f"{'; '.join(other)}: results would differ, so let all machines have the same")
    if not (folder / "run.json").is_file() or sha256(folder / "run.json") != seen.run:
        raise BadInput(f"{folder}: is not there as it is where it was made; choose an --out that all machines share")
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
        f"{' and '.join(places)}: not the sites {', '.join(digests)} as they are where the study was begun; share that "
        f"folder, or copy it and name the copy in {variable} of the worker"
    )


def _digests(root: Path) -> dict[str, str]:
    return {site.name: site.digest for site in open_sites(root)}


@cache
def _require_arrays(site: Path, digest: str) -> None:
    """`BadInput` where an array is not what site.json says, read once by a process for a site of this digest."""
    for name, known in read_json(site / "site.json").get("checksums", {}).items():
        if not (site / name).is_file() or sha256(site / name) != known:
            raise BadInput(f"{site / name}: is not what site.json says; copy the site folder again")


@cache
def _software() -> dict[str, str]:
    """What the bits of a result depend on, beside the run itself."""
    gpus = sorted({torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())})
    return {
        **{name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "GPU": ", ".join(gpus) or "none",
    }
