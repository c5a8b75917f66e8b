"""Limits of the results that a reader has to know before relying on a number, as codes; ``words.j2`` words them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.score_name import shown_score
from fedmerit_evaluation.results.runs import Run
from fedmerit_evaluation.results.views import SURFACES, Results
from fedmerit_evaluation.statistics.inference import MIN_CASES

ON_ONE_MACHINE = ("local", "sim")  # engines with which nothing leaves a hospital
MEMBERSHIP = {"joined": "joined with", "left": "left before"}  # events of the ledger, in words
SHOWN = 2.0  # standard errors of a value of innovation: below them it is not shown
SEEDS_FOR_INTERVALS = 3  # with two, CIs over seeds are three times as wide for the same spread


@dataclass(frozen=True)
class Limit:
    """A limit of the results. Its code names the sentence, its other fields fill it."""

    code: str
    method: str = ""  # the label of the runs that it is about; "" if it is about all
    seeds: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)  # by site: the number of things that it is about
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The sum of the counts."""
        return sum(self.counts.values())


def list_limits(runs: Sequence[Run], honest: Sequence[Run], results: Results) -> tuple[list[Limit], list[Limit]]:
    """Return the limits of runs, which a reader has to know first, and those of the numbers of ``honest`` runs."""
    notes = [*list_run_limits(honest, results), *list_attack_limits(runs)]
    return notes, [*list_contribution_limits(results), *list_case_limits(results)]


def list_run_limits(runs: Sequence[Run], results: Results) -> list[Limit]:
    """Return limits of runs: incomplete, untested or unchecked ones, too few seeds, and runs that differ."""
    by_label: dict[tuple[str, str], tuple[Limit, dict[str, None]]] = {}  # each seed once if there are folds
    for run in runs:
        for limit in _list_limits_of_run(run, results):
            _, seeds = by_label.setdefault((run.label, repr(limit)), (limit, {}))
            seeds[str(run.seed)] = None
    limits = [replace(limit, method=label, seeds=tuple(seeds)) for (label, _), (limit, seeds) in by_label.items()]
    seeds_by_label: dict[str, set[int]] = {}
    for run in [run for run in runs if run.tested] or runs:  # what is compared
        seeds_by_label.setdefault(run.label, set()).add(run.seed)
    fewest, has_folds = min(map(len, seeds_by_label.values())), results.dice.clusters.folds > 0
    if fewest == 1 and not has_folds:
        limits.append(Limit("one_seed"))
    elif fewest < SEEDS_FOR_INTERVALS and not has_folds:
        limits.append(Limit("few_seeds", values={"seeds": fewest}))
    if len(set(map(frozenset, seeds_by_label.values()))) > 1:
        limits.append(Limit("other_seeds"))
    if len(rounds := sorted({run.rounds for run in runs})) > 1:
        limits.append(Limit("other_rounds", values={"rounds": rounds}))
    if results.dice.mismatched_seeds():
        limits.append(Limit("other_cases", values={"folds": results.dice.clusters.folds}))
    return limits


def _list_limits_of_run(run: Run, results: Results) -> Iterator[Limit]:
    if run.rounds_done < run.rounds and "models_of" not in run.info:  # an ensemble trains in no round
        yield Limit("incomplete", values={"done": run.rounds_done, "rounds": run.rounds})
    if script := run.info.get("plan", {}).get("script"):
        yield from _list_script_limits(script, results)
    if not run.tested and (not script or script["evaluates"]):
        yield Limit("untested")
    elif untested := [site for site in run.sites if site not in run.tested_sites]:
        numbers = {"number": len(untested), "sites": len(run.sites)}
        yield Limit("untested_sites", counts=dict.fromkeys(untested, 1), values=numbers)
    changes = [(*place, words) for kind, words in MEMBERSHIP.items() for place in run.events[kind]]
    for number, site, words in sorted(changes, key=lambda change: change[0]):
        yield Limit("membership", counts={site: 1}, values={"what": words, "round": number})
    if HE in run.info.get("privacy", ()):
        yield Limit("encrypted")
    elif _errors_are_self_reported(run):
        yield Limit("self_reported")
    if run.info.get("engine") not in ON_ONE_MACHINE and run.info.get("plan", {}).get("share_models"):
        yield Limit("shared_models")


