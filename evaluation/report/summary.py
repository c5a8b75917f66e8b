"""The findings of a report in words, with their numbers."""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from evaluation.report.words import between, listed, percent, points
from evaluation.results.bootstrap import LEVEL
from evaluation.results.dice import over_sites
from evaluation.results.intervals import alike, by_rank, of_methods, of_sites
from evaluation.results.views import Results

TINY = 1e-9


@dataclass(frozen=True)
class Fact:
    """A number worth a large print."""

    name: str
    value: str
    note: str


def facts(results: Results) -> list[Fact]:
    """The few numbers at the top."""
    dice, weights = _dice(results), _mean(results, "weight")
    return [
        *(_facts_of_one(results, dice) if len(dice) == 1 else _facts_of_several(results) if len(dice) else ()),
        *(_fact_of_weights(weights.iloc[0]) if len(weights) == 1 else ()),
        *(
            Fact(f"{quantity.title()} sites", str(len(sites)), ", ".join(sites) or "none")
            for quantity in ("flagged", "rejected")
            for sites in [_marked(results, quantity)]
        ),
    ]


def _facts_of_one(results: Results, dice: pd.DataFrame) -> Iterator[Fact]:
    _, row = next(_over_sites(results).iterrows())
    yield Fact("Mean test Dice", percent(row["mean"]), "mean of sites")
    yield Fact("Worst-served site", percent(dice.iloc[0].min()), _top(-dice.iloc[0]))
    if pd.notna(row["std"]):
        yield Fact("Spread over sites", f"{100 * row['std']:.1f}", "points of Dice, standard deviation")


def _facts_of_several(results: Results) -> Iterator[Fact]:
    overall = _over_sites(results)
    yield Fact("Highest mean Dice", percent(overall["mean"].max()), _top(overall["mean"]))
    yield Fact("Highest worst-site Dice", percent(overall["worst"].max()), _top(overall["worst"]))
    if overall["std"].notna().any():
        least = _top(-overall["std"])
        note = f"points of Dice over sites, {least}, at a mean of {percent(overall['mean'][least])}"
        yield Fact("Smallest spread", f"{100 * overall['std'].min():.1f}", note)


def _fact_of_weights(weights: pd.Series) -> Iterator[Fact]:
    if (known := weights.dropna()).size and not _equal(known):
        yield Fact("Largest weight", f"{known.max():.3f}", f"{_top(known)}; an equal share is {1 / len(known):.3f}")


def sentences(results: Results) -> list[str]:
    """The findings over all methods: which is highest and whether that can be told, who gained, lost or was flagged."""
    said, intervals = list[str](), results.dice.intervals
    if len(_dice(results)) > 1:
        said.append(_headline(_over_sites(results)))
        said += _told_apart(intervals)
    said += _gained_and_lost(intervals)
    return [*said, _marks(results)]


def method_by_method(results: Results) -> list[tuple[str, str]]:
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


def _headline(overall: pd.DataFrame) -> str:
    text = (
        f"Of {len(overall)} methods, {_top(overall['mean'])} has the highest mean test Dice "
        f"({percent(overall['mean'].max())}), {_top(overall['worst'])} the highest Dice on its worst site "
        f"({percent(overall['worst'].max())})"
    )
    if overall["std"].notna().any():
        least = _top(-overall["std"])
        text += (
            f", and {least} serves the sites most alike (standard deviation {100 * overall['std'].min():.1f} points, "
            f"at a mean of {percent(overall['mean'][least])})"
        )
    return f"{text}."


def _told_apart(intervals: pd.DataFrame) -> Iterator[str]:
    """Which methods the best by mean Dice cannot be told from."""
    best = by_rank(of_methods(intervals, "mean"))[0]
    against = of_sites(intervals, "difference")
    against = against[against.index.get_level_values("method") == best].droplevel("method")
    close = [str(method) for method in against.index[alike(against)]]
    end = f"the {100 * LEVEL:g} % intervals of the differences, case by case, hold 0"
    yield (
        f"{best} is not distinguishable from {listed(close)}: {end}." if close
        else f"The {100 * LEVEL:g} % intervals of what {best} is above each other method leave out 0."
    )  # fmt: skip


