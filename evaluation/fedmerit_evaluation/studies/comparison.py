"""The runs of a comparison: plan them, create and execute the missing ones, collect their results."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from fedmerit.contract.capabilities import capabilities
from fedmerit.engines import runs
from fedmerit.engines.given_contributions import format_setting, read_contributions
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import write_json
from fedmerit.machine import cores
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.options import NVFLARE_ONLY
from fedmerit.schema.run_info import read_run
from fedmerit.server.checkpoint import is_finished
from fedmerit.trainers.monai.data import read_site_digests
from fedmerit_evaluation.figures import tables
from fedmerit_evaluation.figures.tables import Table, file_name
from fedmerit_evaluation.results.dice import STANDALONE
from fedmerit_evaluation.results.recorded_digests import DIGESTS
from fedmerit_evaluation.results.run_folders import combine_results, open_run
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.studies import comparison_tables, cost
from fedmerit_evaluation.studies.cluster import OnEnd, OnRound, Workers, execute_all, execute_in_turn
from fedmerit_evaluation.studies.cost import Cost
from fedmerit_evaluation.studies.ensemble import write_ensemble
from fedmerit_evaluation.studies.execution import After, has_own_processes
from fedmerit_evaluation.studies.study_folders import (
    ENSEMBLE,
    MethodSpec,
    in_folds,
    require_same,
    require_same_images,
    scratch,
)
from fedmerit_evaluation.studies.study_sites import open_study_sites

STUDY = "compare.json"  # the last options of the folder's runs


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison.

    If local training is compared too, a method that takes given contributions gets them from there: its run can start
    once the other is finished.
    """

    label: str
    seed: int
    folder: Path
    standalone: Path | None = None  # the run folder of local training that it waits for
    asked: Mapping[str, Any] = field(default_factory=dict, compare=False)  # then: options of `runs.create`
    fold: int | None = None

    @property
    def name(self) -> str:
        """Method, seed, and fold if there are several."""
        return f"{self.label}, seed {self.seed}" + ("" if self.fold is None else f", fold {self.fold}")

    @property
    def finished(self) -> bool:
        """Whether it is trained and tested."""
        there = (self.folder / "run.json").exists()
        return there and is_finished(self.folder, int(read_run(self.folder)["rounds"]))

    def begin(self) -> None:
        """Create the run folder if that had to wait; `RunFailed` if it still cannot be created."""
        if self.standalone is None or (self.folder / "run.json").exists():
            return
        if not is_finished(self.standalone, int(self.asked["rounds"])):
            raise RunFailed(f"it needs the contributions of {self.standalone}, which is not finished")
        runs.create(self.folder, **_with_contributions(self.asked, self.standalone))


class EnsembleRun(PlannedRun):
    """The test of the ensemble of local models, once they are trained."""

    @property
    def finished(self) -> bool:
        """Whether it is tested."""
        return (self.folder / "run.json").exists()

    def begin(self) -> None:
        """Test it; `RunFailed` if the models are not there yet."""
        assert self.standalone
        if not is_finished(self.standalone, int(self.asked["rounds"])):
            raise RunFailed(f"it needs the models of {self.standalone}, which is not finished")
        write_ensemble(self.standalone, self.folder)


def prepare(
    out: Path,
    items: Sequence[MethodSpec],
    seeds: Sequence[int],
    settings: Mapping[str, str],
    options: Mapping[str, Any],
    folds: Sequence[int] = (),
) -> list[PlannedRun]:
    """Check every run, then create the missing ones; if one cannot be created, none is.

    Args:
        options: further ones of `fedmerit.engines.runs.create`, for every run; ``rounds``, and ``sites`` or a
            ``script`` among them.
        folds: of the sites, each to train on; none: the splits of datalist.json.

    Returns:
        The runs: all items for one seed and fold, then for the next.

    Raises:
        BadInput: a run cannot be created, or exists with other options or sites.
    """
    sites = open_study_sites(options)
    names = sites.names
    require_same_images(out / STUDY, sites.folders)
    planned = list[PlannedRun]()
    with scratch(out) as new:
        for seed, (suffix, of_fold) in product(seeds, in_folds(options, folds)):
            for item in items:
                if both := sorted(set(settings) & set(item.settings)):
                    raise BadInput(f"--methods {item.label}: {both[0]} is also given by --set; give it once")
                folder = out / f"{file_name(item.label)}_seed{seed}{suffix}"
                if item.method == ENSEMBLE:
                    _require_standalone(item, items)
                    trained = out / f"{STANDALONE}_seed{seed}{suffix}"
                    planned.append(EnsembleRun(item.label, seed, folder, trained, of_fold, of_fold.get("fold")))
                    continue
                from_standalone = _takes_contributions(item, items)
                own = {
                    name: value
                    for name, value in item.settings.items()
                    if not (from_standalone and value == STANDALONE)
                }
                asked = {**of_fold, "method": item.method, "seed": seed, "settings": {**settings, **own}}
                if capabilities(METHODS[item.method]()).pools_images:
                    asked["engine"] = "local"  # it has no other engine, and this one waits for all sites
                    asked = {name: value for name, value in asked.items() if name not in NVFLARE_ONLY}
                standalone = out / f"{STANDALONE}_seed{seed}{suffix}" if from_standalone else None
                if standalone and is_finished(standalone, options["rounds"]):
                    asked, standalone = _with_contributions(asked, standalone), None
                if (folder / "run.json").exists():
                    require_same(folder, asked, sites.folders)
                elif folder.exists() and any(folder.iterdir()):
                    raise BadInput(f"{folder}: holds no run.json, but other files; choose another --out")
                else:
                    stand_in = {"contributions": ",".join("1" for _ in names)} if standalone else {}
                    runs.create(new / folder.name, **asked | {"settings": stand_in | asked["settings"]})
                    if standalone:  # it was only a check
                        shutil.rmtree(new / folder.name)
                planned.append(PlannedRun(item.label, seed, folder, standalone, asked, of_fold.get("fold")))
        for folder in sorted(new.glob("*")):
            folder.rename(out / folder.name)
    asked_for = {"methods": [item.label for item in items], "seeds": list(seeds), "settings": dict(settings)}
    asked_for |= {"folds": list(folds)} if folds else {}
    places = {name: str(value.resolve()) for name, value in options.items() if isinstance(value, Path)}
    of_sites = {"site_names": names, DIGESTS: read_site_digests(sites.folders)}
    write_json(out / STUDY, {**asked_for, **options, **places, **of_sites})
    return planned


