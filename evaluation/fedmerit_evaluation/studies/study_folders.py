"""The folder of a study: its methods and seeds, and runs that are created all or none and reused only if unchanged."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedmerit.contract.capabilities import capabilities
from fedmerit.engines import resumption
from fedmerit.errors import BadInput
from fedmerit.files import read_object, require_inside
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.configuration.recipes import AUTO
from fedmerit.schema.configuration.run import RunConfiguration, Training, make_configuration
from fedmerit.schema.configuration.script import Script
from fedmerit.schema.configuration.script_needs import unmet_needs
from fedmerit.schema.configuration.sharing import with_sharing
from fedmerit.schema.configuration.spec_syntax import parse_assignments
from fedmerit.schema.run_info import read_run
from fedmerit.server.requirements import check_sites
from fedmerit.trainers.monai.data import SiteFolder, open_sites, read_site_digests, require_same_preparation
from fedmerit_evaluation.figures.tables import file_name
from fedmerit_evaluation.results.recorded_digests import DIGESTS, SERVER_DIGESTS, read_recorded_digests
from fedmerit_evaluation.studies.precision import ENOUGH, count_test_patients


@dataclass(frozen=True)
class MethodSpec:
    """A method with settings of its own. ``label`` is its text on the command line."""

    label: str
    method: str
    settings: Mapping[str, str]


def parse_methods(
    text: str, sites: Sequence[str] | None = None, attacked: bool = False, script: Script | None = None
) -> list[MethodSpec]:
    """The items of ``fedavg,fedce:combine=plus``; ``all`` is every method that takes the default optimizer.

    With the names of the ``sites``, it leaves out methods that do not work with that many (Krum with two, FedCI with
    13); with ``attacked`` sites also pooled training, in which no site can attack; with a ``script`` of the sites what
    that cannot do.

    Raises:
        BadInput: an item is empty, not of this form, of an unknown method, or given twice.
    """
    items: list[MethodSpec] = []
    for label in text.split(","):
        items += _all(sites, attacked, script) if label.strip() == "all" else [_item(label.strip())]
    for number, item in enumerate(items):
        for earlier in items[:number]:
            if (earlier.method, earlier.settings) == (item.method, item.settings):
                raise BadInput(f"--methods: {item.label} is given twice; name each once")
            if file_name(earlier.label) == file_name(item.label):
                raise BadInput(
                    f"--methods: {earlier.label} and {item.label} need the same run folder; compare them separately"
                )
    return items


def _all(sites: Sequence[str] | None, attacked: bool, script: Script | None) -> list[MethodSpec]:
    """All methods at their defaults, without those that need another optimizer."""
    by_name = {name: capabilities(kind()) for name, kind in METHODS.items()}
    others = {
        name
        for name, can in by_name.items()
        if (can.optimizers and Training().optimizer not in can.optimizers) or (attacked and can.pools_images)
    }
    others |= {name for name, kind in METHODS.items() if script and any(unmet_needs(name, kind(), script))}
    fit = [name for name in METHODS if sites is None or check_sites(name, METHODS[name](), sites) is None]
    return [MethodSpec(name, name, {}) for name in fit if name not in others]


def _item(label: str) -> MethodSpec:
    method, *parts = label.split(":")
    if label == ENSEMBLE:
        return MethodSpec(label, label, {})
    if method not in METHODS:
        raise BadInput(f"--methods: method {method!r}: unknown; expected all, or some of {', '.join(METHODS)}")
    return MethodSpec(label, method, parse_assignments(parts, f"--methods {label}:"))


def parse_seeds(text: str) -> list[int]:
    """The seeds of ``0,1,2``; `BadInput` if one is no whole number from 0, or given twice."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadInput(f"--seeds {text}: expected whole numbers such as 0,1,2")
    seeds = [int(part) for part in parts]
    if len(set(seeds)) < len(seeds):
        raise BadInput(f"--seeds {text}: one is given twice")
    return seeds


def in_folds(options: Mapping[str, Any], folds: Sequence[int]) -> list[tuple[str, dict[str, Any]]]:
    """A study's options for each of some folds, with what the names of run folders end with; as they are without."""
    return [(f"_fold{fold}", {**options, "fold": fold}) for fold in folds] or [("", dict(options))]


