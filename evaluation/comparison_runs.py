"""The runs of a comparison: which there are to be, which of them are missing, and what they gave."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation import compare, formats
from evaluation.formats import Table, file_name
from evaluation.pool import OnEnd, OnRound, execute_all, execute_in_turn
from evaluation.runs import open_run
from fedmerit.configuration.run import RunConfiguration, make_configuration
from fedmerit.engines import runs
from fedmerit.engines.contributions import as_setting, contributions_of
from fedmerit.errors import BadInput, RunFailed
from fedmerit.federation.checkpoint import is_finished
from fedmerit.files import read_json, write_json
from fedmerit.machine import cores
from fedmerit.methods.registry import METHODS
from fedmerit.records.results import COLUMNS, read_run
from fedmerit.training.data import open_sites


@dataclass(frozen=True)
class Item:
    """What is compared: a method with settings of its own. ``label`` is how it was asked for."""

    label: str
    method: str
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Planned:
    """One run of a comparison.

    Where training alone is compared too, a method that takes contributions as given takes them from there: its run
    can begin once the other is finished.
    """

    label: str
    seed: int
    folder: Path
    alone: Path | None = None  # the run folder of training alone that it waits for
    asked: Mapping[str, Any] = field(default_factory=dict, compare=False)  # options of `runs.create`, then

    @property
    def finished(self) -> bool:
        """Whether it is trained and tested."""
        there = (self.folder / "run.json").exists()
        return there and is_finished(self.folder, int(read_run(self.folder)["rounds"]))

    def begin(self) -> None:
        """Make the run folder where it could not be made before; `RunFailed` where it still cannot."""
        if self.alone is None or (self.folder / "run.json").exists():
            return
        if not is_finished(self.alone, int(self.asked["rounds"])):
            raise RunFailed(f"it needs the contributions of {self.alone}, which is not finished")
        runs.create(self.folder, **_with_contributions(self.asked, self.alone))


def parse_methods(text: str) -> list[Item]:
    """The items of ``fedavg,fedce:combine=plus``; ``all`` is every method at its defaults.

    Raises:
        BadInput: an item is empty, not of this form, of an unknown method, or there twice.
    """
    items: list[Item] = []
    for label in text.split(","):
        items += [Item(name, name, {}) for name in METHODS] if label.strip() == "all" else [_item(label.strip())]
    for number, item in enumerate(items):
        for earlier in items[:number]:
            if (earlier.method, earlier.settings) == (item.method, item.settings):
                raise BadInput(f"--methods: {item.label} is given twice; name each once")
            if file_name(earlier.label) == file_name(item.label):
                raise BadInput(f"--methods: {earlier.label} and {item.label} need the same run folder; compare apart")
    return items


def _item(label: str) -> Item:
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
    return Item(label, method, settings)


def parse_seeds(text: str) -> list[int]:
    """The seeds of ``0,1,2``; `BadInput` where one is no whole number from 0, or there twice."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadInput(f"--seeds {text}: expected whole numbers such as 0,1,2")
    seeds = [int(part) for part in parts]
    if len(set(seeds)) < len(seeds):
        raise BadInput(f"--seeds {text}: one is given twice")
    return seeds


def prepare(
    out: Path, items: Sequence[Item], seeds: Sequence[int], settings: Mapping[str, str], options: Mapping[str, Any]
) -> list[Planned]:
    """Check every run, then create those that are missing. Nothing is left behind where one cannot be.

    Args:
        out: the folder of the run folders.
        items: what to compare.
        seeds: of every item.
        settings: of every run.
        options: further ones of `fedmerit.engines.runs.create`, for every run; ``sites`` and ``rounds`` among them.

    Returns:
        The runs: all items for one seed, then for the next.

    Raises:
        BadInput: a run cannot be created, or is there already with other options or sites.
    """
    names = [site.name for site in open_sites(Path(options["sites"]))]
    planned = []
    with scratch(out) as new:
        for seed in seeds:
            for item in items:
                if both := sorted(set(settings) & set(item.settings)):
                    raise BadInput(f"--methods {item.label}: {both[0]} is also given by --set; give it once")
                folder = out / f"{file_name(item.label)}_seed{seed}"
                asked = {**options, "method": item.method, "seed": seed, "settings": {**settings, **item.settings}}
                alone = out / f"standalone_seed{seed}" if _takes_contributions(item, items) else None
                if alone and is_finished(alone, options["rounds"]):
                    asked, alone = _with_contributions(asked, alone), None
                if (folder / "run.json").exists():
                    require_same(folder, asked, names)
                elif folder.exists() and any(folder.iterdir()):
                    raise BadInput(f"{folder}: holds no run.json, but other files; choose another --out")
                else:
                    stand_in = {"contributions": ",".join("1" for _ in names)} if alone else {}
                    runs.create(new / folder.name, **asked | {"settings": stand_in | asked["settings"]})
                    if alone:  # that was a check alone
                        shutil.rmtree(new / folder.name)
                planned.append(Planned(item.label, seed, folder, alone, asked))
        for folder in sorted(new.glob("*")):
            folder.rename(out / folder.name)
    asked_for = {"methods": [item.label for item in items], "seeds": list(seeds), "settings": dict(settings)}
    places = {name: str(value.resolve()) for name, value in options.items() if isinstance(value, Path)}
    write_json(out / "compare.json", {**asked_for, **options, **places, "site_names": names})
    return planned


