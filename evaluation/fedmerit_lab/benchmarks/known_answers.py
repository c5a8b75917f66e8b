"""Cases whose answer is planted: in how many seeds does an estimator see it? ``fedmerit lab bench known-answers``.

``OUT/WORLD/seedK`` holds the ``sites`` that seed K dealt, the observed ``run``, and where an estimator asks for it
that of sites that train ``alone``. No coalition is trained.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd

from fedmerit.configuration.recipes import ROUNDS
from fedmerit.federation.checkpoint import is_finished
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.studies.cluster import Workers
from fedmerit_lab.benchmarks import observed_trainings
from fedmerit_lab.benchmarks.observed_trainings import ALONE, TOGETHER
from fedmerit_lab.benchmarks.scenarios import make, site_name

MAX_TWIN_SHARE = 1.1  # of the one site's value
Values = Mapping[str, float]  # of sites by name


@dataclass(frozen=True)
class Case:
    """What was planted, and what has to hold of the values.

    Args:
        heading: of a table's column.
        worlds: specs of `fedmerit_lab.benchmarks.scenarios` for n sites.
        holds: of n, and the values in each of these worlds.
    """

    heading: str
    worlds: Callable[[int], Sequence[str]]
    holds: Callable[[int, Sequence[Values]], bool]


def _with_twin_and_without(n: int) -> list[str]:
    """The worlds of n sites, one of them a twin, and of the same without it."""
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
    Case(f"Twins together at most {MAX_TWIN_SHARE:g} of the one", _with_twin_and_without, _twins_are_one),
    Case("Honest outlier not last", lambda n: [f"outlier:sites={n}"], _outlier_is_not_last),
    Case("Needed outlier not last", lambda n: [f"needed:sites={n}"], _outlier_is_not_last),
)


@dataclass(frozen=True)
class KnownAnswerBenchmark:
    """What is asked for.

    Args:
        out: folder of everything.
        pool: folder of prepared sites whose patients are dealt, anew for every seed.
        estimators: specs, as of `fedmerit_evaluation.valuation.estimators`.
        sites: n, of every world but the one without the twin, which has one fewer.
        seeds: of dealing and of training.
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
    def worlds(self) -> list[str]:
        """Of all cases."""
        return list(dict.fromkeys(world for case in CASES for world in case.worlds(self.sites)))

    def folder(self, world: str, seed: int) -> Path:
        """Of one world and seed."""
        return self.out / world.replace(":sites=", "-") / f"seed{seed}"


def compute_values(
    planted: KnownAnswerBenchmark, on_end: Callable[[int, int], None] = lambda done, of: None
) -> pd.DataFrame:
    """Deal the worlds, train what is missing, hear the estimators: rows ``world, seed, site, estimator, value, cost``.

    Args:
        planted: what is asked for.
        on_end: hears how many of the trainings that were missing are done.

    Raises:
        BadInput: something asked for cannot be used.
        RunFailed: a training failed; the same call goes on from what is done.
    """
    places = {(world, seed): planted.folder(world, seed) for world in planted.worlds for seed in planted.seeds}
    chosen = observed_trainings.by_method(planted.estimators)
    kinds = {"run": TOGETHER} | ({"alone": ALONE} if chosen[ALONE] else {})
    for (world, seed), folder in places.items():
        sites = folder / "sites"
        make(world, planted.pool, sites, seed)
        for name, method in kinds.items():
            observed_trainings.begin(
                folder / name, sites, seed, planted.rounds, planted.settings, chosen[method], method
            )
    folders = [folder / name for folder in places.values() for name in kinds]
    left = [folder for folder in folders if not is_finished(folder, planted.rounds)]
    done = count(1)
    observed_trainings.work_off(
        left, planted.rounds, planted.workers, lambda folder, error: on_end(next(done), len(left))
    )
    rows = []
    for (world, seed), folder in places.items():
        trainings = {method: [folder / name] for name, method in kinds.items()}
        heard = observed_trainings.run_estimators(trainings, planted.estimators, draws=1)
        for spec, values in heard.said.items():
            same = {"world": world, "seed": seed, "estimator": spec, "cost": heard.costs[spec]}
            named = zip(heard.together[0].sites, values[0, :, 0], strict=True)
            rows += [{**same, "site": site, "value": float(value)} for site, value in named]
    return pd.DataFrame(rows)


def known_answer_tables(values: pd.DataFrame, sites: int) -> list[Table]:
    """In how many seeds each case holds by each estimator; what twins get, beside the one site; all the values.

    Args:
        values: as of `compute_values`.
        sites: n.
    """
    seeds = sorted(values["seed"].unique())
    told = values.set_index(["estimator", "world", "seed", "site"])["value"].sort_index()
    rows = []
    for spec in values["estimator"].unique():
        row: dict[str, object] = {"Estimator": spec}
        for case in CASES:
            found = [[told.loc[spec, world, seed].to_dict() for world in case.worlds(sites)] for seed in seeds]
            row[case.heading] = sum(case.holds(sites, of_seed) for of_seed in found)
        row["Twins by the one, median"] = _twins_by_the_one(told.loc[spec], sites, seeds)
        row["Cost [trainings]"] = values.loc[values["estimator"] == spec, "cost"].mean()
        rows.append(row)
    caption = (
        f"In how many of {len(seeds)} seeds, which deal {sites} sites anew and train once, an estimator sees what was "
        "planted; cost beside one FedAvg training"
    )
    shown = values.drop(columns="cost").rename(columns=str.title)
    return [
        Table("planted", caption, pd.DataFrame(rows), decimals=2),
        Table("planted-values", "What every estimator says of every site", shown, decimals=4),
    ]


def _twins_by_the_one(told: pd.Series, sites: int, seeds: Sequence[int]) -> float:
    """Median over seeds of what the twins get together, by what the one site gets; NaN where that is not above 0."""
    one = site_name(1, sites - 1)
    twice, once = (told.loc[world] for world in _with_twin_and_without(sites))
    ratios = [
        (twice[seed, one] + twice[seed, f"{one}-copy"]) / once[seed, one] for seed in seeds if once[seed, one] > 0
    ]
    return float(np.median(ratios)) if ratios else np.nan