def find_folds(sites: Path | None, asked: bool | None) -> list[int]:
    """All folds of the site folders if they are asked for, else none.

    Args:
        sites: folder of site folders; None: a script's.
        asked: None: if there are any, and a site has fewer than `ENOUGH` test patients without.

    Raises:
        BadInput: they are asked for, and there are none.
    """
    if asked is None and sites is not None:
        opened = open_sites(sites)
        asked = bool(opened[0].folds) and min(map(count_test_patients, opened)) < ENOUGH
    if not asked:
        return []
    if sites is None:
        raise BadInput("--folds: a script splits its own images; expected --sites")
    return list(range(open_sites(sites, fold=0)[0].folds))


ENSEMBLE = "ensemble"  # a method of comparisons: the local models' mean, which is not trained
PLACES = {
    "sites": DIGESTS,
    "server_sites": SERVER_DIGESTS,
}  # options with places of images, and the digests that identify these


@contextmanager
def scratch(out: Path) -> Iterator[Path]:
    """A temporary folder in ``out`` for new runs; afterwards it goes, and ``out`` if it is then empty."""
    new = out / f".new.{os.getpid()}"
    require_inside(out)
    try:
        shutil.rmtree(new, ignore_errors=True)
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)
        with suppress(OSError):
            out.rmdir()


def require_unchanged(record: Path, asked: Mapping[str, Any]) -> None:
    """`BadInput` if a study's folder has trainings with other options.

    Args:
        record: the JSON file in the folder with the options, if it exists.
        asked: the options now; digests of sites are left to `require_same_images`, and with digests the place of the
            sites may change.
    """
    before = read_object(record) if record.exists() else asked
    may_move = [place for place, digests in PLACES.items() if before.get(digests) and asked.get(place)]
    names = [name for name in {**before, **asked} if name not in (*PLACES.values(), *may_move)]
    changed = [name for name in names if before.get(name) != asked.get(name)]
    if changed:
        text = "; ".join(_describe_setting(name.replace("_", " "), before.get(name)) for name in changed)
        raise BadInput(f"{record.parent}: holds trainings with {text}. Use the same options, or choose another --out")


def _describe_setting(name: str, value: Any) -> str:
    """``rounds 3``, ``no device``, ``site names A, B``."""
    return (
        f"no {name}" if value is None else f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}"
    )


def open_server_sites(options: Mapping[str, Any]) -> list[SiteFolder]:
    """The site folders that ``server_sites`` of options or of a run.json names, if any."""
    return open_sites(Path(options["server_sites"])) if options.get("server_sites") else []


def recorded_digests(sites: Sequence[SiteFolder], own: Sequence[SiteFolder]) -> dict[str, dict[str, str]]:
    """Digests of the sites, and of the server's ``own`` if it has any, for a study's JSON file."""
    return {DIGESTS: read_site_digests(sites)} | ({SERVER_DIGESTS: read_site_digests(own)} if own else {})


def require_same_images(record: Path, sites: Sequence[SiteFolder], own: Sequence[SiteFolder] = ()) -> None:
    """`BadInput` if sites were prepared again since a study's folder was created.

    Args:
        record: as of `require_unchanged`, with their digests.
        sites: those of now; others may have been there before.
        own: the server's own.
    """
    digests = read_recorded_digests(record)
    there = [site for site in sites if site.name in digests]
    require_same_preparation(there, {site.name: digests[site.name] for site in there}, record.parent)
    if own:
        require_same_preparation(own, read_recorded_digests(record, SERVER_DIGESTS), record.parent)


def require_same(folder: Path, asked: Mapping[str, Any], sites: Sequence[SiteFolder]) -> None:
    """`BadInput` if a run folder is not what `runs.create` would make now of these options and sites.

    The same images may be in another place now: an unfinished run then uses that place.
    """
    if asked.get("script"):
        from fedmerit.engines.script_runs import require_same_script_run  # it takes seconds to import MONAI

        require_same_script_run(folder, RunOptions.read(asked))
        return
    names, own = [site.name for site in sites], open_server_sites(asked)
    resumption.relocate(folder, asked)
    recorded = read_run(folder)
    as_begun = {}  # of a finished run, whose run.json stays unchanged
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
        asked["method"], config["task"], asked["rounds"], asked["seed"], network, asked["settings"],
        fold=asked.get("fold"),
    )  # fmt: skip
    now = with_sharing(now, asked.get("share_models"), recorded["engine"] != "poc", bool(own))
    before = RunConfiguration.from_dict(config)
    if asked["settings"].get("amp") == AUTO:  # which keeps what was measured then
        now = replace(now, training=replace(now.training, amp=before.training.amp))
    if replace(now, preprocessing=before.preprocessing) != before:
        raise BadInput(
            f"{folder}: was started with parameters that are no longer the defaults (fedmerit "
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
