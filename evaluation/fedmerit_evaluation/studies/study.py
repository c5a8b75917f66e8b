"""What a comparison will be able to tell, in words, before it trains."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any

from fedmerit.contract.capabilities import capabilities
from fedmerit.engines import resumption
from fedmerit.engines.image_sites import require_same_images as require_images_of_run
from fedmerit.engines.script_sites import ScriptSites
from fedmerit.errors import BadInput
from fedmerit.files import read_object, require_inside
from fedmerit.machine import pick_device
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.configuration.requirements import unmet_needs
from fedmerit.schema.configuration.run import (
    RunConfiguration,
    configure_script,
    make_configuration,
    read_plan,
    with_sharing,
)
from fedmerit.schema.configuration.script import Script
from fedmerit.schema.configuration.settings import AUTO, Training
from fedmerit.schema.declarations import parse_assignments
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import SiteFolder, open_sites, read_site_digests, require_same_preparation
from fedmerit.server.requirements import check_sites
from fedmerit.site.machine_settings import configured_device
from fedmerit.trainers.monai.step_time import seconds_per_image
from fedmerit.trust import require_place
from fedmerit_evaluation.figures.tables import file_name
from fedmerit_evaluation.results.runs import DIGESTS, SERVER_DIGESTS, read_recorded_digests
from fedmerit_evaluation.statistics.sample_size import expected_width
from fedmerit_evaluation.studies.execution import count_training_images

ENOUGH = 20  # test patients of a hospital; with fewer, folds are named
FOLDS = 5  # that are proposed to sites without
INTERVAL = "95 % CI of the gain over local training"


def describe_precision(sites: Sequence[SiteFolder], seeds: int, folds: int) -> Iterator[str]:
    """How wide intervals will be; with one split and a hospital of few test patients, also with folds.

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
    width = _words(expected_width(tested[fewest], seeds, folds))
    trained = "1 seed" if seeds == 1 else f"{seeds} seeds"
    if folds:
        yield (
            f"{folds} folds, {trained}: every patient is tested. {INTERVAL} at {fewest} ({tested[fewest]} patients): "
            f"{width}."
        )
    elif tested[fewest] < ENOUGH:
        number = sites[0].folds or FOLDS
        way = "the default of `compare` and `value`" if sites[0].folds else f"prepare with --folds {number}"
        better = _words(expected_width(everyone[fewest], seeds, number))
        yield (
            f"One split, {trained}: {fewest} has {tested[fewest]} test patient(s). {INTERVAL} there: {width}; with "
            f"{number} folds ({number} times as many trainings): {better} ({way})."
        )


def count_test_patients(site: SiteFolder) -> int:
    """Of one split."""
    return len({case.patient for case in site.cases("testing")})


def _words(width: float) -> str:
    return "none" if isnan(width) else f"about {width:.0f} points wide"


@dataclass(frozen=True)
class StudySites:
    """Either ``folders`` or a ``script``."""

    names: list[str]
    folders: Sequence[SiteFolder] = ()
    script: Script | None = None

    def configure(self, method: str, rounds: int, settings: Mapping[str, Any]) -> RunConfiguration:
        """A run of theirs, with seed 0; `BadInput` if it cannot be."""
        if self.script:
            return configure_script(method, rounds, self.script, settings=settings)
        first = self.folders[0]
        network = {"in_channels": first.channels, "labels": list(first.labels)}
        return make_configuration(method, first.task, rounds, 0, network, settings)

    def require_evaluation(self, what: str) -> None:
        """`BadInput` if ``what``, a study, has to test models at sites that took no part, and a script does not."""
        if self.script and not (self.script.evaluates and self.script.metric):
            raise BadInput(
                f"{what}: tests models at sites that did not train them; have the script answer flare.is_evaluate() "
                "with its metric"
            )


def open_study_sites(options: Mapping[str, Any]) -> StudySites:
    """Of a study with ``options`` of `fedmerit.engines.runs.create`; `BadInput` if they name none that can be used."""
    if options.get("script"):
        names = {name: value for name, value in options.items() if name in RunOptions.model_fields}
        scripts = ScriptSites.read(RunOptions.read(names))
        return StudySites(scripts.names, script=scripts.script)
    folders = open_sites(Path(options["sites"]), options.get("only") or None)
    return StudySites([folder.name for folder in folders], folders)


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
        resumption.require_same_script_run(folder, RunOptions.read(asked))
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
    require_images_of_run(folder, recorded, sites, own)


@dataclass(frozen=True)
class Cost:
    """Estimated cost of trainings."""

    trainings: int  # including those that are trained but not yet tested
    images: int  # images trained on, over sites, rounds and epochs; 0: not known, as of scripts
    hours: float  # of one process, estimated from a few batches; 0: likewise

    def describe(self, of: int, number: int) -> str:
        """As a sentence; ``of``: all trainings of the study, ``number``: that run at a time."""
        took = describe_duration(self.hours / number)
        known = f", {self.images:,} images in all: about {took} with {number} at a time" if self.images else ""
        return f"{self.trainings} of {of} trainings to do{known}"


def estimate_cost(trainings: int, begun: Sequence[Path]) -> Cost:
    """Of so many trainings, of which these run folders have rounds to train."""
    if begun and "script" in read_run(begun[0]):
        return Cost(trainings, 0, 0.0)
    images = sum(map(count_training_images, begun))
    return Cost(trainings, images, images * _seconds_per_image(begun[0]) / 3600 if begun else 0.0)


def describe_duration(hours: float) -> str:
    """In hours or minutes."""
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes" if hours > 1.5 / 60 else "a minute"


def _seconds_per_image(folder: Path) -> float:
    """Training time on this machine with the run's configuration."""
    info, config = read_run(folder), read_plan(folder)
    site = open_sites(require_place(info["sites_folder"], folder), info["sites"], info["fold"])[0]
    device = pick_device(configured_device(site.name, info["device"]), site.name)
    return seconds_per_image(config, site, device, {"its own": config.training})["its own"]