def _list_script_limits(script: Mapping[str, Any], results: Results) -> Iterator[Limit]:
    """Return what a run by the sites' own scripts cannot say, or says in other words."""
    yield Limit("script")
    if not script["metric"]:
        yield Limit("script_no_metric")
        return
    if shown_score().endswith(" score"):
        bounds = {name: script[name] for name in ("metric", "lowest", "highest", "better")}
        yield Limit("script_scaled", values={"score": shown_score(), **bounds})
    rows = results.rows
    if rows.loc[rows["quantity"] == "dice", "case"].nunique() == 1:
        yield Limit("script_one_mean", values={"metric": script["metric"]})
    if not script["evaluates"]:
        yield Limit("script_no_test")


def _errors_are_self_reported(run: Run) -> bool:
    """Return whether a guarded run used the sites' own errors, as nobody measured them."""
    rows = run.results.rows
    measured, reported = (rows.loc[rows["quantity"] == name, "value"] for name in ("measured_error", "minus_error"))
    return bool(len(measured) and measured.isna().all() and reported.notna().any())


def list_attack_limits(runs: Sequence[Run]) -> Iterator[Limit]:
    """Return the limit that Dice leaves out runs with simulated attacks."""
    if labels := list(dict.fromkeys(run.label for run in runs if run.attacks)):
        whole = all(run.attacks for run in runs)
        yield Limit("all_attacked") if whole else Limit("attacked", values={"methods": labels})


def list_case_limits(results: Results) -> Iterator[Limit]:
    """Return limits of test cases: too few, and those that are empty in the reference."""
    dice = results.dice.sites
    if dice.empty:
        return
    patients = dice["patients"].groupby(level="site").min()  # of any run, as for confidence intervals
    if counts := _counts(patients[patients < MIN_CASES]):
        yield Limit("few_patients", counts=counts)
    if counts := _counts(dice["both_empty"].groupby(level="site").sum(), least=1):
        yield Limit("both_empty", counts=counts)
    if "one_empty" in dice and (counts := _counts(dice["one_empty"].groupby(level="site").sum(), least=1)):
        yield Limit("one_empty", counts=counts)
    if surfaces := [name for name in SURFACES if name in dice]:
        blank = dice[surfaces].isna().all(axis=1) & (dice["one_empty"].fillna(0) == 0)
        if sites := list(dict.fromkeys(map(str, blank.index[blank].get_level_values("site")))):
            yield Limit("no_spacing", counts=dict.fromkeys(sites, 1))
    if counts := _count_false_positives(results.rows):
        yield Limit("false_positives", counts=counts)


def _counts(numbers: "pd.Series[Any]", least: int = 0) -> dict[str, int]:
    return {str(site): int(number) for site, number in numbers.items() if number >= least}


def _count_unshown(rows: pd.DataFrame) -> dict[str, int]:
    """Return by site the number of runs whose value of innovation is below `SHOWN` standard errors at the end."""
    measured = rows[(rows["split"] == "") & rows["quantity"].isin(["innovation", "standard_error"])]
    if not (measured["quantity"] == "innovation").any():
        return {}
    last = measured.sort_values("round", kind="stable").groupby(["method", "seed", "fold", "site", "quantity"]).last()
    values = last["value"].unstack("quantity")
    unshown = values["innovation"] < SHOWN * values["standard_error"]
    return _counts(unshown.groupby(level="site").sum(), least=1)


def _count_false_positives(rows: pd.DataFrame) -> dict[str, int]:
    """Return by site how many cases and labels of final models have an empty reference and a prediction."""
    keys = ["method", "seed", "site", "case", "label"]
    tested = rows[rows["split"] == "testing"]
    counts = {name: tested[tested["quantity"] == name].set_index(keys)["value"] for name in
              ("true_positives", "false_negatives", "false_positives")}  # fmt: skip
    if any(count.empty for count in counts.values()):
        return {}
    reference = counts["true_positives"] + counts["false_negatives"]
    is_false = (reference == 0) & (counts["false_positives"] > 0)
    return _counts(is_false.groupby(level="site").sum(), least=1)


def list_contribution_limits(results: Results) -> Iterator[Limit]:
    """Return limits of contributions that sum to 0 or less, are negative, or no more than their errors."""
    if counts := _count_unshown(results.rows):
        yield Limit("unshown", counts=counts)
    table = results.rounds.contributions
    if results.rounds.intervals.empty:
        return
    sums = table["mean_contribution"].groupby(level=["method", "seed"], observed=True).sum(min_count=1)
    below = list(dict.fromkeys(str(method) for method in sums[sums <= 0].index.get_level_values("method")))
    if below:
        yield Limit("no_shares", values={"methods": below})
    negative = table.loc[table["mean_contribution"] < 0].index.get_level_values("method")
    if others := [method for method in dict.fromkeys(map(str, negative)) if method not in below]:
        yield Limit("negative", values={"methods": others})
