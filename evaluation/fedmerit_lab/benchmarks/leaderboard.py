"""A leaderboard of contribution estimators: what a benchmark measured as rows of one file, and the page of that file.

``FOLDER/results.csv`` has a row for each task and estimator, ``FOLDER/tasks.json`` how each task is made and whether
estimators may be chosen by it, ``FOLDER/README.md`` is the page. Others extend both files.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import packages_distributions
from io import StringIO
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.stats import t

from fedmerit.contract.semivalues import SHAPLEY, FloatArray
from fedmerit.errors import BadInput
from fedmerit.files import read_object, read_text, write_text
from fedmerit.schema.declarations import read, split_spec
from fedmerit.version import package_version
from fedmerit_evaluation.ground_truth.reliability import Resampled
from fedmerit_evaluation.valuation.estimators import estimators
from fedmerit_evaluation.valuation.payout import EQUAL
from fedmerit_lab.benchmarks.budget_allocation import leave_one_seed_out, misallocated_share, shares
from fedmerit_lab.benchmarks.value_benchmark import ScenarioResult, agreement

ENTRIES = "entries.csv"  # in a scenario's folder: what a benchmark measured
RESULTS, TASKS, PAGE = "results.csv", "tasks.json", "README.md"
HALVES = ("choice", "confirmation")
MISSING = "-"
RELIABLE = 0.95  # noise ceiling, by its lower end, of a reference that is known well enough
RETRAINING = "retraining, one seed"  # a row beside estimators

INTRODUCTION = """# Contribution estimators: leaderboard

What each hospital's data is worth, estimated from few trainings, against Shapley values for which every coalition was
trained ([protocol](../../docs/studies/estimator-protocol.md)). *Misallocated*: part of a budget, divided by an
estimator's values, that goes to other sites than by Shapley values. *Disattenuated*: Pearson's correlation without
the errors of both. Brackets are 95 % intervals; rows of before they were kept have none. Those of misallocation are
over seeds, for these patients (with folds over folds). Misallocation is never below 0, so noise raises it and its
interval: of four simulated sites and a perfect estimator 0.2 to 3.0 % are shown where 0 is true, and 77 to 87 % of the
intervals hold 0. *Cost*: in FedAvg trainings beyond the run itself.

