"""Estimators of values against retraining, world by world: docs/values_protocol.md says how, so that others can.

``OUT/WORLD`` holds the world's ``sites``, the ``truth`` (every coalition, every seed), the ``observed`` runs of FedAvg
by seed, those of sites that train ``alone``, the runs of other ``methods``, and the ``proxy`` trainings. All of it goes
on where it was interrupted.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from fedmerit.configuration import spec_syntax
from fedmerit.configuration.recipes import ROUNDS
from fedmerit.errors import BadInput
from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit_evaluation.figures.tables import Table, plain_name
from fedmerit_evaluation.ground_truth import coalitions
from fedmerit_evaluation.ground_truth.ground_truths import LEAVE_ONE_OUT, SHAPLEY
from fedmerit_evaluation.ground_truth.power import reliability_table
from fedmerit_evaluation.ground_truth.reliability import POINTS, Resampled, correlation, resample
from fedmerit_evaluation.ground_truth.semivalues import FloatArray
from fedmerit_evaluation.ground_truth.shapley_approximations import coalitions_to_train, shapley_or_regression
from fedmerit_evaluation.ground_truth.value_tables import REFERENCES
from fedmerit_evaluation.results.run_folders import undefined_quantities
from fedmerit_evaluation.statistics.ranks import ranking
from fedmerit_evaluation.statistics.ranks import resample as resample_seeds
from fedmerit_evaluation.studies import comparison
from fedmerit_evaluation.studies.cluster import Workers
from fedmerit_evaluation.studies.study_folders import MethodSpec
from fedmerit_evaluation.valuation.estimator import OwnContribution
from fedmerit_evaluation.valuation.estimators import parse
from fedmerit_evaluation.valuation.observed_run import ObservedRun
from fedmerit_evaluation.valuation.valued_runs import rank_flip_table
from fedmerit_lab.benchmarks import observed_trainings
from fedmerit_lab.benchmarks.budget_allocation import Outcome, budget_table
from fedmerit_lab.benchmarks.observed_trainings import ALONE, TOGETHER
from fedmerit_lab.benchmarks.proxy_trainings import Proxy, train_proxy
from fedmerit_lab.benchmarks.scenarios import make
from fedmerit_lab.benchmarks.scenarios import parse as parse_world

PROXY = "proxy"
MOST = 256  # coalitions: all of 8 sites
ESTIMATORS = (*observed_trainings.ESTIMATORS, PROXY)


@dataclass(frozen=True)
class Bench:
    """What a benchmark is asked for.

    Args:
        out: folder of everything.
        pool: folder of prepared sites whose patients are dealt.
        worlds: specs, as of `fedmerit_lab.benchmarks.scenarios`; ``asis``: the pool's sites as they are.
        estimators: specs, as of `fedmerit_evaluation.valuation.estimators`, or of a `Proxy`.
        methods: whose own contributions are judged beside them, each in runs of its own.
        seeds: of training.
        rounds: of training.
        settings: of training.
        workers: processes that train.
        draws: of patients, for intervals.
        most: coalitions that a truth takes; where there are more, so many are drawn for a regression over them.
    """

    out: Path
    pool: Path
    worlds: Sequence[str]
    estimators: Sequence[str] = ESTIMATORS
    methods: Sequence[MethodSpec] = ()
    seeds: Sequence[int] = (0,)
    rounds: int = ROUNDS
    settings: Mapping[str, str] = field(default_factory=dict)
    workers: Workers = field(default_factory=lambda: Workers(1))
    draws: int = 500
    most: int = MOST

    @property
    def of_runs(self) -> list[str]:
        """The estimators that look at a run of all sites; a proxy trains its own."""
        return [spec for spec in self.estimators if spec_syntax.split_spec(spec)[0] != PROXY]

    @property
    def local_only_seeds(self) -> list[int]:
        """Of sites that train alone: none of the truth's, whose coalitions of one are such trainings, too."""
        return [max(self.seeds) + 1 + place for place in range(len(self.seeds))]


@dataclass(frozen=True, eq=False)
class ScenarioResult:
    """One world: its truths, and what each estimator said."""

    world: str
    expected: str  # what was planted, in words
    truths: Mapping[str, Resampled]
    said: Mapping[str, FloatArray]  # by spec, or method: (s, n, D)
    costs: Mapping[str, float]  # by spec, or method, in trainings of FedAvg by all sites beside the run itself
    outcomes: Mapping[str, Outcome]  # by spec, or method: what the sites reach meanwhile


AS_IS = "asis"
Progress = Callable[[str, int, int], None]  # of what is done, how far, of how many


