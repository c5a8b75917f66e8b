"""The folder of a study: runs are made all or none, and an old folder goes on with what it was made for alone."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmerit.configuration.run import RunConfiguration, make_configuration
from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.records.results import read_run
from fedmerit.training.data import SiteFolder, digests_of, open_sites, require_as_prepared

DIGESTS = "site_digests"  # in a study's JSON file
SITES = "sites"  # there the folder that they lie in


@contextmanager
def scratch(out: Path) -> Iterator[Path]:
    """A folder in ``out`` for runs in the making, gone afterwards; and with it ``out``, where that is then empty."""
    new = out / f".new.{os.getpid()}"
    try:
        shutil.rmtree(new, ignore_errors=True)
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)
        with suppress(OSError):
            out.rmdir()


def require_unchanged(record: Path, asked: Mapping[str, Any]) -> None:
    """`BadInput` where a study's folder is for trainings asked for otherwise.

    Args:
        record: the JSON file in the folder that says what they were asked for with, if it is there yet.
        asked: what it would hold today; digests of sites are left to `require_same_images`, and where there are any
            it is no matter where the sites lie.
    """
    before = read_json(record) if record.exists() else asked
    told_by_digests = (DIGESTS, SITES) if before.get(DIGESTS) else (DIGESTS,)
    names = [name for name in {**before, **asked} if name not in told_by_digests]
    changed = [name for name in names if before.get(name) != asked.get(name)]
    if changed:
        told = "; ".join(_told(name.replace("_", " "), before.get(name)) for name in changed)
        raise BadInput(f"{record.parent}: holds trainings with {told}. Go on with the same, or choose another --out")


def _told(name: str, value: Any) -> str:
    """``rounds 3``, ``no device``, ``site names A, B``."""
    return f"no {name}" if value is None else f"{name} {', '.join(value) if isinstance(value, list) else value}"


def require_same_images(record: Path, sites: Sequence[SiteFolder]) -> None:
    """`BadInput` where sites were prepared anew since a study's folder was begun.

    Args:
        record: as of `require_unchanged`, with their digests; studies of earlier versions have none.
        sites: those of today; they need not be all the same.
    """
    digests: Mapping[str, str] = read_json(record).get(DIGESTS, {}) if record.exists() else {}
    there = [site for site in sites if site.name in digests]
    require_as_prepared(there, {site.name: digests[site.name] for site in there}, record.parent)


def require_same(folder: Path, asked: Mapping[str, Any], sites: Sequence[SiteFolder]) -> None:
    """`BadInput` where a run folder is not what `runs.create` would make of these options and sites today.

    The same images may lie elsewhere by now: a run that has not ended finds them there from now on.
    """
    names = [site.name for site in sites]
    runs.relocate(folder, asked)
    recorded = read_run(folder)
    there = {SITES: recorded["sites_folder"]} if recorded.get("site_digests") == digests_of(sites) else {}
    try:
        runs.require_same(folder, {**asked, **there})
    except BadInput as error:
        raise BadInput(f"{error}, or choose another --out") from None
    config = recorded["plan"]
    network = {name: config["network"][name] for name in ("in_channels", "labels")}
    now = make_configuration(
        asked["method"], config["task"], asked["rounds"], asked["seed"], network, asked["settings"]
    )
    before = RunConfiguration.from_dict(config)
    if replace(now, preprocessing=before.preprocessing) != before:
        raise BadInput(
            f"{folder}: was started with parameters that are not today's defaults (fedmerit "
            f"{recorded['fedmerit_version']} wrote it); choose another --out"
        )
    if recorded["sites"] != names:
        raise BadInput(
            f"{folder}: was started with the sites {', '.join(recorded['sites'])}, {asked['sites']} now holds "
            f"{', '.join(names)}; give it the same sites, or choose another --out"
        )
    if recorded["server_sites"] and "server_sites" not in asked:
        raise BadInput(
            f"{folder}: was started with --server-sites {recorded['server_sites']}; "
            "give it the same, or choose another --out"
        )
    own = open_sites(Path(asked.get("server_sites") or recorded["server_sites"])) if recorded["server_sites"] else []
    runs.require_same_images(folder, recorded, sites, own)
