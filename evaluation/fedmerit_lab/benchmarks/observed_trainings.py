"""Trainings that estimators of values rest on: creation, execution, cost.

Observed trainings are of FedAvg by all sites; an estimator that needs local-only models also gets a training of
standalone. A proxy of retraining trains coalitions instead, with a small network, on small images, for few rounds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedmerit.contract.semivalues import FloatArray, Game, list_sites, required_coalitions, shapley_weights
from fedmerit.engines import resumption, runs
from fedmerit.engines.image_sites import require_same_images
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import read_json
from fedmerit.schema.declarations import Checked
from fedmerit.schema.rules import About, Count
from fedmerit.schema.site_folder import open_sites
from fedmerit.server.checkpoint import is_finished
from fedmerit_evaluation.ground_truth import coalitions
from fedmerit_evaluation.ground_truth.coalitions import Training
from fedmerit_evaluation.ground_truth.reliability import Values, resample, semivalue_function
from fedmerit_evaluation.ground_truth.shapley_approximations import coalitions_to_train, least_squares_values
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.studies.execution import OnEnd, Workers, execute_all
from fedmerit_evaluation.valuation.estimators import parse
from fedmerit_evaluation.valuation.observed_run import DRAWS, ObservedRun
from fedmerit_evaluation.valuation.valued_runs import value_runs
from fedmerit_lab.benchmarks.scenarios import make_if_missing
from fedmerit_lab.partitioning.downsampling import shrink

FEDERATED, LOCAL_ONLY = "fedavg", "standalone"  # methods of the trainings
ESTIMATORS = (
    "multi_round", "multi_round:voice=others", "multi_round:kind=leave_one_out", "multi_round:weigh=progress",
    "one_round", "one_round:kind=leave_one_out", "leave_one_out_loss", "local_only", "local_only:voice=others",
    "coverage", "coverage:kind=leave_one_out", "safe", "innovation", "contribution", "data_size",
    "label_volume", "knn_shapley", "label_distance", "intensity_distance",
)  # fmt: skip


def by_method(estimators: Sequence[str]) -> dict[str, list[str]]:
    """Return the specs by the method of the trainings that they observe, `FEDERATED` or `LOCAL_ONLY`."""
    chosen: dict[str, list[str]] = {FEDERATED: [], LOCAL_ONLY: []}
    for spec in estimators:
        chosen[LOCAL_ONLY if parse(spec).needs_standalone else FEDERATED].append(spec)
    return chosen


def require_few_sites(estimators: Sequence[str], sites: Path) -> None:
    """Raise `BadInput` naming an estimator for which the prepared sites in a folder are too many."""
    for spec in estimators:
        parse(spec).require_few(len(open_sites(sites)), sites)


def create_run(
    folder: Path,
    sites: Path,
    seed: int,
    rounds: int,
    settings: Mapping[str, str],
    estimators: Sequence[str],
    method: str = FEDERATED,
    fold: int | None = None,
) -> None:
    """Create a run folder that observes what ``estimators`` need; an existing one may observe more.

    Raises:
        BadInput: an existing one has other options, or observes less.
    """
    observed = list(dict.fromkeys(name for spec in estimators if (name := parse(spec).observes)))
    asked: dict[str, Any] = {"method": method, "sites": sites, "rounds": rounds, "seed": seed, "engine": "local",
                             "settings": dict(settings), "values": observed, "fold": fold}  # fmt: skip
    if (folder / "run.json").exists():
        info = read_json(folder / "run.json")
        before = info["plan"].get("values", [])  # absent if the plan observes nothing
        has_all = set(observed) <= {spec.partition(":")[0] for spec in before}
        resumption.require_same(folder, asked | ({"values": before} if has_all else {}))
        require_same_images(folder, info, open_sites(sites, info["sites"]))
    else:
        runs.create(folder, **asked)


def execute_runs(
    folders: Sequence[Path], rounds: int, workers: Workers, on_end: Callable[[Path, str | None], None]
) -> None:
    """Execute unfinished runs; `RunFailed` if one fails, and the same call resumes."""
    require_success(execute_all([folder for folder in folders if not is_finished(folder, rounds)], workers, on_end))


def require_success(failed: Mapping[Path, str]) -> None:
    """Raise `RunFailed` with the reasons by folder, if there are any."""
    if failed:
        raise RunFailed("; ".join(f"{folder}: {why}" for folder, why in failed.items()))


@dataclass(frozen=True, eq=False)
class EstimatorResults:
    """A record of the values by all estimators of finished trainings."""

    federated: Sequence[ObservedRun]  # the s runs of FedAvg
    values: Mapping[str, FloatArray]  # by spec: (s, n, D), or of folds (F, n, 1)
    costs: Mapping[str, float]  # by spec: of `relative_cost`


def run_estimators(
    folders: Mapping[str, Sequence[Path]], estimators: Sequence[str], draws: int = DRAWS
) -> EstimatorResults:
    """Run the estimators on finished trainings, ``folders`` by method, as many of each."""
    chosen = {method: specs for method, specs in by_method(estimators).items() if specs or method == FEDERATED}
    valued = {method: value_runs(folders[method], specs, draws) for method, specs in chosen.items()}
    federated = valued[FEDERATED].runs
    values = {spec: one.values(spec) for one in valued.values() for spec in one.of_each}
    costs = {spec: relative_cost(one.runs, spec, federated) for one in valued.values() for spec in one.of_each}
    return EstimatorResults(federated, {spec: values[spec] for spec in estimators}, costs)


def relative_cost(observed: Sequence[ObservedRun], spec: str, federated: Sequence[ObservedRun]) -> float:
    """Return seconds of an estimator beyond FedAvg, relative to a training of FedAvg.

    Args:
        observed: the trainings that it observes.
        spec: of it.
        federated: those of FedAvg; if ``observed`` are others, their training counts too.
    """
    observer, parts = parse(spec).observes, []
    for one, base in zip(observed, federated, strict=True):
        training = 0.0 if one is base else one.seconds["training"]
        parts.append((training + one.seconds.get(observer, 0.0)) / base.seconds["training"])
    return float(np.mean(parts))


@dataclass(frozen=True)
class Proxy(Checked):
    """A way to train coalitions cheaply."""

    rounds: Annotated[int, Count(1), About("of each training")] = 10
    width: Annotated[int, Count(1, 512), About("channels of the network's first level")] = 4
    depth: Annotated[int, Count(2, 9), About("its levels")] = 4
    shrink: Annotated[int, Count(1, 16), About("downsampling factor of images")] = 1
    most: Annotated[int, Count(8), About("coalitions; of more, a sample for a regression")] = 64

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of every training; they replace those of the runs that it approximates."""
        return {"width": str(self.width), "depth": str(self.depth)}

    @property
    def values(self) -> Values:
        """The exact if all coalitions are trained."""
        return lambda game: semivalue_function(shapley_weights)(game) if _complete(game) else least_squares_values(game)


