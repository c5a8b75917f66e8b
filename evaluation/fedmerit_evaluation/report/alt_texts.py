"""Alternative texts of figures, for screen readers: pure functions of what is drawn."""

from collections.abc import Mapping, Sequence

import pandas as pd

from fedmerit_evaluation.report.overlays import WHICH, Overlay
from fedmerit_evaluation.report.phrases import join_words, percent, points

MOST = 6  # methods or panels that are described one by one


def describe_dice(dice: pd.DataFrame) -> str:
    """Mean test Dice, methods x sites, fractions."""
    known = dice.dropna(how="all")
    parts = [
        f"{method!s} from {percent(row.min())} ({row.idxmin()}) to {percent(row.max())} ({row.idxmax()})"
        for method, row in known.head(MOST).iterrows()
    ]
    return f"A row per hospital. Mean test Dice: {'; '.join(parts)}{_more(len(known))}."


def describe_own_figure(site: str, dice: pd.Series) -> str:
    """A site's own mean test Dice by method, fractions."""
    parts = [f"{method!s} {percent(value)}" for method, value in dice.head(MOST).items()]
    return f"A row per method. Mean test Dice of {site}: {', '.join(parts)}{_more(len(dice))}."


def describe_gains(gains: pd.DataFrame) -> str:
    """Gains over local training, ``(method, site)`` x ``mean, low, high``, fractions."""
    parts = []
    for method, rows in gains.groupby(level=0, sort=False):
        means = rows["mean"].droplevel(0).dropna()
        above = [str(site) for site in rows.index[rows["low"] > 0].get_level_values(1)]
        below = [str(site) for site in rows.index[rows["high"] < 0].get_level_values(1)]
        lowest, highest = (
            f"{points(float(value))} points ({site})"
            for value, site in ((means.min(), means.idxmin()), (means.max(), means.idxmax()))
        )
        text = f"{method!s} from {lowest} to {highest}"
        text += f", the CI above 0 at {join_words(above)}" if above else ", no CI above 0"
        parts.append(text + (f", below 0 at {join_words(below)}" if below else ""))
    return f"A row per hospital, a line at 0. Gains: {'; '.join(parts[:MOST])}{_more(len(parts))}."


def describe_shares(shares: pd.DataFrame, equal: float) -> str:
    """Shares of contribution, sites x ``mean, low, high``, fractions."""
    ordered = shares["mean"].sort_values(ascending=False)
    parts = ", ".join(f"{site!s} {percent(value)}" for site, value in ordered.items())
    return (
        f"A row per hospital, the largest share on top: {parts}. A dashed line is at the equal share, {percent(equal)}."
    )


def describe_lines(lines: pd.DataFrame, title: str) -> str:
    """Rounds x names of lines."""
    known = {str(name): lines[name].dropna() for name in lines if lines[name].notna().any()}
    parts = [f"{name} from {line.iloc[0]:.3g} to {line.iloc[-1]:.3g}" for name, line in list(known.items())[:MOST]]
    return f"{title}, from the first round to the last: {'; '.join(parts)}{_more(len(known))}."


def describe_panels(panels: Mapping[str, pd.DataFrame], title: str) -> str:
    """A panel per method: rounds x sites."""
    parts, known = [], {method: lines for method, lines in panels.items() if lines.notna().any(axis=None)}
    for method, lines in list(known.items())[:MOST]:
        last = lines.ffill().iloc[-1].dropna()
        parts.append(
            f"{method}: in the last round highest at {last.idxmax()} ({last.max():.3g}), lowest at {last.idxmin()} "
            f"({last.min():.3g})"
        )
    return f"{title}, a panel per method, a named line per hospital. {'; '.join(parts)}{_more(len(known))}."


def describe_agreement(values: pd.Series, estimates: Mapping[str, pd.Series], reference: str) -> str:
    """Values of sites in points of Dice, and by method its estimates."""
    parts = []
    for method, line in list(estimates.items())[:MOST]:
        most = f"{method} puts {line.idxmax()} highest and {line.idxmin()} lowest"
        parts.append(most)
    return (
        f"A panel per method, a named dot per hospital. By {reference} value {values.idxmax()} is highest and "
        f"{values.idxmin()} lowest; {'; '.join(parts)}{_more(len(estimates))}."
    )


def describe_overlays(shown: Sequence[Overlay]) -> str:
    """Images with outlines."""
    parts = [f"{one.site}, {one.method}, {WHICH[one.which]} {percent(one.dice)}" for one in shown]
    return f"Images with the outlines of reference (yellow) and prediction (pink). Dice: {'; '.join(parts)}."


def _more(count: int) -> str:
    return f"; and {count - MOST} more" if count > MOST else ""
