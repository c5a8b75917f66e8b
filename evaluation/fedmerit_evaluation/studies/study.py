"""The design of a study, and its folder: sites, methods, seeds and folds; runs that are reused only if unchanged."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any

from fedmerit.contract.capabilities import capabilities
from fedmerit.engines import resumption, runs
from fedmerit.engines.image_sites import require_same_images as require_images_of_run
from fedmerit.engines.script_sites import ScriptSites
from fedmerit.errors import BadInput, require_known
from fedmerit.files import read_object, require_inside
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.configuration.requirements import unmet_needs
from fedmerit.schema.configuration.run import RunConfiguration, configure_script, make_configuration, with_sharing
from fedmerit.schema.configuration.script import Script
from fedmerit.schema.configuration.settings import Training
from fedmerit.schema.declarations import parse_assignments
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import (
    SiteFolder,
    images_digest,
    open_sites,
    read_site_digests,
    require_same_preparation,
)
from fedmerit.server.requirements import check_sites
from fedmerit_evaluation.figures.tables import file_name
from fedmerit_evaluation.results.runs import DIGESTS, SERVER_DIGESTS, read_recorded_digests
from fedmerit_evaluation.statistics.sample_size import expected_width
from fedmerit_evaluation.studies.execution import count_training_images

ENOUGH = 20  # test patients of a hospital; with fewer, folds are named
FOLDS = 5  # that are proposed to sites without
INTERVAL = "95 % CI of the gain over local training"


def describe_precision(sites: Sequence[SiteFolder], seeds: int, folds: int) -> Iterator[str]:
    """Describe how wide intervals will be; with one split and a hospital of few test patients, also with folds.

    Args:
        sites: to train on; none: those of scripts, of which nothing is known.
        seeds: of each training.
        folds: that are trained; 0: one split.
    """
    if not sites:
        return
    everyone = {site.name: len({case.patient for cases in site.splits.values() for case in cases}) for site in sites}
    tested = everyone if folds else {site.name: count_test_patients(site) for site in sites}
    fewest = min(tested, key=lambda name: (tested[name], name))
    width = _describe_width(expected_width(tested[fewest], seeds, folds))
    trained = "1 seed" if seeds == 1 else f"{seeds} seeds"
    if folds:
        yield (
            f"{folds} folds, {trained}: every patient is tested. {INTERVAL} at {fewest} ({tested[fewest]} patients): "
            f"{width}."
        )
    elif tested[fewest] < ENOUGH:
        number = sites[0].folds or FOLDS
        way = "the default of `compare` and `value`" if sites[0].folds else f"prepare with --folds {number}"
        better = _describe_width(expected_width(everyone[fewest], seeds, number))
        yield (
            f"One split, {trained}: {fewest} has {tested[fewest]} test patient(s). {INTERVAL} there: {width}; with "
            f"{number} folds ({number} times as many trainings): {better} ({way})."
        )


def count_test_patients(site: SiteFolder) -> int:
    """Return the number of test patients in the splits of a site."""
    return len({case.patient for case in site.cases("testing")})


def _describe_width(width: float) -> str:
    return "none" if isnan(width) else f"about {width:.0f} points wide"


@dataclass(frozen=True)
class StudySites:
    """The sites of a study: prepared ``folders``, or clients that run one ``script``."""

    names: list[str]
    folders: Sequence[SiteFolder] = ()
    script: Script | None = None

    def configure(self, method: str, rounds: int, settings: Mapping[str, Any]) -> RunConfiguration:
        """Return the configuration of a run with seed 0; `BadInput` if it is impossible."""
        if self.script:
            return configure_script(method, rounds, self.script, settings=settings)
        first = self.folders[0]
        network = {"in_channels": first.channels, "labels": list(first.labels)}
        return make_configuration(method, first.task, rounds, 0, network, settings)

    def require_evaluation(self, what: str) -> None:
        """Raise `BadInput` if the sites' script cannot test models at sites that took no part, as the study has to."""
        if self.script and not (self.script.evaluates and self.script.metric):
            raise BadInput(
                f"{what}: tests models at sites that did not train them; have the script answer flare.is_evaluate() "
                "with its metric"
            )


def open_study_sites(options: Mapping[str, Any]) -> StudySites:
    """Open the sites that options of `fedmerit.engines.runs.create` name; `BadInput` if they cannot be used."""
    if options.get("script"):
        names = {name: value for name, value in options.items() if name in RunOptions.model_fields}
        scripts = ScriptSites.read(RunOptions.read(names))
        return StudySites(scripts.names, script=scripts.script)
    folders = open_sites(Path(options["sites"]), options.get("only") or None)
    return StudySites([folder.name for folder in folders], folders)


@dataclass(frozen=True)
class MethodSpec:
    """A method with its settings; ``label`` is its text on the command line."""

    label: str
    method: str
    settings: Mapping[str, str]


