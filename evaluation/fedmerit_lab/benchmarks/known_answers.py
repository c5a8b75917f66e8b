"""Known-answer cases: in how many seeds an estimator finds the answer; ``fedmerit lab bench known-answers``.

``OUT/SCENARIO/seedK`` holds the ``sites`` of seed K, the observed ``run`` and, if an estimator needs it, the
``local_only`` run. No coalition is trained.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd

from fedmerit.schema.configuration.settings import ROUNDS
from fedmerit.server.checkpoint import is_finished
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.studies.execution import Workers
from fedmerit_lab.benchmarks import observed_trainings
from fedmerit_lab.benchmarks.observed_trainings import FEDERATED, LOCAL_ONLY
from fedmerit_lab.benchmarks.scenarios import make, site_name

MAX_TWIN_SHARE = 1.1  # of the single site's value
Values = Mapping[str, float]  # of sites by name


@dataclass(frozen=True)
class Case:
    """A known answer.

    Args:
        heading: of a table's column.
        scenarios: specs of `fedmerit_lab.benchmarks.scenarios` for n sites.
        is_found: by n and the values in each of these scenarios.
    """

    heading: str
    scenarios: Callable[[int], Sequence[str]]
    is_found: Callable[[int, Sequence[Values]], bool]


def _with_twin_and_without(n: int) -> list[str]:
    """Return the scenarios of n sites, one of them a twin, and of the same without it."""
    return [f"duplicate:sites={n}", f"equal:sites={n - 1}"]


def _noisy_is_last(n: int, values: Sequence[Values]) -> bool:
    (noise,) = values
    last = site_name(n, n)
    return all(noise[last] < noise[site] for site in noise if site != last)


def _double_is_first(n: int, values: Sequence[Values]) -> bool:
    (double,) = values
    first = site_name(1, n)
    return all(double[first] > double[site] for site in double if site != first)


def _twins_are_one(n: int, values: Sequence[Values]) -> bool:
    twice, once = values
    one = site_name(1, n - 1)
    return twice[one] + twice[f"{one}-copy"] <= MAX_TWIN_SHARE * once[one]


def _outlier_is_not_last(n: int, values: Sequence[Values]) -> bool:
    (outlier,) = values
    last = site_name(n, n)
    return any(outlier[last] > outlier[site] for site in outlier if site != last)


CASES = (
    Case("Noise for masks last", lambda n: [f"noise:sites={n}"], _noisy_is_last),
    Case("Twice the patients first", lambda n: [f"double:sites={n}"], _double_is_first),
    Case(f"Twins together at most {MAX_TWIN_SHARE:g} of the single site", _with_twin_and_without, _twins_are_one),
    Case("Honest outlier not last", lambda n: [f"outlier:sites={n}"], _outlier_is_not_last),
    Case("Needed outlier not last", lambda n: [f"needed:sites={n}"], _outlier_is_not_last),
)


@dataclass(frozen=True)
class KnownAnswerBenchmark:
    """The options of the benchmark.

    Args:
        out: the benchmark's folder.
        pool: folder of prepared sites whose patients every seed partitions again.
        estimators: specs of `fedmerit_evaluation.valuation.estimators`.
        sites: n, of every scenario except the one without the twin, which has n - 1.
        seeds: of partition and training.
        rounds: of training.
        settings: of training.
        workers: processes that train.
    """

    out: Path
    pool: Path
    estimators: Sequence[str]
    sites: int = 4
    seeds: Sequence[int] = (0,)
    rounds: int = ROUNDS
    settings: Mapping[str, str] = field(default_factory=dict)
    workers: Workers = field(default_factory=lambda: Workers(1))

    @property
    def scenarios(self) -> list[str]:
        """The scenarios of all cases."""
        return list(dict.fromkeys(scenario for case in CASES for scenario in case.scenarios(self.sites)))

    def folder(self, scenario: str, seed: int) -> Path:
        """Return the folder of one scenario and seed."""
        return self.out / scenario.replace(":sites=", "-") / f"seed{seed}"


def compute_values(
    bench: KnownAnswerBenchmark, on_end: Callable[[int, int], None] = lambda done, total: None
) -> pd.DataFrame:
    """Make the scenarios, train, run the estimators: rows ``scenario, seed, site, estimator, value, cost``.

    Args:
        bench: the options.
        on_end: called after each training with how many are done, and how many there were to do.

    Raises:
        BadInput: an option cannot be used.
        RunFailed: a training failed; the same call resumes.
    """
    folders = {(scenario, seed): bench.folder(scenario, seed) for scenario in bench.scenarios for seed in bench.seeds}
    chosen = observed_trainings.by_method(bench.estimators)
    runs = {"run": FEDERATED} | ({"local_only": LOCAL_ONLY} if chosen[LOCAL_ONLY] else {})
    for (scenario, seed), folder in folders.items():
        sites = folder / "sites"
        make(scenario, bench.pool, sites, seed)
        observed_trainings.require_few_sites(bench.estimators, sites)
        for name, method in runs.items():
            options = (folder / name, sites, seed, bench.rounds, bench.settings, chosen[method], method)
            observed_trainings.create_run(*options)
    every = [folder / name for folder in folders.values() for name in runs]
    left = [folder for folder in every if not is_finished(folder, bench.rounds)]
    done = count(1)
    observed_trainings.execute_runs(
        left, bench.rounds, bench.workers, lambda folder, error: on_end(next(done), len(left))
    )
    rows = []
    for (scenario, seed), folder in folders.items():
        trainings = {method: [folder / name] for name, method in runs.items()}
        found = observed_trainings.run_estimators(trainings, bench.estimators, draws=1)
        for spec, values in found.values.items():
            same = {"scenario": scenario, "seed": seed, "estimator": spec, "cost": found.costs[spec]}
            by_site = zip(found.federated[0].sites, values[0, :, 0], strict=True)
            rows += [{**same, "site": site, "value": float(value)} for site, value in by_site]
    return pd.DataFrame(rows)


def known_answer_tables(values: pd.DataFrame, sites: int) -> list[Table]:
    """Return in how many seeds each estimator finds each answer, with the twins' share; and all values.

    Args:
        values: by `compute_values`.
        sites: n.
    """
    seeds = sorted(values["seed"].unique())
    indexed = values.set_index(["estimator", "scenario", "seed", "site"])["value"].sort_index()
    rows = []
    for spec in values["estimator"].unique():
        row: dict[str, object] = {"Estimator": spec}
        for case in CASES:
            found = [[indexed.loc[spec, name, seed].to_dict() for name in case.scenarios(sites)] for seed in seeds]
            row[case.heading] = sum(case.is_found(sites, by_scenario) for by_scenario in found)
        row["Twins over the single site, median"] = _twin_share(indexed.loc[spec], sites, seeds)
        row["Cost [trainings]"] = values.loc[values["estimator"] == spec, "cost"].mean()
        rows.append(row)
    caption = (
        f"Number of {len(seeds)} seeds, each with its own partition into {sites} sites and one training, in which an "
        "estimator finds the known answer; cost relative to one FedAvg training"
    )
    shown = values.drop(columns="cost").rename(columns=str.title)
    return [
        Table("known-answers", caption, pd.DataFrame(rows), decimals=2),
        Table("known-answer-values", "Value of every site by every estimator", shown, decimals=4),
    ]


def _twin_share(values: pd.Series, sites: int, seeds: Sequence[int]) -> float:
    """Return median over seeds of the twins' summed value over the single site's; NaN if that is never above 0."""
    one = site_name(1, sites - 1)
    twice, once = (values.loc[scenario] for scenario in _with_twin_and_without(sites))
    ratios = [
        (twice[seed, one] + twice[seed, f"{one}-copy"]) / once[seed, one] for seed in seeds if once[seed, one] > 0
    ]
    return float(np.median(ratios)) if ratios else np.nan