def _complete(game: Game) -> bool:
    return bool(len(game) == 2 ** len(list_sites(game)))


@dataclass(frozen=True, eq=False)
class ProxyResult:
    """The values of a proxy and their cost."""

    values: FloatArray  # (s, n, D), or of folds (F, n, 1)
    seconds: float  # of all sites, seeds and folds
    trainings: Sequence[Training]


def train_proxy(
    proxy: Proxy,
    sites: Path,
    out: Path,
    seeds: Sequence[int],
    settings: Mapping[str, str],
    workers: Workers,
    begin: Callable[[int], OnEnd] = lambda total: lambda folder, error: None,
    folds: Sequence[int] = (),
) -> ProxyResult:
    """Execute the missing trainings of a proxy and compute its values.

    Args:
        proxy: how.
        sites: folder of site folders.
        out: the study's folder.
        seeds: of every coalition.
        settings: of the trainings that the proxy approximates.
        workers: processes that train.
        begin: called with the number of trainings to do; returns what is called with each that ends.
        folds: of the sites, each to train on; none: the splits of datalist.json.

    Raises:
        BadInput: a training cannot be created, or ``out`` belongs to other sites.
        RunFailed: a training failed.
    """
    small = sites
    if proxy.shrink > 1:
        small = out / "sites"
        asked = {"sites": str(sites.resolve()), "shrink": proxy.shrink}
        make_if_missing(small, asked, lambda: shrink(sites, small, proxy.shrink))
    names = [site.name for site in open_sites(small)]
    if 2 ** len(names) <= proxy.most:
        chosen = [coalition for coalition in required_coalitions(names, shapley_weights) if coalition]
    else:
        chosen = coalitions_to_train(names, proxy.most, 0)
    options = {"sites": small, "rounds": proxy.rounds, "engine": "local"}
    trainings = coalitions.prepare(out, chosen, seeds, "fedavg", {**settings, **proxy.settings}, options, folds)
    on_end = begin(sum(not training.finished for training in trainings))
    if failed := coalitions.execute_trainings(trainings, workers, on_end):
        raise RunFailed("; ".join(f"{folder}: {why}" for folder, why in failed.items()))
    results: Results = coalitions.collect_results(trainings)
    if not results.sites:
        raise BadInput(f"{out}: no training is finished; run the same command again")
    found = resample(results, proxy.values)
    values = found.values if found.of_folds is None else found.of_folds[..., None]
    return ProxyResult(values, coalitions.sum_seconds(trainings), trainings)
