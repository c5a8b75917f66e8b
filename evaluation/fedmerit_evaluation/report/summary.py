"""The findings of a report in words, and the few numbers in large print."""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from fedmerit_evaluation.report import contribution_statements, phrases, statements
from fedmerit_evaluation.report.contributions import methods_by_image_count
from fedmerit_evaluation.report.hospitals import sample_size
from fedmerit_evaluation.report.phrases import join_words, percent
from fedmerit_evaluation.results.dice import STANDALONE
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics import inference
from fedmerit_evaluation.statistics.intervals import estimates, select_methods, select_sites, sort_by_mean


@dataclass(frozen=True)
class Fact:
    """A number in large print."""

    name: str
    value: str
    note: str


def list_facts(results: Results) -> list[Fact]:
    """The numbers in large print."""
    dice, weights = _dice(results), _mean(results, "weight")
    return [
        *(_single_method_facts(results, dice) if len(dice) == 1 else _multi_method_facts(results) if len(dice) else ()),
        *(_weight_fact(weights.iloc[0]) if len(weights) == 1 else ()),
        *(
            Fact(name, str(len(sites)), "; ".join(f"{site}, rounds: {n}" for site, n in sites.items()) or "none")
            for name, quantity in (("Flagged sites", "flagged"), ("Missing or rejected", "rejected"))
            for sites in [_rounds_with(results, quantity)]
        ),
    ]


def _single_method_facts(results: Results, dice: pd.DataFrame) -> Iterator[Fact]:
    _, row = next(_over_sites(results).iterrows())
    yield Fact("Mean test Dice", percent(row["mean"]), "mean over sites")
    yield Fact("Worst-served site", percent(dice.iloc[0].min()), join_words(_top(-dice.iloc[0])))
    if pd.notna(row["std"]):
        yield Fact("Spread over sites", f"{100 * row['std']:.1f}", "points of Dice, standard deviation")


def _multi_method_facts(results: Results) -> Iterator[Fact]:
    overall = _over_sites(results)
    yield Fact("Highest mean Dice", percent(overall["mean"].max()), join_words(_top(overall["mean"])))
    yield Fact("Highest worst-site Dice", percent(overall["worst"].max()), join_words(_top(overall["worst"])))
    if overall["std"].notna().any():
        least = _top(-overall["std"])
        means = join_words([percent(overall["mean"][method]) for method in least])
        note = f"points of Dice over sites, {join_words(least)}, at a mean of {means}"
        yield Fact("Smallest spread", f"{100 * overall['std'].min():.1f}", note)


def _weight_fact(weights: pd.Series) -> Iterator[Fact]:
    if (known := weights.dropna()).size and known.max() - known.min() >= inference.TIE_TOLERANCE:
        yield Fact(
            "Largest weight",
            percent(known.max()),
            f"{join_words(_top(known))}; an equal share is {percent(1 / len(known))}",
        )


def list_sentences(results: Results) -> list[str]:
    """The findings over all methods: the best one and whether significantly, gains and losses, flagged sites."""
    found, table = list[str](), _over_sites(results) if len(_dice(results)) else pd.DataFrame()
    sample = sample_size(results)
    if len(table) > 1:
        columns = (
            {str(name): float(value) for name, value in table[column].items()} for column in ("mean", "worst", "std")
        )
        found += [
            statements.describe_methods(*columns),
            statements.describe_lead(*_close(results.dice.intervals), sample),
        ]
    gains = select_sites(results.dice.intervals, "gain").dropna(subset="mean")
    sites_by_text: dict[str, list[str]] = {}
    for site, rows in gains.groupby(level="of"):
        of_site = estimates(rows.droplevel("of"))
        sites_by_text.setdefault(statements.describe_gains(of_site, sample_size(results, str(site))), []).append(
            str(site)
        )
    found += [f"{join_words(sites)} {text}" for text, sites in sites_by_text.items()]
    flagged, rejected = (list(_rounds_with(results, quantity)) for quantity in ("flagged", "rejected"))
    return [*found, phrases.describe_flags(flagged, rejected)]


def _close(intervals: pd.DataFrame) -> tuple[str, list[str]]:
    """The best method by mean Dice, and those that it is not significantly better than."""
    best = sort_by_mean(select_methods(intervals, "mean"))[0]
    against = select_sites(intervals, "difference")
    against = against[against.index.get_level_values("method") == best].droplevel("method")
    return best, [method for method, lead in estimates(against).items() if lead.compare(0) < 1]


def describe_each_method(results: Results) -> list[tuple[str, str]]:
    """The findings of each method as (method, text); of one method, each finding in a sentence without its name."""
    methods = results.methods
    texts: list[tuple[str, str]] = []
    for method in methods:
        found = list(_findings(results, method))
        if len(methods) == 1:
            texts += [("", f"{part[0].upper()}{part[1:]}.") for part in found]
        elif found:
            texts.append((method, f"{'; '.join(found)}."))
    return texts


def _findings(results: Results, method: str) -> Iterator[str]:
    for _, row in _select(_dice(results), method).iterrows():
        if known := {str(site): float(value) for site, value in row.dropna().items()}:
            yield statements.describe_dice(known)
    gains = select_sites(results.dice.intervals, "gain")
    gains = gains[gains.index.get_level_values("method") == method].droplevel("method")
    if gains["mean"].notna().any():
        yield statements.describe_participation(estimates(gains), sample_size(results, methods=[method, STANDALONE]))
    if weights := _known(results, "weight", method):
        yield contribution_statements.describe_weights(weights)
    if method in methods_by_image_count(results):
        yield "it weighs by images and makes no estimate of contributions"
        return
    contributions = _known(results, "mean_contribution", method)
    if contributions and (text := contribution_statements.describe_estimate(contributions)):
        yield text
    if method in results.rounds.rankings:
        yield contribution_statements.describe_order(results.rounds.rankings[method])


def _known(results: Results, quantity: str, method: str) -> dict[str, float]:
    """By site, one column of contributions of one method, mean over seeds, if it is known."""
    lines = _select(_mean(results, quantity), method)
    return {str(site): float(value) for site, value in lines.iloc[0].dropna().items()} if len(lines) else {}


def _select(table: pd.DataFrame, method: str) -> pd.DataFrame:
    """The row of one method, if there is one."""
    return table[table.index == method]


def _rounds_with(results: Results, quantity: str) -> dict[str, int]:
    """By site, in how many rounds of all runs it was so; none if in no round."""
    there = (results.rows["quantity"] == quantity) & (results.rows["value"] > 0)
    return {str(site): int(number) for site, number in results.rows.loc[there].groupby("site").size().items()}


def _dice(results: Results) -> pd.DataFrame:
    """Methods x sites, mean over seeds."""
    return results.dice.by_site.groupby(level="method").mean()


def _over_sites(results: Results) -> pd.DataFrame:
    """Methods x ``mean, std, worst`` over sites, each the mean over seeds, as the table of methods prints them."""
    return pd.DataFrame(results.dice.comparison[0]["sites"])


def _mean(results: Results, name: str) -> pd.DataFrame:
    """One column of contributions, methods x sites, mean over seeds; empty if there is none."""
    table = results.rounds.contributions
    return table[name].unstack("site").groupby(level="method").mean() if name in table else pd.DataFrame()


def _top(line: pd.Series) -> list[str]:
    """The names with the largest number; several if they tie."""
    return inference.find_highest({str(name): float(value) for name, value in line.dropna().items()})
