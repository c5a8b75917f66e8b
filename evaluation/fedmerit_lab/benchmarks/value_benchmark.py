"""Estimators of values against retraining, by scenario; docs/studies/estimator-protocol.md has the protocol.

``OUT/SCENARIO`` holds the scenario's ``sites``, the ``ground_truth`` (every coalition and seed), ``observed`` runs of
FedAvg by seed, ``local_only`` runs, and runs of other ``methods``. All are resumed. ``game.csv`` is the ground truth
to publish.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmerit.contract.semivalues import LEAVE_ONE_OUT, SHAPLEY, FloatArray
from fedmerit.engines import resumption, runs
from fedmerit.engines.image_sites import require_same_images
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import read_json, write_text
from fedmerit.methods.registry import estimates_contributions
from fedmerit.schema.configuration.settings import ROUNDS
from fedmerit.schema.declarations import split_spec
from fedmerit.schema.site_folder import open_sites
from fedmerit.server.checkpoint import is_finished
from fedmerit_evaluation.fairness.measures import pearson, spearman
from fedmerit_evaluation.figures.tables import Table, plain_name
from fedmerit_evaluation.ground_truth import coalitions
from fedmerit_evaluation.ground_truth.reliability import POINTS, Resampled, reliability_table, resample
from fedmerit_evaluation.ground_truth.shapley_approximations import coalitions_to_train, shapley_or_regression
from fedmerit_evaluation.ground_truth.value_tables import REFERENCES
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.ranks import ranking
from fedmerit_evaluation.statistics.resampling import DRAWS, corrected_correlation, draw_over_seeds, error_variance
from fedmerit_evaluation.studies import comparison
from fedmerit_evaluation.studies.execution import OnEnd, Workers, execute_all
from fedmerit_evaluation.studies.study import MethodSpec, in_folds
from fedmerit_evaluation.valuation.estimators import parse
from fedmerit_evaluation.valuation.observed_run import DRAWS as VALUE_DRAWS
from fedmerit_evaluation.valuation.observed_run import ObservedRun
from fedmerit_evaluation.valuation.valued_runs import rank_flip_table, value_runs
from fedmerit_lab.benchmarks.budget_allocation import Outcome, budget_table
from fedmerit_lab.benchmarks.scenarios import make
from fedmerit_lab.benchmarks.scenarios import parse as parse_scenario

OWN = "contribution"  # an estimator: what the run's own method says
GAME = "game.csv"
MOST = 256  # coalitions: all of 8 sites
UNCHANGED = "asis"  # scenario: the pool's sites
Progress = Callable[[str, int], OnEnd]  # of a description, and how many trainings there are to do
FEDERATED, LOCAL_ONLY = "fedavg", "standalone"  # methods of the trainings
ESTIMATORS = (
    "multi_round", "multi_round:voice=others", "multi_round:kind=leave_one_out", "multi_round:weigh=progress",
    "one_round", "one_round:kind=leave_one_out", "leave_one_out_loss", "local_only", "local_only:voice=others",
    "coverage", "coverage:kind=leave_one_out", "safe", "innovation", "contribution", "data_size",
    "label_volume", "knn_shapley", "label_distance", "intensity_distance",
)  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """The options of the benchmark.

    Args:
        out: the benchmark's folder.
        pool: folder of prepared sites whose patients scenarios partition.
        scenarios: specs of `fedmerit_lab.benchmarks.scenarios`; ``asis``: the pool's sites unchanged.
        estimators: specs of `fedmerit_evaluation.valuation.estimators`.
        methods: whose own contributions are judged too, each in its own runs.
        seeds: of training.
        rounds: of training.
        settings: of training.
        workers: processes that train.
        draws: of patients, for confidence intervals.
        most: coalitions of a ground truth; of more, a sample for a regression.
        other: folder of the pool's cases with other masks, for the scenario ``expert``.
        folds: of the pool's sites, each to train on with every seed; none: the splits of datalist.json.
    """

    out: Path
    pool: Path
    scenarios: Sequence[str]
    estimators: Sequence[str] = ESTIMATORS
    methods: Sequence[MethodSpec] = ()
    seeds: Sequence[int] = (0,)
    rounds: int = ROUNDS
    settings: Mapping[str, str] = field(default_factory=dict)
    workers: Workers = field(default_factory=lambda: Workers(1))
    draws: int = 500
    most: int = MOST
    folds: Sequence[int] = ()
    other: Path | None = None

    @property
    def local_only_seeds(self) -> list[int]:
        """The seeds of local-only runs: not those of the ground truth, which trains coalitions of one site."""
        return [max(self.seeds) + 1 + place for place in range(len(self.seeds))]


@dataclass(frozen=True, eq=False)
class ScenarioResult:
    """A scenario: its reference values, and those of each estimator."""

    scenario: str
    expected: str  # the known answer, in words
    references: Mapping[str, Resampled]
    values: Mapping[str, FloatArray]  # by spec, or method: (s, n, D), or of folds (F, n, 1)
    costs: Mapping[str, float]  # by spec, or method, in FedAvg trainings by all sites beyond the run itself
    outcomes: Mapping[str, Outcome]  # by spec, or method: Dice of the sites in its runs


def judge(
    bench: Bench, scenario: str, progress: Progress = lambda what, total: lambda folder, error: None
) -> ScenarioResult:
    """Make a scenario, execute the missing trainings, and run every estimator.

    Raises:
        BadInput: an option cannot be used.
        RunFailed: a training failed; the same call resumes.
    """
    folder = scenario_folder(bench.out, scenario)
    if scenario == UNCHANGED:
        sites, expected = bench.pool, "unknown answer"
    else:
        sites = folder / "sites"
        expected = make(scenario, bench.pool, sites, other=bench.other, folds=bool(bench.folds))
    require_few_sites(bench.estimators, sites)  # refused before hours of training, as all that
    planned = _plan(bench, sites, folder / "methods")  # is wrong with options
    references, local_only = _references(bench, sites, folder / "ground_truth", progress)
    observed = {FEDERATED: _observed(bench, sites, folder / "observed", FEDERATED, progress)}
    if by_method(bench.estimators)[LOCAL_ONLY]:
        observed[LOCAL_ONLY] = _observed(bench, sites, folder / "local_only", LOCAL_ONLY, progress)
    found = run_estimators(observed, bench.estimators, bench.draws)
    values, costs = dict(found.values), dict(found.costs)
    training = float(np.mean([run.seconds["training"] for run in found.federated]))
    outcomes = dict.fromkeys(values, Outcome(_site_dice(found.federated), local_only))
    failed = comparison.execute_runs(
        planned, bench.workers, progress(f"{folder.name}: methods", sum(not run.finished for run in planned))
    )
    require_success(failed)
    for label in (item.label for item in bench.methods):
        valued = value_runs([run.folder for run in planned if run.label == label], [OWN], bench.draws)
        values[label], own = valued.values(OWN), valued.runs
        costs[label] = float(np.mean([run.seconds["training"] for run in own])) / training - 1
        outcomes[label] = Outcome(_site_dice(own), local_only)
    return ScenarioResult(scenario, expected, references, values, costs, outcomes)


def scenario_folder(out: Path, scenario: str) -> Path:
    """Return the folder of a scenario in the benchmark's folder."""
    return out / plain_name(scenario)


