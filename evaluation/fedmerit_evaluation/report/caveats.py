"""Limits of the results that a reader has to know before relying on a number."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.score_name import shown_score
from fedmerit_evaluation.report.phrases import join_words
from fedmerit_evaluation.results.runs import Run, read_rounds
from fedmerit_evaluation.results.views import MIN_CASES_TO_RESAMPLE, SURFACES, Results
from fedmerit_evaluation.statistics.inference import MIN_CASES

ON_ONE_MACHINE = ("local", "sim")  # engines with which nothing leaves a hospital
SEEDS_FOR_INTERVALS = 3  # with two, CIs over seeds are three times as wide for the same spread


def list_run_caveats(runs: Sequence[Run], results: Results, *, sites_named: bool = True) -> list[str]:
    """Incomplete runs, missing tests, what nobody checked, models that were shared, too few seeds, runs that differ.

    Args:
        runs: with labels.
        results: of all runs.
        sites_named: whether sites may be named; else they are counted.
    """
    said: dict[tuple[str, str], dict[str, None]] = {}  # by label and note: the seeds, each once if there are folds
    for run in runs:
        for note in _list_one_run_caveats(run, results, sites_named):
            said.setdefault((run.label, note), {})[str(run.seed)] = None
    notes = [
        f"{label}, {'seed' if len(of) == 1 else 'seeds'} {join_words(list(of))}: {note}"
        for (label, note), of in said.items()
    ]
    seeds: dict[str, set[int]] = {}
    for run in runs:
        seeds.setdefault(run.label, set()).add(run.seed)
    fewest, has_folds = min(len(numbers) for numbers in seeds.values()), results.dice.clusters.folds > 0
    if fewest == 1 and not has_folds:
        notes.append(
            "One seed: differences between sites and methods may be chance. "
            "Repeat with several seeds before you pay or decide by these numbers."
        )
    elif fewest < SEEDS_FOR_INTERVALS and not has_folds:
        notes.append(
            f"{fewest} seeds: confidence intervals over seeds are very wide (12.7 standard errors; "
            f"{SEEDS_FOR_INTERVALS} seeds: 4.3). Run more seeds."
        )
    if len({frozenset(numbers) for numbers in seeds.values()}) > 1:
        notes.append("The methods have different seeds: compare their means with care.")
    rounds = sorted({run.rounds for run in runs})
    if len(rounds) > 1:
        notes.append(f"The runs differ in their number of rounds: {join_words([str(number) for number in rounds])}.")
    if results.dice.mismatched_seeds():
        notes.append("Runs of one seed were tested on different cases: their Dice cannot be compared.")
    return notes


def _list_one_run_caveats(run: Run, results: Results, sites_named: bool) -> Iterator[str]:
    if run.rounds_done < run.rounds and "models_of" not in run.info:  # an ensemble trains in no round
        yield f"run incomplete: {run.rounds_done} of {run.rounds} rounds."
    if script := run.info.get("plan", {}).get("script"):
        yield from _list_script_caveats(script, results)
    if not run.tested and (not script or script["evaluates"]):
        yield "no test Dice yet; it is measured after the last round."
    elif untested := [site for site in run.sites if site not in run.tested_sites]:
        who = join_words(untested) if sites_named else f"{len(untested)} of {len(run.sites)} sites"
        yield f"no test Dice from {who}; means are over the others."
    for (number, site), what in read_rounds(run.path, _changes_of_membership).items():
        who = site if sites_named else "a site"
        yield f"{who} {what} round {number}: its means and shares are over its rounds."
    if HE in run.info.get("privacy", ()):
        yield (
            "updates were encrypted: the server could check neither the updates nor the sites' reports. "
            "Contributions and flags rest on what the sites report."
        )
    elif _errors_are_self_reported(run):
        yield (
            "each site itself reported the error of the model without it; neither the server's images nor other sites "
            "measured it. A site that reports a larger one gains weight."
        )
    if run.info.get("engine") not in ON_ONE_MACHINE and run.info.get("plan", {}).get("share_models"):
        yield "sites were sent models made of single other sites' updates (--share-models)."


def _changes_of_membership(record: Mapping[str, Any]) -> list[tuple[tuple[int, str], str]]:
    """Sites that took part from a round on, or no more from it."""
    said = {"joined": "joined with", "left": "left before"}
    return [((record["round"], site), said[what]) for what in said for site in record.get(what, ())]


def _list_script_caveats(script: Mapping[str, Any], results: Results) -> Iterator[str]:
    """What a run by the sites' own scripts cannot say, or says in other words."""
    yield (
        "sites trained by scripts of their own, whose settings are not recorded. Training images are steps of "
        "the script's optimiser in a round."
    )
    if not script["metric"]:
        yield "the script measures nothing of the models, so there is no score."
        return
    bounds = f"{script['lowest']:g} to {script['highest']:g}"
    less = " and reversed, as lower is better" if script["better"] == "lower" else ""
    if shown_score().endswith(" score"):
        yield f"{shown_score()} is the script's metric {script['metric']}, scaled from {bounds}{less}."
    rows = results.rows
    if rows.loc[rows["quantity"] == "dice", "case"].nunique() == 1:
        yield (
            "the script gives one mean for a site, so there are no intervals over cases. Have it send its "
            f"values by case, too, as {script['metric']}_by_case."
        )
    if not script["evaluates"]:
        yield "the script does not answer flare.is_evaluate(), so no final model was tested."


