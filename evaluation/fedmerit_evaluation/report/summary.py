"""The findings of a report over all methods, in words."""

import pandas as pd

from fedmerit_evaluation.report import phrases, statements
from fedmerit_evaluation.report.hospitals import sample_size
from fedmerit_evaluation.report.phrases import join_words
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.inference import Estimate
from fedmerit_evaluation.statistics.intervals import estimates, select_methods, select_sites, sort_by_mean


def list_sentences(results: Results) -> list[str]:
    """The findings over all methods: the best one and whether significantly, gains and losses, flagged sites."""
    found, sample = list[str](), sample_size(results)
    table = pd.DataFrame() if results.dice.rows.empty else pd.DataFrame(results.dice.comparison[0]["sites"])
    if len(table) > 1:
        columns = (
            {str(name): float(value) for name, value in table[column].items()} for column in ("mean", "worst", "std")
        )
        found += [
            statements.describe_methods(*columns),
            statements.describe_lead(*_leads(results.dice.intervals), sample),
        ]
    gains = select_sites(results.dice.intervals, "gain").dropna(subset="mean")
    sites_by_text: dict[str, list[str]] = {}
    for site, rows in gains.groupby(level="of"):
        of_site = estimates(rows.droplevel("of"))
        sites_by_text.setdefault(statements.describe_gains(of_site, sample_size(results, str(site))), []).append(
            str(site)
        )
    found += [f"{join_words(sites)} {text}" for text, sites in sites_by_text.items()]
    flagged, rejected = (_sites_with(results, quantity) for quantity in ("flagged", "rejected"))
    return [*found, phrases.describe_flags(flagged, rejected)]


def _leads(intervals: pd.DataFrame) -> tuple[str, dict[str, Estimate]]:
    """The best method by mean Dice, and its leads over the others."""
    best = sort_by_mean(select_methods(intervals, "mean"))[0]
    against = select_sites(intervals, "difference")
    return best, estimates(against[against.index.get_level_values("method") == best].droplevel("method"))


def _sites_with(results: Results, quantity: str) -> list[str]:
    """The sites of which it was so in any round of any run."""
    there = (results.rows["quantity"] == quantity) & (results.rows["value"] > 0)
    return sorted(map(str, results.rows.loc[there, "site"].unique()))