def _site_dice(observed: Sequence[ObservedRun]) -> FloatArray:
    """Return (s, n) test Dice of each site's own patients."""
    return np.concatenate([run.results.dice.by_site[run.sites].to_numpy(dtype=np.float64) for run in observed])


def _plan(bench: Bench, sites: Path, out: Path) -> list[comparison.PlannedRun]:
    """Return the runs of the methods."""
    options: dict[str, Any] = {"sites": sites, "rounds": bench.rounds, "engine": "local"}
    if not bench.methods:
        return []
    return comparison.prepare(out, bench.methods, bench.seeds, bench.settings, options, bench.folds)


def _references(bench: Bench, sites: Path, out: Path, progress: Progress) -> tuple[dict[str, Resampled], FloatArray]:
    """Return reference values by name, and the (s, n) test Dice of each site's own model of local-only training."""
    names = [site.name for site in open_sites(sites)]
    grand = frozenset(names)
    asked = {*coalitions_to_train(names, bench.most, 0), *(grand - {name} for name in names)}
    asked |= {frozenset([name]) for name in names}  # local-only
    options: dict[str, Any] = {"sites": sites, "rounds": bench.rounds, "engine": "local"}
    ordered = sorted(asked, key=lambda one: (-len(one), sorted(one)))
    trainings = coalitions.prepare(out, ordered, bench.seeds, "fedavg", bench.settings, options, bench.folds)
    on_end = progress(f"{out.parent.name}: ground truth", sum(not training.finished for training in trainings))
    failed = coalitions.execute_trainings(trainings, bench.workers, on_end)
    coalitions.write_results(out)
    require_success(failed)
    results = coalitions.collect_results(trainings)
    write_text(out.parent / GAME, game_table(results).to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    own = results.coalition_results.dice.by_site
    local_only = np.array([[own.loc[(name, seed), name] for name in names] for seed in bench.seeds])
    games = {SHAPLEY: lambda game: shapley_or_regression(game, names), LEAVE_ONE_OUT: REFERENCES[LEAVE_ONE_OUT]}
    return {name: resample(results, values, bench.draws) for name, values in games.items()}, local_only


def game_table(results: Results) -> pd.DataFrame:
    """Return the test Dice [fraction] of every coalition's model by case, mean over labels.

    A site's Dice is the mean over its cases, and the utility of a coalition the mean over sites. Cases and patients
    have numbers within their site (and fold), so that the table can be published.
    """
    rows = results.coalition_results.dice.rows
    rows = rows.assign(coalition=rows["method"])
    folds = ["fold"] if rows["fold"].nunique() > 1 else []
    names = ["seed", *folds, "coalition", "site", "patient", "case"]
    cases = rows.groupby(names, sort=False)["value"].mean().rename("dice").reset_index()
    for name in ("patient", "case"):
        cases[name] = cases.groupby("site")[name].transform(lambda column: pd.factorize(column, sort=True)[0])
    return cases.sort_values(names, ignore_index=True)


def _observed(bench: Bench, sites: Path, out: Path, method: str, progress: Progress) -> list[Path]:
    estimators = by_method(bench.estimators)[method]
    seeds = bench.seeds if method == FEDERATED else bench.local_only_seeds
    folders = []
    for seed, (suffix, of_fold) in product(seeds, in_folds({}, bench.folds)):
        folders.append(folder := out / f"seed{seed}{suffix}")
        options = sites, seed, bench.rounds, bench.settings, estimators, method
        create_run(folder, *options, **of_fold)
    on_end = progress(
        f"{out.parent.name}: observed runs of {method}",
        sum(not is_finished(folder, bench.rounds) for folder in folders),
    )
    execute_runs(folders, bench.rounds, bench.workers, on_end)
    return folders


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
    folders: Mapping[str, Sequence[Path]], estimators: Sequence[str], draws: int = VALUE_DRAWS
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


def agreement(values: FloatArray, reference: Resampled, seed: int = 0) -> dict[str, float]:
    """Return Pearson, Spearman and disattenuated Pearson of means over seeds, with 95 % CI over seeds and patients.

    ``disattenuated`` is the correlation of the true numbers: the error variance of both is subtracted, in draws, which
    have it twice, two times. ``..._low`` and ``..._high`` are the ends of its CI and of Spearman's, which like plain
    Pearson is of noisy numbers; NaN if 5 % of the draws have no correlation.

    Args:
        values: (s, n, D) of an estimator.
        reference: of the same sites.
        seed: of the draws.
    """
    own, expected = values[..., 0].mean(axis=0), reference.mean
    number = max(values.shape[-1] - 1, reference.values.shape[-1] - 1, DRAWS)
    first = draw_over_seeds(values, seed, number, reference.folds)[:number]
    second = draw_over_seeds(reference.drawn, seed + 1, number)[:number]
    errors = np.array(
        [error_variance(values, reference.folds), reference.error_variance, 0.0]
    )  # of other patients and seeds
    found = {"pearson": float(pearson(own, expected)) / 100, "spearman": float(spearman(own, expected))}
    found["disattenuated"] = float(corrected_correlation(own, expected, errors))
    for name, drawn in (
        ("spearman", spearman(first, second)),
        ("disattenuated", corrected_correlation(first, second, 2 * errors)),
    ):
        known = drawn[np.isfinite(drawn)]
        low, high = np.quantile(known, [0.025, 0.975]) if len(known) > 0.95 * number else (np.nan, np.nan)
        found |= {f"{name}_low": float(low), f"{name}_high": float(high)}
    return found


def bench_tables(judged: Sequence[ScenarioResult]) -> list[Table]:
    """Return agreement of estimators by scenario, and for every scenario reliability, values, budget and rank flips."""
    tables = [_agreements(name, judged) for name in REFERENCES]
    for one in judged:
        table, name = reliability_table(one.references), plain_name(one.scenario)
        caption = f"Scenario {one.scenario} ({one.expected}): {table.caption}"
        tables.append(Table(f"reliability-{name}", caption, table.frame, decimals=table.decimals))
        tables.append(_values(one))
        first_draw = {spec: values[..., 0] for spec, values in one.values.items()}
        reference = one.references[SHAPLEY]
        tables.append(budget_table(one.scenario, reference, first_draw, one.outcomes, one.costs))
        rankings = {
            spec: ranking(reference.sites, values, sample=reference.sample, folds=reference.folds)
            for spec, values in one.values.items()
        }
        tables.append(rank_flip_table(rankings, f"flips-{name}", f"Scenario {one.scenario}: pairs"))
    return tables


def _agreements(name: str, judged: Sequence[ScenarioResult]) -> Table:
    rows: list[dict[str, Any]] = []
    lows: list[dict[str, float]] = []
    highs: list[dict[str, float]] = []
    for one in judged:
        reference = one.references[name]
        pairs = math.comb(len(reference.sites), 2)
        significant = int(np.count_nonzero(reference.ranking.order_signs)) // 2
        for spec, values in one.values.items():
            found = agreement(values, reference)
            row = {
                "Scenario": one.scenario,
                "Sites": len(reference.sites),
                "Seeds": len(reference.seeds),
                "Estimator": spec,
                "Pearson": found["pearson"],
                "Noise ceiling": reference.noise_ceiling.mean,
                "Disattenuated": found["disattenuated"],
                "Spearman": found["spearman"],
                "Significant pairs": f"{significant} of {pairs}",
                "Cost [trainings]": one.costs[spec],
            }
            rows.append(row)
            for ends, end in ((lows, "low"), (highs, "high")):
                shown = {name: found[f"{name.lower()}_{end}"] for name in ("Disattenuated", "Spearman")}
                shown["Noise ceiling"] = getattr(reference.noise_ceiling, end)
                ends.append(shown)
    several = any(len(one.references[name].seeds) > 1 for one in judged)
    over = "seeds and patients" if several else "patients (there is one seed)"
    if any(one.references[name].folds for one in judged):
        over = "folds"
    caption = (
        f"Estimators against {name} values by retraining: correlation over sites of means over seeds with 95 % CI over "
        f"{over}, the noise ceiling of the reference, Pearson's without the errors of both (disattenuated), "
        "significantly different pairs of its sites; cost relative to one FedAvg training"
    )
    frames = [pd.DataFrame(part) for part in (rows, lows, highs)]
    return Table(f"bench-{name.lower()}", caption, frames[0], decimals=2, low=frames[1], high=frames[2])


def _values(one: ScenarioResult) -> Table:
    sites = next(iter(one.references.values())).sites
    columns = {f"{name} [points]": POINTS * reference.mean for name, reference in one.references.items()}
    columns |= {spec: values[..., 0].mean(axis=0) for spec, values in one.values.items()}
    frame = pd.DataFrame(columns, index=sites).rename_axis("Site").reset_index()
    caption = f"Scenario {one.scenario} ({one.expected}): means over seeds, estimators in their own units"
    return Table(f"values-{plain_name(one.scenario)}", caption, frame, decimals=3)


def require_scenarios(
    specs: Sequence[str], estimators: Sequence[str], methods: Sequence[MethodSpec] = (), other: Path | None = None
) -> None:
    """Raise `BadInput` if a scenario, an estimator or a method cannot be used, before anything is trained."""
    if (other is not None) != any(split_spec(spec)[0] == "expert" for spec in specs):
        raise BadInput("--other-pool, --scenarios expert: belong together; give both or neither")
    for item in methods:
        if not estimates_contributions(item.method):
            raise BadInput(f"--methods {item.label}: it estimates no contributions")
    for spec in specs:
        if spec != UNCHANGED:
            parse_scenario(spec)
    for spec in estimators:
        parse(spec)
    if len(set(specs)) < len(specs) or len(set(estimators)) < len(estimators):
        raise BadInput("--scenarios, --estimators: name each once")