def _errors_are_self_reported(run: Run) -> bool:
    """Whether a guarded run used the sites' own errors, as nobody measured them."""
    rows = run.results.rows
    measured, said = (rows.loc[rows["quantity"] == name, "value"] for name in ("measured_error", "minus_error"))
    return bool(len(measured) and measured.isna().all() and said.notna().any())


def list_attack_caveats(runs: Sequence[Run]) -> Iterator[str]:
    """That Dice leaves out runs with simulated attacks."""
    if labels := list(dict.fromkeys(run.label for run in runs if run.attacks)):
        yield (
            f"{join_words(labels)}: runs with simulated attacks. Their contributions, weights, flags, convergence and "
            "cost are shown, but no Dice."
            if not all(run.attacks for run in runs)
            else "Every run here has simulated attacks."
        )


def list_case_caveats(results: Results, own: str | None = None) -> Iterator[str]:
    """Too few test cases, and cases that are empty in the reference.

    Args:
        results: of all runs.
        own: only this site; None: all, by name.
    """
    dice, rows = results.dice.sites, results.rows
    if own is not None:
        dice = dice[dice.index.get_level_values("site") == own]
        rows = rows[rows["site"] == own]
    if dice.empty:
        return
    cases = dice["patients"].groupby(level="site").min()  # of any run, as for confidence intervals
    few = cases[cases < MIN_CASES]
    if not few.empty:
        counts = join_words([f"{site} ({count})" for site, count in few.items()])
        text = f"Fewer than {MIN_CASES} test patients in a run: {counts}. Each changes the site's Dice by much"
        lonely = [str(site) for site in few.index[few < MIN_CASES_TO_RESAMPLE]]
        yield text + (
            f", and of fewer than {MIN_CASES_TO_RESAMPLE} there is no CI ({join_words(lonely)})." if lonely else "."
        )
    if empty := int(dice["both_empty"].sum()):
        pairs = "1 pair" if empty == 1 else f"{empty} pairs"
        yield f"{pairs} of test case and label are empty in reference and prediction: left out of the means."
    if "one_empty" in dice and (lone := int(dice["one_empty"].sum())):
        pairs = "1 pair" if lone == 1 else f"{lone} pairs"
        yield f"{pairs} with only one of reference and prediction empty: no HD95, left out of its means; NSD counts 0."
    if surfaces := [name for name in SURFACES if name in dice]:
        blank = dice[surfaces].isna().all(axis=1) & (dice["one_empty"].fillna(0) == 0)
        if unknown := list(dict.fromkeys(map(str, blank.index[blank].get_level_values("site")))):
            yield (f"HD95 and NSD are not known for {join_words(unknown)}: the images have no known spacing.")
    if false := _count_false_positives(rows):
        yield f"{false} test cases with an empty reference have a prediction: they count as Dice 0."


def list_contribution_caveats(results: Results) -> Iterator[str]:
    """Contributions that sum to 0 or less, or are negative."""
    table = results.rounds.contributions
    if results.rounds.intervals.empty:
        return
    sums = table["mean_contribution"].groupby(level=["method", "seed"], observed=True).sum(min_count=1)
    below = dict.fromkeys(str(method) for method in sums[sums <= 0].index.get_level_values("method"))
    if below:
        yield f"The contributions with {join_words(list(below))} sum to 0 or less: there are no shares of them."
    negative = table.loc[table["mean_contribution"] < 0].index.get_level_values("method")
    if others := [method for method in dict.fromkeys(map(str, negative)) if method not in below]:
        yield f"Some contributions with {join_words(others)} are negative: a share may then exceed 100 %."


def _count_false_positives(rows: pd.DataFrame) -> int:
    """Test cases and labels of the final models with an empty reference and a prediction."""
    keys = ["method", "seed", "site", "case", "label"]
    tested = rows[rows["split"] == "testing"]
    counts = {name: tested[tested["quantity"] == name].set_index(keys)["value"] for name in
              ("true_positives", "false_negatives", "false_positives")}  # fmt: skip
    if any(count.empty for count in counts.values()):
        return 0
    reference = counts["true_positives"] + counts["false_negatives"]
    return int(((reference == 0) & (counts["false_positives"] > 0)).sum())
