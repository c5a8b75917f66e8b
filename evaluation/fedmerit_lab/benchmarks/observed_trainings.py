"""Trainings that estimators of values look at: begun, gone on with, and what that cost.

They are of FedAvg by all sites; where an estimator asks what sites are alone, another of standalone stands beside.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmerit.configuration.observation import parse as parse_observer
from fedmerit.engines import resumption, runs
from fedmerit.errors import RunFailed
from fedmerit.federation.checkpoint import is_finished
from fedmerit.files import read_json
from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit_evaluation.ground_truth.semivalues import FloatArray
from fedmerit_evaluation.studies.cluster import Workers, execute_all
from fedmerit_evaluation.valuation.estimators import parse
from fedmerit_evaluation.valuation.observed_run import DRAWS, ObservedRun
from fedmerit_evaluation.valuation.valued_runs import value_runs

TOGETHER, ALONE = "fedavg", "standalone"  # methods of the trainings
ESTIMATORS = (
    "multi_round", "multi_round:voice=others", "multi_round:kind=leave_one_out", "multi_round:weigh=progress",
    "one_round", "one_round:kind=leave_one_out", "leave_one_out_loss", "local_only", "local_only:voice=others",
    "contribution", "data_size",
    "label_volume", "knn_shapley", "label_distance", "intensity_distance",
)  # fmt: skip


def by_method(estimators: Sequence[str]) -> dict[str, list[str]]:
    """The specs by the method of the trainings that they look at, `TOGETHER` or `ALONE`."""
    chosen: dict[str, list[str]] = {TOGETHER: [], ALONE: []}
    for spec in estimators:
        observer = parse(spec).observes
        lone = observer and parse_observer(observer).needs_standalone
        chosen[ALONE if lone else TOGETHER].append(spec)
    return chosen


def begin(
    folder: Path,
    sites: Path,
    seed: int,
    rounds: int,
    settings: Mapping[str, str],
    estimators: Sequence[str],
    method: str = TOGETHER,
) -> None:
    """A run folder to work off, which observes what ``estimators`` need; one that observes more goes on as it is.

    Raises:
        BadInput: there is one already, and it is of something else, or observes less.
    """
    observed = list(dict.fromkeys(name for spec in estimators if (name := parse(spec).observes)))
    asked: dict[str, Any] = {"method": method, "sites": sites, "rounds": rounds, "seed": seed, "engine": "local",
                             "settings": dict(settings), "values": observed}  # fmt: skip
    if (folder / "run.json").exists():
        info = read_json(folder / "run.json")
        begun = info["plan"].get("values", [])  # a plan that observes nothing does not say so
        more = set(observed) <= {spec.partition(":")[0] for spec in begun}
        resumption.require_same(folder, asked | ({"values": begun} if more else {}))
        resumption.require_same_images(folder, info, open_sites(sites, info["sites"]))
    else:
        runs.create(folder, **asked)


def work_off(
    folders: Sequence[Path], rounds: int, workers: Workers, on_end: Callable[[Path, str | None], None]
) -> None:
    """Train what is not finished; `RunFailed` where a training failed, the same call goes on from what is done."""
    require_success(execute_all([one for one in folders if not is_finished(one, rounds)], workers, on_end))


def require_success(failed: Mapping[Path, str]) -> None:
    """`RunFailed` with the reasons of what failed, by folder."""
    if failed:
        raise RunFailed("; ".join(f"{folder}: {why}" for folder, why in failed.items()))


@dataclass(frozen=True, eq=False)
class EstimatorResults:
    """What estimators said of finished trainings."""

    together: Sequence[ObservedRun]  # the s runs of FedAvg
    said: Mapping[str, FloatArray]  # by spec: (s, n, D)
    costs: Mapping[str, float]  # by spec: as `cost` has it


def run_estimators(
    folders: Mapping[str, Sequence[Path]], estimators: Sequence[str], draws: int = DRAWS
) -> EstimatorResults:
    """What estimators say of finished trainings: ``folders`` by method, as many of each."""
    chosen = {method: specs for method, specs in by_method(estimators).items() if specs or method == TOGETHER}
    valued = {method: value_runs(folders[method], specs, draws) for method, specs in chosen.items()}
    together = valued[TOGETHER].runs
    said = {spec: values for one in valued.values() for spec, values in one.values.items()}
    costs = {spec: cost(one.runs, spec, together) for one in valued.values() for spec in one.values}
    return EstimatorResults(together, {spec: said[spec] for spec in estimators}, costs)


def cost(observed: Sequence[ObservedRun], spec: str, together: Sequence[ObservedRun]) -> float:
    """Seconds that an estimator took, by those of a training of FedAvg; 0 where it has nothing evaluated.

    Args:
        observed: the trainings that it looks at.
        spec: of it.
        together: those of FedAvg; where ``observed`` are others, their own training counts, too.
    """
    observer = parse(spec).observes
    if not observer:
        return 0.0
    parts = []
    for one, beside in zip(observed, together, strict=True):
        own = 0.0 if one is beside else one.seconds["training"]
        parts.append((own + one.seconds.get(observer, 0.0)) / beside.seconds["training"])
    return float(np.mean(parts))
