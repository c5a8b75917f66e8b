"""The findings of a report in words, with their numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from evaluation.formats import MINUS
from evaluation.runs import Run
from evaluation.tables import by_site, contributions, gains, over_sites, per_round, site_dice

TINY = 1e-9


@dataclass(frozen=True)
class Fact:
    """A number worth a large print."""

    name: str
    value: str
    note: str


def notes(runs: Sequence[Run], results: pd.DataFrame) -> list[str]:
    """What a reader has to know before believing a number: incomplete runs, single seeds, differing test cases."""
    said = []
    for run in runs:
        if run.rounds_done < run.rounds:
            said.append(f"{_named(run)}: run incomplete: {run.rounds_done} of {run.rounds} rounds.")
        if not run.tested:
            said.append(f"{_named(run)}: no test Dice yet; it is measured after the last round.")
    by_method: dict[str, set[int]] = {}
    for run in runs:
        by_method.setdefault(run.label, set()).add(run.seed)
    if all(len(seeds) == 1 for seeds in by_method.values()):
        said.append(
            "One seed per method: differences between sites and methods may be chance. "
            "Repeat with several seeds before anything is paid or decided by these numbers."
        )
    elif len({frozenset(seeds) for seeds in by_method.values()}) > 1:
        said.append("The methods were run with different seeds: compare their means with care.")
    if (rounds := {run.rounds for run in runs}) and len(rounds) > 1:
        said.append(f"The runs differ in their number of rounds: {', '.join(map(str, sorted(rounds)))}.")
    if any(run.tested for run in runs) and _cases_differ(results):
        said.append("Runs of one seed were tested on different cases: their Dice cannot be compared.")
    return said


def facts(results: pd.DataFrame) -> list[Fact]:
    """The few numbers at the top."""
    found = []
    dice = _dice(results)
    if not dice.empty:
        overall = over_sites(dice)
        best = overall["mean"].idxmax()
        several = len(overall) > 1
        row = overall.loc[best]
        found.append(Fact("Mean test Dice", _percent(row["mean"]), str(best) if several else "mean of sites"))
        worst = overall["worst"].idxmax() if several else best
        found.append(
            Fact(
                "Highest worst-site Dice" if several else "Worst site",
                _percent(overall.loc[worst, "worst"]),
                f"{worst}, site {overall.loc[worst, 'worst_site']}" if several else str(row["worst_site"]),
            )
        )
        if overall["std"].notna().any():
            even = overall["std"].idxmin()
            found.append(
                Fact("Smallest spread over sites" if several else "Spread over sites",
                     f"{100 * overall.loc[even, 'std']:.1f}", f"{even}, " * several + "std in Dice points")
            )  # fmt: skip
    weights = _last(results, "weight")
    if len(weights) == 1 and weights.notna().any(axis=None):
        line = weights.iloc[0]
        found.append(Fact("Largest weight", f"{line.max():.3f}", f"{line.idxmax()}; equal share {1 / len(line):.3f}"))
    for name, verb in (("flagged", "Flagged"), ("rejected", "Rejected")):
        sites = _marked(results, name)
        found.append(Fact(f"{verb} sites", str(len(sites)), ", ".join(sites) or "none"))
    return found


def sentences(results: pd.DataFrame) -> list[str]:
    """The findings, one method after the other."""
    said: list[str] = []
    dice, weights, merit = _dice(results), _last(results, "weight"), _mean(results, "contribution")
    if len(dice) > 1:
        overall = over_sites(dice)
        said.append(
            f"Of {len(dice)} methods, {overall['mean'].idxmax()} has the highest mean test Dice "
            f"({_percent(overall['mean'].max())}), {overall['worst'].idxmax()} serves its worst site best "
            f"({_percent(overall['worst'].max())})"
            + (
                f", and {overall['std'].idxmin()} treats the sites most alike "
                f"(standard deviation {100 * overall['std'].min():.1f} points)."
                if overall["std"].notna().any()
                else "."
            )
        )
    methods = list(dict.fromkeys([*dice.index, *weights.index, *merit.index]))
    for method in methods:
        parts = []
        if method in dice.index:
            row = over_sites(dice.loc[[method]]).iloc[0]
            parts.append(
                f"mean test Dice {_percent(row['mean'])}, "
                f"best {_percent(row['best'])} ({row['best_site']}), "
                f"worst {_percent(row['worst'])} ({row['worst_site']})"
            )
        if method in weights.index and (line := weights.loc[method].dropna()).size:
            if line.max() - line.min() < TINY:
                parts.append(f"all sites ended with the weight {line.max():.3f}")
            else:
                parts.append(
                    f"{line.idxmax()} ended with the largest weight, {line.max():.3f}, "
                    f"and {line.idxmin()} with the smallest, {line.min():.3f} (an equal share is {1 / len(line):.3f})"
                )
        if method in merit.index and (line := merit.loc[method].dropna()).size and line.max() - line.min() > TINY:
            text = f"{line.idxmax()} contributed most by the method's own estimate ({_signed(line.max())} on average)"
            if below := [f"{site} ({_signed(value)})" for site, value in line.items() if value < 0]:
                text += f", and the estimate is negative for {_list(below)}"
            parts.append(text)
        if parts:
            said.append(f"{method}: " + "; ".join(parts) + ".")
    for method, line in gains(results).iterrows():
        lost = [f"{site} ({_points(value)})" for site, value in line.items() if value < 0]
        said.append(
            f"Against training alone, {method} changes Dice by {_points(line.mean())} points on average; "
            + (f"{_list(lost)} would do better alone." if lost else "no site loses by taking part.")
        )
    empty = int(site_dice(results)["both_empty"].sum()) if not dice.empty else 0
    if empty:
        said.append(
            f"{empty} pairs of test case and label, empty in reference and prediction alike, are left out of the means."
        )
    said.append(_marks(results))
    return said


def ranks_over_seeds(results: pd.DataFrame) -> pd.DataFrame:
    """How stable the ranking of contributions is: ``(method, site)`` x ``best, worst`` rank over seeds, 1 highest.

    Empty where no method has several seeds.
    """
    table = per_round(results, "contribution").groupby(level=["method", "seed"]).mean().dropna(how="all")
    several = table.groupby(level="method").transform("size") > 1
    ranks = table[several].rank(axis=1, ascending=False, method="min").groupby(level="method")
    return pd.DataFrame({"best": ranks.min().stack(), "worst": ranks.max().stack()}).rename_axis(["method", "site"])


def _marks(results: pd.DataFrame) -> str:
    flagged, rejected = _marked(results, "flagged"), _marked(results, "rejected")
    if not flagged and not rejected:
        return "No site was flagged and no reply was rejected."
    parts = [f"{_list(sites)} {verb}" for sites, verb in ((flagged, "flagged"), (rejected, "rejected")) if sites]
    return "Look at these first: " + "; ".join(parts) + " in at least one round."


def _marked(results: pd.DataFrame, quantity: str) -> list[str]:
    rows = results[(results["quantity"] == quantity) & (results["value"] > 0)]
    return sorted(rows["site"].unique())


def _dice(results: pd.DataFrame) -> pd.DataFrame:
    return by_site(results).groupby(level="method").mean()


def _last(results: pd.DataFrame, quantity: str) -> pd.DataFrame:
    return _column(results, quantity)


def _mean(results: pd.DataFrame, quantity: str) -> pd.DataFrame:
    return _column(results, f"mean_{quantity}")


def _column(results: pd.DataFrame, name: str) -> pd.DataFrame:
    table = contributions(results)
    if name not in table:
        return pd.DataFrame()
    return table[name].unstack("site").groupby(level="method").mean()


def _cases_differ(results: pd.DataFrame) -> bool:
    rows = results.loc[results["split"] == "testing", ["method", "seed", "site", "case"]].drop_duplicates()
    cases = rows.groupby(["seed", "method"])[["site", "case"]].apply(lambda run: frozenset(map(tuple, run.to_numpy())))
    return bool((cases.groupby(level="seed").nunique() > 1).any())


def _named(run: Run) -> str:
    return f"{run.label}, seed {run.seed}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", MINUS)


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.1f}".replace("-", MINUS)


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
