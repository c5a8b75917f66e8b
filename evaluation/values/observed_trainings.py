"""FedAvg trainings that estimators of values observe: begun, gone on with, and what observing cost them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.studies.cluster import Workers, execute_all
from evaluation.values.estimators import parse
from evaluation.values.observed_run import ObservedRun
from fedmerit.engines import runs
from fedmerit.errors import RunFailed
from fedmerit.federation.checkpoint import is_finished
from fedmerit.files import read_json

OBSERVERS = ("in_run", "carried", "others_lose")
ESTIMATORS = (
    "in_run", "in_run:voice=others", "in_run:kind=leave_one_out", "in_run:weigh=progress", "carried",
    "carried:kind=leave_one_out", "others_lose", "contribution", "data_size", "label_volume", "knn_shapley",
    "label_distance", "intensity_distance",
)  # fmt: skip


def begin(
    folder: Path, sites: Path, seed: int, rounds: int, settings: Mapping[str, str], estimators: Sequence[str]
) -> None:
    """A run folder to work off, which observes what ``estimators`` need; one that observes more goes on as it is.

    Raises:
        BadInput: there is one already, and it is of something else, or observes less.
    """
    needed = {parse(spec).observes for spec in estimators}
    observed = [name for name in OBSERVERS if name in needed]
    asked: dict[str, Any] = {"method": "fedavg", "sites": sites, "rounds": rounds, "seed": seed, "engine": "local",
                             "settings": dict(settings), "values": observed}  # fmt: skip
    if (folder / "run.json").exists():
        begun = read_json(folder / "run.json")["plan"]["values"]
        more = needed - {""} <= {spec.partition(":")[0] for spec in begun}
        runs.require_same(folder, asked | ({"values": begun} if more else {}))
    else:
        runs.create(folder, **asked)


def work_off(
    folders: Sequence[Path], rounds: int, workers: Workers, on_end: Callable[[Path, str | None], None]
) -> None:
    """Train what is not finished; `RunFailed` where a training failed, the same call goes on from what is done."""
    require_done(execute_all([one for one in folders if not is_finished(one, rounds)], workers, on_end))


def require_done(failed: Mapping[Path, str]) -> None:
    """`RunFailed` with the reasons of what failed, by folder."""
    if failed:
        raise RunFailed("; ".join(f"{folder}: {why}" for folder, why in failed.items()))


def cost(observed: Sequence[ObservedRun], spec: str) -> float:
    """Seconds of evaluation that an estimator needed, by the seconds of the training; 0 where it needs none."""
    observer = parse(spec).observes
    if not observer:
        return 0.0
    return float(np.mean([run.seconds.get(observer, 0.0) / run.seconds["training"] for run in observed]))
