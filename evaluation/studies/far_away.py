"""Workers on other machines: they run what this machine runs, and read the same sites, wherever those lie there.

Run folders have to be in a folder that all machines share. Site folders are read from a worker's own copy where its
variable FEDMERIT_SITES (of the server's, FEDMERIT_SERVER_SITES) names one, else from the folder in which they lie here;
in either case they must have the digests that they have here.
"""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from evaluation.studies.execution import AS_RECORDED, Places
from fedmerit.configuration.description import PACKAGES
from fedmerit.errors import BadInput
from fedmerit.files import read_json, sha256
from fedmerit.records.results import read_run
from fedmerit.training.data import open_sites
from fedmerit.training.place import SERVER_SITES, SITES

Digests = Mapping[str, str]  # by site


@dataclass(frozen=True)
class Seen:
    """What a worker has to see of a run."""

    run: str  # SHA-256 of run.json
    sites: tuple[Path, Digests]  # where they lie here, and what they are
    server_sites: tuple[Path, Digests] | None
    software: Mapping[str, str]


def seen_from_here(folder: Path, places: Places = AS_RECORDED) -> Seen:
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
