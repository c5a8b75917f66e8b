"""The findings of a report in words, with their numbers."""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from fedmerit_evaluation.report import phrases, statements
from fedmerit_evaluation.report.hospitals import sample_size
from fedmerit_evaluation.report.phrases import join_words, percent
from fedmerit_evaluation.results.dice import STANDALONE
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics import inference
from fedmerit_evaluation.statistics.bootstrap import LEVEL
from fedmerit_evaluation.statistics.inference import Estimate
from fedmerit_evaluation.statistics.intervals import select_methods, select_sites, sort_by_mean


@dataclass(frozen=True)
class Fact:
    """A number worth a large print."""

    name: str
    value: str
    note: str


def list_facts(results: Results) -> list[Fact]:
    """The few numbers at the top."""
    dice, weights = _dice(results), _mean(results, "weight")
    return [
        *(_single_method_facts(results, dice) if len(dice) == 1 else _multi_method_facts(results) if len(dice) else ()),
        *(_weight_fact(weights.iloc[0]) if len(weights) == 1 else ()),
        *(
            Fact(name, str(len(sites)), ", ".join(sites) or "none")
            for name, quantity in (("Flagged sites", "flagged"), ("Missing or rejected", "rejected"))
            for sites in [_marked(results, quantity)]
        ),
    ]


def _single_method_facts(results: Results, dice: pd.DataFrame) -> Iterator[Fact]:
    _, row = next(_over_sites(results).iterrows())
    yield Fact("Mean test Dice", percent(row["mean"]), "mean of sites")
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
    if (known := weights.dropna()).size and not _equal(known):
        yield Fact(
            "Largest weight",
            percent(known.max()),
            f"{join_words(_top(known))}; an equal share is {percent(1 / len(known))}",
        )


def list_sentences(results: Results) -> list[str]:
    """The findings over all methods: which is highest and whether that can be told, who gained, lost or was flagged."""
    said, table = list[str](), _over_sites(results) if len(_dice(results)) else pd.DataFrame()
    grounds = sample_size(results)
    if len(table) > 1:
        columns = (
            {str(name): float(value) for name, value in table[column].items()} for column in ("mean", "worst", "std")
        )
        said += [
            statements.describe_methods(*columns),
            statements.describe_lead(*_close(results.dice.intervals), grounds, LEVEL),
        ]
    gains = select_sites(results.dice.intervals, "gain").dropna(subset="mean")
    alike_sites: dict[str, list[str]] = {}
    for site, rows in gains.groupby(level="of"):
        of_site = {
            str(name): Estimate(row["mean"], row["low"], row["high"]) for name, row in rows.droplevel("of").iterrows()
        }
        alike_sites.setdefault(statements.describe_gains(of_site, sample_size(results, str(site))), []).append(
            str(site)
        )
    said += [f"{join_words(sites)} {text}" for text, sites in alike_sites.items()]
    return [*said, phrases.describe_flags(_marked(results, "flagged"), _marked(results, "rejected"))]


def _close(intervals: pd.DataFrame) -> tuple[str, list[str]]:
    """The best method by mean Dice, and those that it cannot be told from."""
    best = sort_by_mean(select_methods(intervals, "mean"))[0]
    against = select_sites(intervals, "difference")
    against = against[against.index.get_level_values("method") == best].droplevel("method")
    return best, [str(method) for method in against.index[~(against["low"] > 0)]]


def describe_each_method(results: Results) -> list[tuple[str, str]]:
    """The findings of each method as (method, text); of one method, each finding in a sentence without its name."""
    methods = results.methods
    said: list[tuple[str, str]] = []
    for method in methods:
        found = list(_findings(results, method))
        if len(methods) == 1:
            said += [("", f"{part[0].upper()}{part[1:]}.") for part in found]
        elif found:
            said.append((method, f"{'; '.join(found)}."))
    return said


def _findings(results: Results, method: str) -> Iterator[str]:
    """What there is to say of one method."""
    for _, row in _of(_dice(results), method).iterrows():
        if known := {str(site): float(value) for site, value in row.dropna().items()}:
            yield statements.describe_dice(known)
    gains = select_sites(results.dice.intervals, "gain")
    gains = gains[gains.index.get_level_values("method") == method].droplevel("method")
    if gains["mean"].notna().any():
        measured = {str(site): Estimate(row["mean"], row["low"], row["high"]) for site, row in gains.iterrows()}
        yield statements.describe_participation(measured, sample_size(results, methods=[method, STANDALONE]))
    if weights := _known(results, "weight", method):
        yield statements.describe_weights(weights)
    contributions = _known(results, "mean_contribution", method)
    if contributions and (text := statements.describe_estimate(contributions)):
        yield text
    ranks = results.rounds.ranks
    ranks = ranks[ranks.index.get_level_values("method") == method]
    if not ranks.empty:
        yield statements.describe_rank_stability(list(zip(ranks["best"], ranks["worst"], strict=True)))


def _known(results: Results, quantity: str, method: str) -> dict[str, float]:
    """By site, one column of contributions of one method, mean over seeds, where it is known."""
    lines = _of(_mean(results, quantity), method)
    return {str(site): float(value) for site, value in lines.iloc[0].dropna().items()} if len(lines) else {}


def _of(table: pd.DataFrame, method: str) -> pd.DataFrame:
    """The row of one method, where it has any."""
    return table[table.index == method]


def _marked(results: Results, quantity: str) -> list[str]:
    marked = (results.rows["quantity"] == quantity) & (results.rows["value"] > 0)
    return sorted(results.rows.loc[marked, "site"].unique())


def _dice(results: Results) -> pd.DataFrame:
    """Methods x sites, mean over seeds."""
    return results.dice.by_site.groupby(level="method").mean()


def _over_sites(results: Results) -> pd.DataFrame:
    """Methods x ``mean, std, worst`` over sites, each the mean over seeds, as the table of methods prints them."""
    return pd.DataFrame(results.dice.comparison[0]["sites"])


def _mean(results: Results, name: str) -> pd.DataFrame:
    """One column of contributions, methods x sites, mean over seeds; empty where there is none."""
    table = results.rounds.contributions
    return table[name].unstack("site").groupby(level="method").mean() if name in table else pd.DataFrame()


def _top(line: pd.Series) -> list[str]:
    """The names with the largest number; several, where they tie."""
    return inference.highest({str(name): float(value) for name, value in line.dropna().items()})


def _equal(line: pd.Series) -> bool:
    return bool(line.max() - line.min() < inference.TIE_TOLERANCE)