def judge(bench: Bench, world: str, progress: Progress = lambda what, done, of: None) -> ScenarioResult:
    """Make a world, train what is missing, and hear every estimator.

    Raises:
        BadInput: something asked for cannot be used.
        RunFailed: a training failed; the same call goes on from what is done.
    """
    folder = bench.out / plain_name(world)
    if world == AS_IS:
        sites, expected = bench.pool, "not planted"
    else:
        sites = folder / "sites"
        expected = make(world, bench.pool, sites)
    planned = _planned(bench, sites, folder / "methods")  # what cannot be run is refused before hours of training
    truths, alone = _truths(bench, sites, folder / "truth", progress)
    observed = {TOGETHER: _observed(bench, sites, folder / "observed", TOGETHER, progress)}
    if observed_trainings.by_method(bench.of_runs)[ALONE]:
        observed[ALONE] = _observed(bench, sites, folder / "alone", ALONE, progress)
    heard = observed_trainings.run_estimators(observed, bench.of_runs, bench.draws)
    said, costs = dict(heard.said), dict(heard.costs)
    training = float(np.mean([run.seconds["training"] for run in heard.together]))
    for spec in bench.estimators:
        if spec not in said:
            proxy: Proxy = spec_syntax.parse(spec, {PROXY: Proxy}, "--estimators")
            out = folder / spec.replace(":", "-").replace("=", "")
            found = train_proxy(proxy, sites, out, bench.seeds, bench.settings, bench.workers,
                                _counter(progress, f"{world}: {spec}"))  # fmt: skip
            said[spec] = found.values.values
            costs[spec] = found.seconds / len(bench.seeds) / training
    said = {spec: said[spec] for spec in bench.estimators}
    outcomes = dict.fromkeys(said, Outcome(_reached(heard.together), alone))
    failed = comparison.execute_runs(planned, bench.workers, _counter(progress, f"{folder.name}: methods"))
    observed_trainings.require_success(failed)
    for label in (item.label for item in bench.methods):
        of_method = [ObservedRun(run.folder, bench.draws) for run in planned if run.label == label]
        said[label] = np.stack([OwnContribution().values(run) for run in of_method])
        costs[label] = float(np.mean([run.seconds["training"] for run in of_method])) / training - 1
        outcomes[label] = Outcome(_reached(of_method), alone)
    return ScenarioResult(world, expected, truths, said, costs, outcomes)


def _reached(observed: Sequence[ObservedRun]) -> FloatArray:
    """(s, n) test Dice of each site's own patients."""
    return np.concatenate([run.results.dice.by_site[run.sites].to_numpy(dtype=np.float64) for run in observed])


def _planned(bench: Bench, sites: Path, out: Path) -> list[comparison.PlannedRun]:
    """The runs of the methods."""
    given: dict[str, Any] = {"sites": sites, "rounds": bench.rounds, "engine": "local"}
    return comparison.prepare(out, bench.methods, bench.seeds, bench.settings, given) if bench.methods else []


def _truths(bench: Bench, sites: Path, out: Path, progress: Progress) -> tuple[dict[str, Resampled], FloatArray]:
    """By name, and the (s, n) test Dice of each site's own model of a training alone."""
    names = [site.name for site in open_sites(sites)]
    grand = frozenset(names)
    asked = {*coalitions_to_train(names, bench.most, 0), *(grand - {name} for name in names)}
    asked |= {frozenset([name]) for name in names}  # what each reaches alone
    given: dict[str, Any] = {"sites": sites, "rounds": bench.rounds, "engine": "local"}
    trainings = coalitions.prepare(
        out, sorted(asked, key=lambda one: (-len(one), sorted(one))), bench.seeds, "fedavg", bench.settings, given
    )
    failed = coalitions.execute_trainings(trainings, bench.workers, _counter(progress, f"{out.parent.name}: truth"))
    coalitions.write_results(out)
    observed_trainings.require_success(failed)
    results = coalitions.collect_results(trainings)
    own = results.coalition_results.dice.by_site
    alone = np.array([[own.loc[(name, seed), name] for name in names] for seed in bench.seeds])
    truths = {SHAPLEY: lambda game: shapley_or_regression(game, names), LEAVE_ONE_OUT: REFERENCES[LEAVE_ONE_OUT]}
    return {name: resample(results, values, bench.draws) for name, values in truths.items()}, alone


def _observed(bench: Bench, sites: Path, out: Path, method: str, progress: Progress) -> list[Path]:
    estimators = observed_trainings.by_method(bench.of_runs)[method]
    seeds = bench.seeds if method == TOGETHER else bench.local_only_seeds
    folders = [out / f"seed{seed}" for seed in seeds]
    for folder, seed in zip(folders, seeds, strict=True):
        observed_trainings.begin(folder, sites, seed, bench.rounds, bench.settings, estimators, method)
    on_end = _counter(progress, f"{out.parent.name}: observed runs of {method}")
    observed_trainings.work_off(folders, bench.rounds, bench.workers, on_end)
    return folders


def _counter(progress: Progress, what: str) -> Callable[[Path, str | None], None]:
    done = 0

    def on_end(folder: Path, error: str | None) -> None:
        nonlocal done
        done += 1
        progress(what, done, 0)

    return on_end