Estimators are chosen on tasks of the half *choice* and judged on those of *confirmation*. Tasks marked *named before
its results* were listed here before they ran. All other tasks with results were listed together with these, so their
halves were drawn afterwards
([what counts as confirmation](../../docs/studies/estimator-protocol.md#choice-and-confirmation)).

To add an estimator, write its class ([extending](../../docs/extending.md)), run the tasks' commands with
`--estimators YOURS`, and add what was measured:

```
fedmerit lab leaderboard benchmarks/contribution --add gen/SCENARIO/entries.csv --task TASK
```

Send results.csv and this page as a pull request, with a link to the estimator's package. A new task needs an entry in
tasks.json, the rows of all estimators listed here, and its `game.csv` as games/TASK.csv.

**Games.** games/TASK.csv has the test Dice of the models of all coalitions by seed, fold, site, patient and case,
without images, so an estimator or its noise can be tried with pandas:

```python
import pandas as pd

game = pd.read_csv("benchmarks/contribution/games/glioma-folds.csv")
sites = game.groupby(["seed", "coalition", "site"])["dice"].mean()
utilities = sites.groupby(["seed", "coalition"]).mean()  # v(S) of Shapley values; v(nobody) = 0
```

They are kept of the tasks named in that folder; earlier tasks have only their values."""

OVER_DATA_SETS = """How many points of a budget less than equal shares an estimator misallocates, mean of the tasks of
each data set. Tasks of one data set share patients, so the interval and p are Student's t over data sets; so few
carry little. p are not corrected for the number of estimators."""

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^|`\r\n]+$")]
Correlation = Annotated[float | None, Field(ge=-1, le=1)]
Share = Annotated[float | None, Field(ge=0, le=1)]


class Entry(BaseModel):
    """A estimator on one task: a row of results.csv. Correlations and shares are fractions; None: not defined."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    task: Text
    estimator: Text  # its spec
    version: Text  # of FedMerit, or of the package that has the estimator
    sites: Annotated[int, Field(ge=2, le=1000)]
    seeds: Annotated[int, Field(ge=1, le=1000)]
    folds: Annotated[int | None, Field(ge=2, le=1000)]  # None: one split
    patients: Annotated[int | None, Field(ge=1)]  # test patients of the site with the fewest
    cost: Annotated[float | None, Field(ge=-1)]  # FedAvg trainings beyond the run itself, by seconds
    pearson: Correlation
    spearman: Correlation
    spearman_low: Correlation
    spearman_high: Correlation
    disattenuated: Correlation  # Pearson's, without the errors of both
    disattenuated_low: Correlation
    disattenuated_high: Correlation
    misallocated: Share  # of a budget, beside division by Shapley values
    misallocated_low: Share  # Student's t over seeds, or folds (jackknife)
    misallocated_high: Share
    noise_ceiling: Share  # noise ceiling of the task's Shapley values
    noise_ceiling_low: Share
    noise_ceiling_high: Share


class Task(BaseModel):
    """A task: how it is made, and its half; estimators may be chosen on the first half only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    half: Literal["choice", "confirmation"]
    data_set: Annotated[str, Field(min_length=1, max_length=50)]  # whose patients: tasks of one are not independent
    what: Annotated[str, Field(min_length=1, max_length=500)]
    command: Annotated[str, Field(min_length=1, max_length=1000)]
    remark: str = ""  # such as why its noise ceiling is below `RELIABLE`
    named_before_run: bool = False  # whether it was listed before its results were known


def make_entries(result: ScenarioResult) -> list[Entry]:
    """Return a row for each estimator of a scenario, for equal shares, and for one seed of the ground truth."""
    reference = result.references[SHAPLEY]
    noise_ceiling = reference.noise_ceiling
    common = {
        "task": result.scenario,
        "version": f"fedmerit {package_version()}",  # unless an estimator is of another package
        "sites": len(reference.sites),
        "seeds": len(reference.seeds),
        "folds": reference.folds or None,
        "patients": reference.fewest,
        "noise_ceiling": _known(noise_ceiling.mean),
        "noise_ceiling_low": _known(noise_ceiling.low),
        "noise_ceiling_high": _known(noise_ceiling.high),
    }
    rows = [
        common
        | {"estimator": spec, "version": _version(spec), "cost": result.costs[spec]}
        | {name: _known(value) for name, value in agreement(values, reference).items()}
        | misallocation(values[..., 0], reference)
        for spec, values in result.values.items()
    ]
    equal = np.ones_like(reference.repeats)
    rows.append(common | {"estimator": EQUAL, "cost": 0.0} | misallocation(equal, reference))
    floor = _known(leave_one_seed_out(reference.repeats))
    rows.append(common | {"estimator": RETRAINING, "cost": None, "misallocated": floor})
    empty = dict.fromkeys(Entry.model_fields)
    return [Entry.model_validate(empty | row) for row in rows]


def _version(spec: str) -> str:
    """Return the package and version of an estimator: a method's contribution is FedMerit's."""
    found = estimators().get(split_spec(spec)[0])
    module = found.__module__.partition(".")[0] if found else "fedmerit"
    package = packages_distributions().get(module, ["fedmerit"])[0]
    return f"{package} {package_version(package)}"


def misallocation(values: FloatArray, reference: Resampled) -> dict[str, float | None]:
    """Return misallocated share of a budget, by means over seeds, with its 95 % CI: jackknife over seeds, Student's t.

    With folds these take the place of seeds; the jackknife takes them for independent.

    Args:
        values: (s, n) of an estimator, s seeds or folds by n sites.
        reference: Shapley values of the same seeds or folds, and sites.
    """
    owed = reference.repeats

    def share(kept: Sequence[int]) -> float:
        return misallocated_share(shares(values[kept].mean(axis=0)), shares(owed[kept].mean(axis=0)))

    s = len(owed)
    whole = share(range(s))
    if s < 2 or np.isnan(whole):
        return {"misallocated": _known(whole), "misallocated_low": None, "misallocated_high": None}
    without = np.array([share([seed for seed in range(s) if seed != left_out]) for left_out in range(s)])
    reach = float(t.ppf(0.975, s - 1) * np.sqrt((s - 1) / s * ((without - without.mean()) ** 2).sum()))
    ends = {"misallocated_low": max(whole - reach, 0.0), "misallocated_high": min(whole + reach, 1.0)}
    return {"misallocated": whole} | {name: _known(end) for name, end in ends.items()}


def _known(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)


def write_entries(path: Path, entries: Iterable[Entry]) -> None:
    """Return entries as CSV, in the order of the schema."""
    text = StringIO()
    writer = csv.DictWriter(text, list(Entry.model_fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows(entry.model_dump() for entry in entries)
    write_text(path, text.getvalue())


def read_entries(path: Path) -> list[Entry]:
    """Return entries of a CSV file; `BadInput` names the line that does not fit the schema."""
    rows = csv.DictReader(StringIO(read_text(path)), strict=True)
    if rows.fieldnames != list(Entry.model_fields):
        raise BadInput(f"{path}: its columns are {rows.fieldnames}; expected {', '.join(Entry.model_fields)}")
    found = []
    for number, row in enumerate(rows, 2):
        try:
            found.append(Entry.model_validate({name: value or None for name, value in row.items()}))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise BadInput(f"{path}, line {number}: {where}: {first['msg']}, found {first['input']!r}") from None
    return found


def read_tasks(folder: Path) -> dict[str, Task]:
    """Return tasks by name."""
    path = folder / TASKS
    return {name: read(Task, task, path) for name, task in read_object(path).items()}


def add_entries(folder: Path, measured: Path, task: str) -> None:
    """Put what a benchmark measured into ``results.csv`` as ``task``; the task's rows of the same estimators go.

    Raises:
        BadInput: the task is unknown, or the file is not what `write_entries` writes.
    """
    if task not in (known := read_tasks(folder)):
        raise BadInput(f"--task {task}: not in {folder / TASKS}, which has {', '.join(known)}; describe it there first")
    new = [entry.model_copy(update={"task": task}) for entry in read_entries(measured)]
    results = folder / RESULTS
    replaced = {entry.estimator for entry in new}
    kept = read_entries(results) if results.exists() else []
    kept = [entry for entry in kept if entry.task != task or entry.estimator not in replaced]
    order = list(known)
    write_entries(results, sorted(kept + new, key=lambda entry: (order.index(entry.task), entry.estimator)))


def render(folder: Path) -> Path:
    """Write the page of a leaderboard's folder, which has results.csv and tasks.json; the path of it."""
    tasks, entries = read_tasks(folder), read_entries(folder / RESULTS)
    if unknown := {entry.task for entry in entries} - set(tasks):
        raise BadInput(f"{folder / RESULTS}: {', '.join(sorted(unknown))}: no such task in {folder / TASKS}")
    parts = [INTRODUCTION, "## Over tasks", _over_tasks(tasks, entries)]
    parts += ["## Over data sets", OVER_DATA_SETS, _over_data_sets(tasks, entries), _unjudged(entries)]
    for name, task in tasks.items():
        parts.append(_task_section(name, task, [entry for entry in entries if entry.task == name]))
    write_text(folder / PAGE, "\n\n".join(parts) + "\n")
    return folder / PAGE


def _over_tasks(tasks: dict[str, Task], entries: Sequence[Entry]) -> str:
    """Return means by half, of estimators judged on every task with results; the best on the first half first."""
    done = {entry.task for entry in entries}
    rows = []
    for estimator in sorted({entry.estimator for entry in entries}):
        own = [entry for entry in entries if entry.estimator == estimator]
        if {entry.task for entry in own} == done:
            means = [
                _mean(getattr(entry, what) for entry in own if tasks[entry.task].half == half)
                for half in HALVES
                for what in ("misallocated", "pearson")
            ]
            rows.append((means[0] if means[0] is not None else np.inf, estimator, means))
    heads = ["estimator", *(f"{what}, {half}" for half in HALVES for what in ("misallocated [%]", "Pearson"))]
    shown = (_percent, _correlation) * len(HALVES)
    cells = [
        [f"`{name}`", *(number(mean) for number, mean in zip(shown, means, strict=True))]
        for _, name, means in sorted(rows)
    ]
    return _markdown(heads, cells)


def _over_data_sets(tasks: dict[str, Task], entries: Sequence[Entry]) -> str:
    """Return how much less than equal shares estimators misallocate, by data set, with an interval over data sets."""
    equal = {entry.task: entry.misallocated for entry in entries if entry.estimator == EQUAL}
    names = list(dict.fromkeys(task.data_set for name, task in tasks.items() if name in equal))
    rows = []
    for estimator in sorted({entry.estimator for entry in entries} - {EQUAL, RETRAINING}):
        less: dict[str, list[float]] = {name: [] for name in names}
        for entry in entries:
            base = equal.get(entry.task)
            if entry.estimator == estimator and entry.misallocated is not None and base is not None:
                less[tasks[entry.task].data_set].append(base - entry.misallocated)
        means = [float(np.mean(part)) for part in less.values() if part]
        if means:
            mean, count = float(np.mean(means)), sum(map(len, less.values()))
            cells = [f"{100 * np.mean(part):.1f} ({len(part)})" if part else MISSING for part in less.values()]
            rows.append((-mean, estimator, count, cells, _over_clusters(means)))
    heads = ["estimator", "tasks", *(f"{name} (tasks)" for name in names), "mean of data sets [95 % CI]", "p"]
    return _markdown(heads, [[f"`{name}`", str(count), *cells, *last] for _, name, count, cells, last in sorted(rows)])


def _over_clusters(means: Sequence[float]) -> tuple[str, str]:
    """Return the mean of data sets with Student's interval over them in points, and p of its being 0, as texts."""
    mean, n = float(np.mean(means)), len(means)
    error = float(np.std(means, ddof=1)) / np.sqrt(n) if n > 1 else np.nan
    if not error > 0:
        return f"{100 * mean:.1f}", MISSING
    reach = float(t.ppf(0.975, n - 1)) * error
    p = 2 * float(t.sf(abs(mean) / error, n - 1))
    return f"{100 * mean:.1f} [{100 * (mean - reach):.1f}, {100 * (mean + reach):.1f}]", f"{p:.2f}"


def _unjudged(entries: Sequence[Entry]) -> str:
    """Return which estimators no task has judged."""
    judged = {split_spec(entry.estimator)[0] for entry in entries}
    names = ", ".join(f"`{name}`" for name in sorted({*estimators()} - judged))
    return f"Judged on no task: {names}." if names else "Every estimator is judged on a task."


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean, or None if a value is not defined or there are none."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return float(np.mean(known)) if known and len(known) == len(listed) else None


def _task_section(name: str, task: Task, entries: Sequence[Entry]) -> str:
    half = f"{task.half}, named before its results" if task.named_before_run else task.half
    head = f"## {name}\n\n{task.what} Half: {half}. {task.remark}".rstrip() + f"\n\n```\n{task.command}\n```"
    if not entries:
        return f"{head}\n\nNo results yet."
    first = entries[0]
    fewest = first.patients or 0
    patients = f", at least {fewest} test patient{'s' * (fewest > 1)} a site" if fewest else ""
    repeats = f"{first.seeds} seed{'s' * (first.seeds > 1)}" + (f" of {first.folds} folds" if first.folds else "")
    head += f"\n\n{first.sites} sites, {repeats}{patients}; noise ceiling {_noise_ceiling(first)}."
    best_first = sorted(entries, key=lambda entry: (entry.misallocated is None, entry.misallocated))
    rows = [
        [
            f"`{entry.estimator}`",
            _interval(_percent, entry.misallocated, entry.misallocated_low, entry.misallocated_high),
            _correlation(entry.pearson),
            _interval(_correlation, entry.disattenuated, entry.disattenuated_low, entry.disattenuated_high),
            _interval(_correlation, entry.spearman, entry.spearman_low, entry.spearman_high),
            MISSING if entry.cost is None else f"{entry.cost:.1f}",
            entry.version,
        ]
        for entry in best_first
    ]
    heads = ["estimator", "misallocated [%]", "Pearson", "disattenuated", "Spearman", "cost [trainings]", "version"]
    return f"{head}\n\n{_markdown(heads, rows)}"


def _noise_ceiling(entry: Entry) -> str:
    if entry.noise_ceiling is None:
        return "not known (that takes two test patients at every site)"
    known = _interval(_correlation, entry.noise_ceiling, entry.noise_ceiling_low, entry.noise_ceiling_high)
    reached = entry.noise_ceiling_low is not None and entry.noise_ceiling_low >= RELIABLE
    return known if reached else f"{known}, not shown to reach {RELIABLE:.2f}"


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.1f}"


def _correlation(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _interval(number: Callable[[float | None], str], value: float | None, low: float | None, high: float | None) -> str:
    ends = "" if low is None or high is None else f" [{number(low)}, {number(high)}]"
    return number(value) + ends


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
