"""What a study is asked for on the command line: methods with settings of their own, and seeds.

The folder of a study: runs are made all or none, and an old folder goes on with what it was made for alone.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedmerit.capabilities import capabilities
from fedmerit.configuration.run import RunConfiguration, Training, make_configuration
from fedmerit.engines import resumption
from fedmerit.errors import BadInput
from fedmerit.federation.requirements import check_sites
from fedmerit.files import read_json
from fedmerit.methods.registry import METHODS
from fedmerit.records.results import read_run
from fedmerit.trainers.monai_trainer.data import SiteFolder, open_sites, read_site_digests, require_same_preparation
from fedmerit_evaluation.figures.tables import file_name


@dataclass(frozen=True)
class MethodSpec:
    """What is compared: a method with settings of its own. ``label`` is how it was asked for."""

    label: str
    method: str
    settings: Mapping[str, str]


def parse_methods(text: str, sites: Sequence[str] | None = None, attacked: bool = False) -> list[MethodSpec]:
    """The items of ``fedavg,fedce:combine=plus``; ``all`` is every method that takes the default optimizer.

    Given the names of the ``sites``, it leaves out what cannot work with so many: Krum with two, FedCI with 13; where
    sites are to be ``attacked``, also what trains on all images as one, in which no site can attack.

    Raises:
        BadInput: an item is empty, not of this form, of an unknown method, or there twice.
    """
    items: list[MethodSpec] = []
    for label in text.split(","):
        items += _all(sites, attacked) if label.strip() == "all" else [_item(label.strip())]
    for number, item in enumerate(items):
        for earlier in items[:number]:
            if (earlier.method, earlier.settings) == (item.method, item.settings):
                raise BadInput(f"--methods: {item.label} is given twice; name each once")
            if file_name(earlier.label) == file_name(item.label):
                raise BadInput(f"--methods: {earlier.label} and {item.label} need the same run folder; compare apart")
    return items


def _all(sites: Sequence[str] | None, attacked: bool) -> list[MethodSpec]:
    """At their defaults; a method that trains by another optimizer than the others has to be named."""
    by_name = {name: capabilities(kind()) for name, kind in METHODS.items()}
    others = {
        name
        for name, can in by_name.items()
        if (can.optimizers and Training().optimizer not in can.optimizers) or (attacked and can.pools_images)
    }
    fit = [name for name in METHODS if sites is None or check_sites(name, METHODS[name](), sites) is None]
    return [MethodSpec(name, name, {}) for name in fit if name not in others]


def _item(label: str) -> MethodSpec:
    method, *parts = label.split(":")
    if method not in METHODS:
        raise BadInput(f"--methods: method {method!r}: unknown; expected all, or some of {', '.join(METHODS)}")
    settings: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not name or not equals:
            raise BadInput(f"--methods {label}: {part!r}: expected METHOD:NAME=VALUE")
        if name in settings:
            raise BadInput(f"--methods {label}: {name} is given twice")
        settings[name] = value
    return MethodSpec(label, method, settings)


def parse_seeds(text: str) -> list[int]:
    """The seeds of ``0,1,2``; `BadInput` where one is no whole number from 0, or there twice."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadInput(f"--seeds {text}: expected whole numbers such as 0,1,2")
    seeds = [int(part) for part in parts]
    if len(set(seeds)) < len(seeds):
        raise BadInput(f"--seeds {text}: one is given twice")
    return seeds


DIGESTS, SERVER_DIGESTS = "site_digests", "server_digests"  # in a study's JSON file, as in run.json
PLACES = {"sites": DIGESTS, "server_sites": SERVER_DIGESTS}  # options that say where images lie, and what knows them


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
    may_move = [place for place, digests in PLACES.items() if before.get(digests) and asked.get(place)]
    names = [name for name in {**before, **asked} if name not in (*PLACES.values(), *may_move)]
    changed = [name for name in names if before.get(name) != asked.get(name)]
    if changed:
        told = "; ".join(_told(name.replace("_", " "), before.get(name)) for name in changed)
        raise BadInput(f"{record.parent}: holds trainings with {told}. Go on with the same, or choose another --out")


def _told(name: str, value: Any) -> str:
    """``rounds 3``, ``no device``, ``site names A, B``."""
    return f"no {name}" if value is None else f"{name} {', '.join(value) if isinstance(value, list) else value}"


def open_server_sites(options: Mapping[str, Any]) -> list[SiteFolder]:
    """The site folders that ``server_sites`` of options or of a run.json names, if any."""
    return open_sites(Path(options["server_sites"])) if options.get("server_sites") else []


def recorded_digests(sites: Sequence[SiteFolder], own: Sequence[SiteFolder]) -> dict[str, dict[str, str]]:
    """What a study's JSON file says of its images, and of the server's ``own`` where it has any."""
    return {DIGESTS: read_site_digests(sites)} | ({SERVER_DIGESTS: read_site_digests(own)} if own else {})


def require_same_images(record: Path, sites: Sequence[SiteFolder], own: Sequence[SiteFolder] = ()) -> None:
    """`BadInput` where sites were prepared anew since a study's folder was begun.

    Args:
        record: as of `require_unchanged`, with their digests; studies of earlier versions have none.
        sites: those of today; they need not be all the same.
        own: the server's own, which do.
    """
    before: Mapping[str, Mapping[str, str]] = read_json(record) if record.exists() else {}
    digests = before.get(DIGESTS, {})
    there = [site for site in sites if site.name in digests]
    require_same_preparation(there, {site.name: digests[site.name] for site in there}, record.parent)
    if own:
        require_same_preparation(own, before.get(SERVER_DIGESTS, {}), record.parent)


def require_same(folder: Path, asked: Mapping[str, Any], sites: Sequence[SiteFolder]) -> None:
    """`BadInput` where a run folder is not what `runs.create` would make of these options and sites today.

    The same images may lie elsewhere by now: a run that has not ended finds them there from now on.
    """
    names, own = [site.name for site in sites], open_server_sites(asked)
    resumption.relocate(folder, asked)
    recorded = read_run(folder)
    as_begun = {}  # of a run that has ended, whose run.json stays as it is
    if recorded.get(DIGESTS) == read_site_digests(sites):
        as_begun["sites"] = recorded["sites_folder"]
    if own and recorded.get(SERVER_DIGESTS) == read_site_digests(own):
        as_begun["server_sites"] = recorded["server_sites"]
    try:
        resumption.require_same(folder, {**asked, **as_begun})
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
    resumption.require_same_images(folder, recorded, sites, own)