def _takes_contributions(item: Item, items: Sequence[Item]) -> bool:
    """Whether a method takes contributions as given, is given none, and training alone is among ``items``."""
    own = {part.name for part in fields(METHODS[item.method])}
    given = {"contributions", "standalone_rounds"} & set(item.settings)
    return "contributions" in own and not given and any(other.label == "standalone" for other in items)


def _with_contributions(asked: Mapping[str, Any], alone: Path) -> dict[str, Any]:
    """The options with what sites reached alone as a setting."""
    contributions = contributions_of(alone, read_run(alone)["sites"])
    return {**asked, "settings": {**asked["settings"], "contributions": as_setting(contributions)}}


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
        asked: what it would hold today.
    """
    before = read_json(record) if record.exists() else asked
    changed = [name for name in {**before, **asked} if before.get(name) != asked.get(name)]
    if changed:
        told = "; ".join(_told(name.replace("_", " "), before.get(name)) for name in changed)
        raise BadInput(f"{record.parent}: holds trainings with {told}. Go on with the same, or choose another --out")


def _told(name: str, value: Any) -> str:
    """``rounds 3``, ``no device``, ``site names A, B``."""
    return f"no {name}" if value is None else f"{name} {', '.join(value) if isinstance(value, list) else value}"


def require_same(folder: Path, asked: Mapping[str, Any], names: Sequence[str]) -> None:
    """`BadInput` where a run folder is not what `runs.create` would make of these options and sites today."""
    try:
        runs.require_same(folder, asked)
    except BadInput as error:
        raise BadInput(f"{error}, or choose another --out") from None
    recorded = read_run(folder)
    config = recorded["plan"]
    network = {name: config["network"][name] for name in ("in_channels", "labels")}
    now = make_configuration(
        asked["method"], config["task"], asked["rounds"], asked["seed"], network, asked["settings"]
    )
    if now != RunConfiguration.from_dict(config):
        raise BadInput(
            f"{folder}: was started with parameters that are not today's defaults (fedmerit "
            f"{recorded['fedmerit_version']} wrote it); choose another --out"
        )
    if recorded["sites"] != list(names):
        raise BadInput(
            f"{folder}: was started with the sites {', '.join(recorded['sites'])}, {asked['sites']} now holds "
            f"{', '.join(names)}; give it the same sites, or choose another --out"
        )
    if recorded["server_sites"] and "server_sites" not in asked:
        raise BadInput(
            f"{folder}: was started with --server-sites {recorded['server_sites']}; "
            "give it the same, or choose another --out"
        )


def work_off(
    planned: Sequence[Planned],
    workers: int,
    on_end: OnEnd,
    on_round: OnRound = lambda folder, record: None,
    after: Callable[[Path], None] | None = None,
) -> dict[Path, str]:
    """Train and test what is not finished, ``workers`` at a time; the runs that failed, and why.

    Runs that wait for what sites reach alone come last. Those of the simulator go one after the other, since each
    starts processes for its sites. Of fewer runs than there are cores, each has several sites at work at a time, where
    it was not created with a number of them. The other arguments are those of `evaluation.pool.execute_all`.
    """
    failed: dict[Path, str] = {}
    for waiting in (False, True):
        left = []
        for run in planned:
            if (run.alone is not None) == waiting and not run.finished:
                try:
                    run.begin()
                    left.append(run.folder)
                except (BadInput, RunFailed) as error:
                    failed[run.folder] = str(error)
                    on_end(run.folder, str(error))
        failed |= _execute(left, workers, on_end, on_round, after)
    return failed


def _execute(
    folders: Sequence[Path], workers: int, on_end: OnEnd, on_round: OnRound, after: Callable[[Path], None] | None
) -> dict[Path, str]:
    if not folders:
        return {}
    info = read_run(folders[0])
    if info["engine"] != "local":  # NVFlare has processes of its own
        return execute_in_turn(folders, on_end, on_round, after)
    busy = min(workers, len(folders)) * info["training"]["cpu_threads"]
    threads = info["threads"] or max(1, cores() // busy)
    return execute_all(folders, workers, on_end, on_round, after, threads=threads)


def results_of(planned: Sequence[Planned]) -> pd.DataFrame:
    """The results of the finished runs in one table; column ``method`` holds their labels."""
    finished = [open_run(run.folder).results.assign(method=run.label) for run in planned if run.finished]
    return pd.concat(finished, ignore_index=True) if finished else pd.DataFrame(columns=COLUMNS)


def write_tables(out: Path, planned: Sequence[Planned]) -> list[Table]:
    """The tables of `evaluation.compare.tables`, written below ``out/tables`` as CSV and LaTeX."""
    labels, seeds = dict.fromkeys(run.label for run in planned), dict.fromkeys(run.seed for run in planned)
    found = compare.tables(results_of(planned), list(labels), list(seeds))
    formats.write_tables(found, out / "tables")
    return found