def parse_methods(
    text: str, sites: Sequence[str] | None = None, attacked: bool = False, script: Script | None = None
) -> list[MethodSpec]:
    """Parse ``fedavg,fedce:combine=plus``; ``all`` is every method that takes the default optimizer.

    With the names of the ``sites``, it leaves out methods that do not work with that many (Krum with two, FedCI with
    13); with ``attacked`` sites also pooled training, in which no site can attack; with a ``script`` of the sites what
    that cannot do.

    Raises:
        BadInput: an item is empty, not of this form, of an unknown method, or given twice.
    """
    items: list[MethodSpec] = []
    for label in map(str.strip, text.split(",")):
        items += _default_methods(sites, attacked, script) if label == "all" else [_parse_method(label)]
    for number, item in enumerate(items):
        for earlier in items[:number]:
            if (earlier.method, earlier.settings) == (item.method, item.settings):
                raise BadInput(f"--methods: {item.label} is given twice; name each once")
            if file_name(earlier.label) == file_name(item.label):
                raise BadInput(
                    f"--methods: {earlier.label} and {item.label} need the same run folder; compare them separately"
                )
    return items


def _default_methods(sites: Sequence[str] | None, attacked: bool, script: Script | None) -> list[MethodSpec]:
    """Return all methods at their defaults, without those that need another optimizer."""
    by_name = {name: capabilities(kind()) for name, kind in METHODS.items()}
    others = {
        name
        for name, can in by_name.items()
        if (can.optimizers and Training().optimizer not in can.optimizers) or (attacked and can.pools_images)
    }
    others |= {name for name, kind in METHODS.items() if script and any(unmet_needs(name, kind(), script))}
    fit = [name for name in METHODS if sites is None or check_sites(name, METHODS[name](), sites) is None]
    return [MethodSpec(name, name, {}) for name in fit if name not in others]


def _parse_method(label: str) -> MethodSpec:
    """Parse one method with its settings."""
    method, *parts = label.split(":")
    if label == ENSEMBLE:
        return MethodSpec(label, label, {})
    require_known("--methods: method", [method], METHODS)
    return MethodSpec(label, method, parse_assignments(parts, f"--methods {label}:"))


def parse_seeds(text: str) -> list[int]:
    """Parse the seeds of ``0,1,2``; `BadInput` if one is no whole number from 0, or given twice."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadInput(f"--seeds {text}: expected whole numbers such as 0,1,2")
    seeds = [int(part) for part in parts]
    if len(set(seeds)) < len(seeds):
        raise BadInput(f"--seeds {text}: one is given twice")
    return seeds


def in_folds(options: Mapping[str, Any], folds: Sequence[int]) -> list[tuple[str, dict[str, Any]]]:
    """Return a study's options for each fold, with the end of the names of run folders; unchanged without folds."""
    return [(f"_fold{fold}", {**options, "fold": fold}) for fold in folds] or [("", dict(options))]


def find_folds(sites: Path | None, requested: bool | None) -> list[int]:
    """Return all folds of the site folders if they are requested, else none.

    Args:
        sites: folder of site folders; None: a script's.
        requested: None: if there are any, and a site has fewer than `ENOUGH` test patients without.

    Raises:
        BadInput: they are requested, and there are none.
    """
    if requested is None and sites is not None:
        opened = open_sites(sites)
        requested = bool(opened[0].folds) and min(map(count_test_patients, opened)) < ENOUGH
    if not requested:
        return []
    if sites is None:
        raise BadInput("--folds: a script splits its own images; expected --sites")
    return list(range(open_sites(sites, fold=0)[0].folds))


ENSEMBLE = "ensemble"  # a method of comparisons: the local models' mean, which is not trained
PLACES = {
    "sites": DIGESTS,
    "server_sites": SERVER_DIGESTS,
}  # options with places of images, and the digests that identify these


Create = Callable[[Path, Mapping[str, Any], Sequence[SiteFolder]], None]  # a run folder, its options and sites


@contextmanager
def scratch(out: Path) -> Iterator[Path]:
    """Yield a temporary folder in ``out`` for new runs; afterwards delete it, and ``out`` if it is then empty."""
    new = out / f".new.{os.getpid()}"
    require_inside(out)
    try:
        shutil.rmtree(new, ignore_errors=True)
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)
        with suppress(OSError):
            out.rmdir()


@contextmanager
def all_or_none(out: Path) -> Iterator[Create]:
    """Yield a function that creates a run of a study in ``out`` if it is missing; no run is there until all can be.

    A run that exists has to be of the same options and sites (`require_same`).

    Raises:
        BadInput: a run cannot be created, or its folder holds another one or other files.
    """
    made = list[Path]()
    with scratch(out) as new:

        def create(folder: Path, options: Mapping[str, Any], sites: Sequence[SiteFolder]) -> None:
            if (folder / "run.json").exists():
                require_same(folder, options, sites)
            elif folder.exists() and any(folder.iterdir()):
                raise BadInput(f"{folder}: holds no run.json, but other files; choose another --out")
            else:
                runs.create(new / folder.name, **options)
                made.append(folder)

        yield create
        for folder in made:
            folder.parent.mkdir(parents=True, exist_ok=True)
            (new / folder.name).rename(folder)


