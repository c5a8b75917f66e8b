"""Proxy of retraining: coalitions trained with a small network, on small images, for few rounds.

`fedmerit_lab.benchmarks.value_benchmark` measures its agreement with retraining.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fedmerit.contract.semivalues import FloatArray, Game, list_sites, required_coalitions, shapley_weights
from fedmerit.errors import BadInput, RunFailed
from fedmerit.schema.declarations import Checked
from fedmerit.schema.rules import About, Count
from fedmerit.schema.site_folder import open_sites
from fedmerit_evaluation.ground_truth import coalitions
from fedmerit_evaluation.ground_truth.coalitions import Training
from fedmerit_evaluation.ground_truth.reliability import Values, resample, semivalue_function
from fedmerit_evaluation.ground_truth.shapley_approximations import coalitions_to_train, least_squares_values
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.studies.execution import Workers
from fedmerit_lab.benchmarks.scenarios import make_if_missing
from fedmerit_lab.partitioning.downsampling import shrink


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
    on_end: Callable[[Path, str | None], None] = lambda folder, error: None,
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
        on_end: as of `fedmerit_evaluation.ground_truth.coalitions.execute_trainings`.
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
    if failed := coalitions.execute_trainings(trainings, workers, on_end):
        raise RunFailed("; ".join(f"{folder}: {why}" for folder, why in failed.items()))
    results: Results = coalitions.collect_results(trainings)
    if not results.sites:
        raise BadInput(f"{out}: no training is finished; run the same command again")
    found = resample(results, proxy.values)
    values = found.values if found.of_folds is None else found.of_folds[..., None]
    return ProxyResult(values, coalitions.sum_seconds(trainings), trainings)