def _gained_and_lost(intervals: pd.DataFrame) -> Iterator[str]:
    """Who gained and who lost against training alone, over all methods; surely where the interval leaves out 0."""
    gain = of_sites(intervals, "gain").dropna(subset="mean")
    methods = len(gain.index.unique("method"))
    for site, rows in gain.groupby(level="of"):
        won, lost = rows[rows["mean"] >= 0], rows[rows["mean"] < 0]
        if methods == 1:
            row = rows.iloc[0]
            verb = "gained" if row["mean"] >= 0 else "lost"
            yield (
                f"{site} {verb} against training alone: {points(row['mean'])} points of Dice "
                f"({between(row['low'], row['high'])})."
            )
            continue
        parts = []
        if len(won):
            sure = int((won["low"] > 0).sum())
            parts.append(f"gained under {len(won)} of {methods} methods{_sure(sure)}")
        if len(lost):
            sure = int((lost["high"] < 0).sum())
            worst = lost["mean"].droplevel("of").idxmin()
            parts.append(
                f"lost under {len(lost)}{_sure(sure)}, most under {worst} ({points(lost['mean'].min())} points)"
            )
        yield f"{site} {' and '.join(parts)}, against training alone."


def _sure(count: int) -> str:
    """How many of the changes have an interval that leaves out 0."""
    return f" ({count or 'none'} with an interval that leaves out 0)"


def _findings(results: Results, method: str) -> Iterator[str]:
    """What there is to say of one method."""
    for _, row in _of(over_sites(_dice(results)), method).iterrows():
        yield (
            f"the mean test Dice is {percent(row['mean'])}, highest at {row['best_site']} ({percent(row['best'])}) "
            f"and lowest at {row['worst_site']} ({percent(row['worst'])})"
        )
    for _, line in _of(results.dice.gains, method).iterrows():
        known = line.dropna()
        lost = [f"{site} ({points(value)})" for site, value in known.items() if value < 0]
        yield (
            f"taking part changes Dice by {points(known.mean())} points on average against training alone, and "
            + (f"{listed(lost)} would do better alone" if lost else "no site loses by it")
        )
    for _, line in _of(_mean(results, "weight"), method).iterrows():
        if (known := line.dropna()).size:
            yield (
                f"all sites ended with the weight {known.max():.3f}"
                if _equal(known)
                else f"the largest weight in the end is {_top(known)}'s, {known.max():.3f}, and the smallest "
                f"{_top(-known)}'s, {known.min():.3f} (an equal share is {1 / len(known):.3f})"
            )
    for _, line in _of(_mean(results, "mean_contribution"), method).iterrows():
        if (known := line.dropna()).size and not _equal(known):
            text = f"by the method's own estimate {_top(known)} contributed most"
            if below := [str(site) for site, value in known.items() if value < 0]:
                text += f", and the estimate is negative for {listed(below)}"
            yield text
    ranks = results.rounds.ranks
    ranks = ranks[ranks.index.get_level_values("method") == method]
    if not ranks.empty:
        yield (
            "the sites rank alike by contribution in every seed"
            if (ranks["best"] == ranks["worst"]).all()
            else "the ranking by contribution changes with the seed, so no payment should rest on it"
        )


def _of(table: pd.DataFrame, method: str) -> pd.DataFrame:
    """The row of one method, where it has any."""
    return table[table.index == method]


def _marks(results: Results) -> str:
    flagged, rejected = _marked(results, "flagged"), _marked(results, "rejected")
    if not flagged and not rejected:
        return "No site was flagged and no reply was rejected."
    parts = [
        f"{listed(sites)} {what} in at least one round"
        for sites, what in ((flagged, "flagged"), (rejected, "with a reply rejected"))
        if sites
    ]
    return f"Look at these first: {'; '.join(parts)}."


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


def _top(line: pd.Series) -> str:
    return str(line.idxmax())


def _equal(line: pd.Series) -> bool:
    return bool(line.max() - line.min() < TINY)