def _takes_contributions(item: MethodSpec, items: Sequence[MethodSpec]) -> bool:
    """Whether a method takes the contributions of local training, which is among ``items``.

    That is with ``contributions=standalone``, or if it would compute contributions itself and is given none.

    Raises:
        BadInput: ``contributions=standalone``, and local training is not compared.
    """
    if item.settings.get("contributions") == STANDALONE:
        _require_standalone(item, items)
        return True
    there = any(other.label == STANDALONE for other in items)
    own = {part.name for part in fields(METHODS[item.method])}
    given = {"contributions", "standalone_rounds"} & set(item.settings)
    return there and "standalone_rounds" in own and not given


def _require_standalone(item: MethodSpec, items: Sequence[MethodSpec]) -> None:
    if not any(other.label == STANDALONE for other in items):
        raise BadInput(f"--methods {item.label}: {STANDALONE} is not compared; name it among the methods")


def _with_contributions(asked: Mapping[str, Any], standalone: Path) -> dict[str, Any]:
    """The options with the Dice of local training as given contributions."""
    contributions = read_contributions(standalone, read_run(standalone)["sites"])
    return {**asked, "settings": {**asked["settings"], "contributions": format_setting(contributions)}}


def estimate_cost(planned: Sequence[PlannedRun]) -> Cost:
    """Cost of the unfinished `trainings`, without those that still wait for local training."""
    left = [run for run in planned if not run.finished]
    return cost.estimate_cost(len(left), [run.folder for run in left if (run.folder / "run.json").exists()])


def trainings(planned: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The runs that train."""
    return [run for run in planned if not isinstance(run, EnsembleRun)]


def execute_runs(
    planned: Sequence[PlannedRun],
    workers: Workers,
    on_end: OnEnd,
    on_round: OnRound = lambda folder, record: None,
    after: After | None = None,
) -> dict[Path, str]:
    """Train and test the unfinished runs in parallel; returns the runs that failed, and why.

    Runs that wait for local training come last, as do ensembles, which are only tested. Runs whose sites have
    processes of their own are executed one by one. With fewer runs than cores, each runs several sites concurrently,
    unless it was created with a number of them. The other arguments are those of
    `fedmerit_evaluation.studies.cluster.execute_all`.
    """
    failed: dict[Path, str] = {}
    for waiting in (False, True):
        left = []
        for run in planned:
            if (run.standalone is not None) == waiting and not run.finished:
                try:
                    run.begin()
                    if isinstance(run, EnsembleRun):
                        on_end(run.folder, None)
                    else:
                        left.append(run.folder)
                except (BadInput, RunFailed) as error:
                    failed[run.folder] = str(error)
                    on_end(run.folder, str(error))
        failed |= _execute(left, workers, on_end, on_round, after)
    return failed


def _execute(
    folders: Sequence[Path], workers: Workers, on_end: OnEnd, on_round: OnRound, after: After | None
) -> dict[Path, str]:
    local = [folder for folder in folders if not has_own_processes(folder)]
    failed = {}
    if local:
        info = read_run(local[0])
        busy = workers.number_for(local[0], len(local)) * info["training"]["cpu_threads"]
        threads = info["threads"] or max(1, cores() // busy)
        failed = execute_all(local, workers, on_end, on_round, after, threads=threads)
    others = [folder for folder in folders if folder not in local]
    return failed | execute_in_turn(others, on_end, on_round, after)


def collect_results(planned: Sequence[PlannedRun], order: Sequence[str] | None = None) -> Results:
    """The results of the finished runs, column ``method`` by their labels, in this order or as planned.

    Of a method and seed only if all folds are finished.
    """
    missing = {(run.label, run.seed) for run in planned if not run.finished}
    whole = [run for run in planned if (run.label, run.seed) not in missing]
    finished = [replace(open_run(run.folder), label=run.label) for run in whole]
    return combine_results(finished, order)


def write_tables(out: Path, planned: Sequence[PlannedRun]) -> list[Table]:
    """The tables of `fedmerit_evaluation.studies.comparison_tables`, written below ``out/tables`` as CSV and LaTeX."""
    labels, seeds = dict.fromkeys(run.label for run in planned), dict.fromkeys(run.seed for run in planned)
    results = collect_results(planned)
    found = comparison_tables.tables(results, list(labels), list(seeds))
    tables.write_tables(found, out / "tables")
    if not any(table.name == "gains" for table in found):  # files there are of an earlier call with local training
        for stale in ("gains.csv", "gains.tex"):
            (out / "tables" / stale).unlink(missing_ok=True)
    return found