def agreement(said: FloatArray, truth: Resampled, seed: int = 0) -> dict[str, float]:
    """Pearson and Spearman of means over seeds, and their 95 % intervals over seeds and patients of both.

    An interval is ``pearson_low``, ``pearson_high``, and likewise Spearman's; NaN where 5 % of the draws leave the
    correlation undefined.

    Args:
        said: (s, n, D) of an estimator.
        truth: of the same sites.
        seed: of the draws.
    """
    own, true = said[..., 0].mean(axis=0), truth.mean
    first, second = resample_seeds(said, seed), resample_seeds(truth.values, seed + 1)
    number = min(len(first), len(second))
    found: dict[str, float] = {}
    for name, of in (("pearson", np.asarray), ("spearman", rankdata)):
        drawn = np.array([correlation(of(a), of(b)) for a, b in zip(first[:number], second[:number], strict=True)])
        known = drawn[np.isfinite(drawn)]
        low, high = np.quantile(known, [0.025, 0.975]) if len(known) > 0.95 * number else (np.nan, np.nan)
        found |= {name: correlation(of(own), of(true)), f"{name}_low": float(low), f"{name}_high": float(high)}
    return found


def bench_tables(judged: Sequence[ScenarioResult]) -> list[Table]:
    """Estimators by worlds, how good every world's truth is, and what the values are."""
    tables = [_agreements(name, judged) for name in REFERENCES]
    for one in judged:
        table, name = reliability_table(one.truths), f"reliability-{plain_name(one.world)}"
        caption = f"World {one.world} ({one.expected}): {table.caption}"
        tables.append(Table(name, caption, table.frame, decimals=table.decimals))
        tables.append(_values(one))
        observed = {name: values[..., 0] for name, values in one.said.items()}
        tables.append(budget_table(one.world, one.truths[SHAPLEY], observed, one.outcomes, one.costs))
        rankings = {spec: ranking(one.truths[SHAPLEY].sites, values) for spec, values in one.said.items()}
        tables.append(rank_flip_table(rankings, f"flips-{plain_name(one.world)}", f"World {one.world}: pairs"))
    return tables


def _agreements(name: str, judged: Sequence[ScenarioResult]) -> Table:
    rows: list[dict[str, Any]] = []
    lows: list[dict[str, float]] = []
    highs: list[dict[str, float]] = []
    for one in judged:
        truth = one.truths[name]
        pairs = math.comb(len(truth.sites), 2)
        told = pairs - len(ranking(truth.sites, truth.values).tied_pairs)
        for spec, said in one.said.items():
            found = agreement(said, truth)
            row = {
                "World": one.world,
                "Sites": len(truth.sites),
                "Seeds": len(truth.seeds),
                "Estimator": spec,
                "Pearson": found["pearson"],
                "Ceiling": truth.noise_ceiling,
                "Spearman": found["spearman"],
                "Pairs told apart": f"{told} of {pairs}",
                "Cost [trainings]": one.costs[spec],
            }
            rows.append(row)
            for ends, end in ((lows, "low"), (highs, "high")):
                both = {"Pearson": found[f"pearson_{end}"], "Spearman": found[f"spearman_{end}"]}
                ends.append(dict.fromkeys(row, np.nan) | both)
    several = any(len(one.truths[name].seeds) > 1 for one in judged)
    over = "seeds and patients" if several else "patients, of one seed alone,"
    caption = (
        f"Estimators against {name} values by retraining: correlation over sites of means over seeds, 95 % "
        f"intervals over {over} of both, the ceiling that the truth allows, how many pairs of its sites are told "
        "apart; cost beside one FedAvg training"
    )
    frames = [pd.DataFrame(part) for part in (rows, lows, highs)]
    return Table(f"bench-{name.lower()}", caption, frames[0], decimals=2, low=frames[1], high=frames[2])


def _values(one: ScenarioResult) -> Table:
    sites = next(iter(one.truths.values())).sites
    columns = {f"{name} [points]": POINTS * truth.mean for name, truth in one.truths.items()}
    columns |= {spec: said[..., 0].mean(axis=0) for spec, said in one.said.items()}
    frame = pd.DataFrame(columns, index=sites).rename_axis("Site").reset_index()
    caption = f"World {one.world} ({one.expected}): means over seeds, estimators in units of their own"
    return Table(f"values-{plain_name(one.world)}", caption, frame, decimals=3)


def require_scenarios(specs: Sequence[str], estimators: Sequence[str], methods: Sequence[MethodSpec] = ()) -> None:
    """`BadInput` where a world, an estimator or a method is none, before anything is trained."""
    for item in methods:
        if "contribution" in undefined_quantities(item.method):
            raise BadInput(f"--methods {item.label}: it says nothing of contributions")
    for spec in specs:
        if spec != AS_IS:
            parse_world(spec)
    for spec in estimators:
        if spec_syntax.split_spec(spec)[0] == PROXY:
            spec_syntax.parse(spec, {PROXY: Proxy}, "--estimators")
        else:
            parse(spec)
    if len(set(specs)) < len(specs) or len(set(estimators)) < len(estimators):
        raise BadInput("--worlds, --estimators: name each once")
