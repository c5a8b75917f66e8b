"""Trainings that estimators of values observe: creation, execution, cost.

They are of FedAvg by all sites; an estimator that needs local-only models also gets a training of standalone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmerit.contract.semivalues import FloatArray
from fedmerit.engines import resumption, runs
from fedmerit.engines.image_sites import require_same_images
from fedmerit.errors import RunFailed
from fedmerit.files import read_json
from fedmerit.schema.site_folder import open_sites
from fedmerit.server.checkpoint import is_finished
from fedmerit_evaluation.studies.execution import Workers, execute_all
from fedmerit_evaluation.valuation.estimators import parse
from fedmerit_evaluation.valuation.observed_run import DRAWS, ObservedRun
from fedmerit_evaluation.valuation.valued_runs import value_runs

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