def require_unchanged(record: Path, options: Mapping[str, Any]) -> None:
    """Raise `BadInput` if a study's folder has trainings with other options.

    Args:
        record: the JSON file in the folder with the options, if it exists.
        options: the current ones; digests of sites are left to `require_same_images`, and with digests the place of
            the sites may change.
    """
    before = read_object(record) if record.exists() else options
    may_move = [place for place, digests in PLACES.items() if before.get(digests) and options.get(place)]
    names = [name for name in {**before, **options} if name not in (*PLACES.values(), *may_move)]
    changed = [name for name in names if before.get(name) != options.get(name)]
    if changed:
        text = "; ".join(_describe_setting(name.replace("_", " "), before.get(name)) for name in changed)
        raise BadInput(f"{record.parent}: holds trainings with {text}. Use the same options, or choose another --out")


def _describe_setting(name: str, value: Any) -> str:
    """Describe a setting: ``rounds 3``, ``no device``, ``site names A, B``."""
    return (
        f"no {name}" if value is None else f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}"
    )


def open_server_sites(options: Mapping[str, Any]) -> list[SiteFolder]:
    """Open the site folders that ``server_sites`` of options or of a run.json names, if any."""
    return open_sites(Path(options["server_sites"])) if options.get("server_sites") else []


def recorded_digests(sites: Sequence[SiteFolder], server_sites: Sequence[SiteFolder]) -> dict[str, dict[str, str]]:
    """Return digests of the sites, and of the server's, if it has any, for a study's JSON file."""
    return {DIGESTS: read_site_digests(sites)} | (
        {SERVER_DIGESTS: read_site_digests(server_sites)} if server_sites else {}
    )


def require_same_images(record: Path, sites: Sequence[SiteFolder], server_sites: Sequence[SiteFolder] = ()) -> None:
    """Raise `BadInput` if sites were prepared again since a study's folder was created.

    Args:
        record: of `require_unchanged`, with their digests.
        sites: the current ones; there may have been others before.
        server_sites: the server's.
    """
    digests = read_recorded_digests(record)
    recorded = [site for site in sites if site.name in digests]
    require_same_preparation(recorded, {site.name: digests[site.name] for site in recorded}, record.parent)
    if server_sites:
        require_same_preparation(server_sites, read_recorded_digests(record, SERVER_DIGESTS), record.parent)


def require_same(folder: Path, options: Mapping[str, Any], sites: Sequence[SiteFolder]) -> None:
    """Raise `BadInput` if a run folder differs from what `fedmerit.engines.runs.create` would make of the options.

    The same images may be in another place now: an unfinished run then uses that place.
    """
    if options.get("script"):
        resumption.require_same_script_run(folder, RunOptions.read(options))
        return
    names, server_sites = [site.name for site in sites], open_server_sites(options)
    resumption.relocate(folder, options)
    recorded = read_run(folder)
    as_started = {}  # of a finished run, whose run.json stays unchanged
    if recorded.get(DIGESTS) == read_site_digests(sites):
        as_started["sites"] = recorded["sites_folder"]
    if server_sites and recorded.get(SERVER_DIGESTS) == read_site_digests(server_sites):
        as_started["server_sites"] = recorded["server_sites"]
    try:
        resumption.require_same(folder, {**options, **as_started})
    except BadInput as error:
        raise BadInput(f"{error}, or choose another --out") from None
    if recorded["server_sites"] and "server_sites" not in options:
        raise BadInput(
            f"{folder}: was started with --server-sites {recorded['server_sites']}; "
            "give it the same, or choose another --out"
        )
    config = recorded["plan"]
    network = {name: config["network"][name] for name in ("in_channels", "labels")}
    current = make_configuration(
        options["method"], config["task"], options["rounds"], options["seed"], network, options["settings"],
        fold=options.get("fold"),
    )  # fmt: skip
    current = replace(current, server_images=images_digest(server_sites))
    current = with_sharing(current, options.get("share_models"), recorded["engine"] != "poc", bool(server_sites))
    before = RunConfiguration.from_dict(config)
    if replace(current, preprocessing=before.preprocessing) != before:
        raise BadInput(
            f"{folder}: was started with parameters that are no longer the defaults (fedmerit "
            f"{recorded['fedmerit_version']} wrote it); choose another --out"
        )
    if recorded["sites"] != names:
        raise BadInput(
            f"{folder}: was started with the sites {', '.join(recorded['sites'])}, {options['sites']} now holds "
            f"{', '.join(names)}; give it the same sites, or choose another --out"
        )
    require_images_of_run(folder, recorded, sites, server_sites)


def describe_cost(unfinished: int, total: int, begun: Sequence[Path]) -> str:
    """Describe what is left of a study.

    Args:
        unfinished: trainings, including those that are trained but not yet tested.
        total: trainings of the study.
        begun: the folders of the runs that have rounds to train.
    """
    is_known = begun and "script" not in read_run(begun[0])  # what scripts train on is not known
    images = f", {sum(map(count_training_images, begun)):,} images in all" if is_known else ""
    return f"{unfinished} of {total} trainings to do{images}"
