"""Figures over the rounds; every line has its name."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.signal import savgol_filter

from fedmerit_data.figure_style import STYLE
from fedmerit_evaluation.figures import drawing
from fedmerit_evaluation.figures.drawing import EQUAL, name_lines, panels, rounds_axis, site_style, titled

SETTLED_CHANGE = 1e-6  # of the largest number: a line that changes by less is flat
BLACK = "#1b1e23"


def moving(table: pd.DataFrame) -> list[str]:
    """Return the methods whose numbers change over the rounds at any site; others would be flat lines.

    Args:
        table: ``(method, seed, round)`` x sites.
    """
    runs = table.groupby(level=["method", "seed"], observed=True)
    spans = (runs.max() - runs.min()).max(axis=1).groupby(level="method", observed=True).max()
    size = table.abs().max(axis=1).groupby(level="method", observed=True).max()
    return [str(method) for method in spans.index[spans > SETTLED_CHANGE * size]]


def over_rounds(table: pd.DataFrame, title: str, equal_share: float | None = None) -> Figure:
    """Draw a panel per method that moves, with a named line per site: the mean over seeds, in a band from low to high.

    Args:
        table: a quantity of rounds, ``(method, seed, round)`` x sites; if no method is `moving`, all have a panel.
        title: the title of the vertical axis.
        equal_share: if the numbers are shares, the share of each site if all were the same. They are then drawn in
            percent from 0, with a line there, on one axis for all panels.
    """
    sites, factor = [str(site) for site in table], 1 if equal_share is None else 100
    methods = moving(table) or [str(method) for method in table.index.unique("method")]
    with style.context(STYLE):
        figure, axes = panels(len(methods), sharey=equal_share is not None)
        for panel, method in zip(axes, methods, strict=True):
            seeds = (factor * table.loc[method]).groupby(level="round")
            middle, low, high = seeds.mean(), seeds.min(), seeds.max()
            if equal_share is not None:
                panel.axhline(100 * equal_share, **EQUAL)
            for site in (site for site in sites if middle[site].notna().any()):
                look = site_style(sites, site)
                panel.plot(middle.index, middle[site], marker="o" if len(middle) < 3 else "", **look)
                if (high[site] - low[site]).max() > 0:
                    panel.fill_between(middle.index, low[site], high[site], color=look["color"], alpha=0.12, lw=0)
            panel.set_title(drawing.broken(method))
            rounds_axis(panel)
        for panel, method in zip(axes, methods, strict=True):  # once all have drawn, their common limits are known
            if equal_share is not None:
                panel.set_ylim(bottom=0)
            middle = pd.DataFrame((factor * table.loc[method]).groupby(level="round").mean())
            name_lines(panel, line_ends(middle, sites))
        titled(figure, title)
        if equal_share is not None:
            drawing.legend(figure, [Line2D([], [], label="equal share", **EQUAL)])
    return figure


def line_ends(lines: pd.DataFrame, sites: Sequence[str]) -> dict[str, tuple[float, float, str]]:
    """Return, by site, the place where its line ends, and its colour."""
    known = {site: lines[site].dropna() for site in sites if site in lines and lines[site].notna().any()}
    return {
        site: (float(line.index[-1]), float(line.iloc[-1]), site_style(sites, site)["color"])
        for site, line in known.items()
    }


def convergence(validation: pd.DataFrame) -> Figure:
    """Draw validation Dice over rounds of the models as the sites receive them: raw thin, smoothed thick.

    Of one method, the mean over sites is black, with the named sites behind it; of several, each has a named line.

    Args:
        validation: Dice, ``(method, seed, round)`` x sites, fractions.
    """
    table = 100 * validation.groupby(level=["method", "round"], observed=True).mean()
    sites = [str(site) for site in table]
    methods = [str(method) for method in table.index.unique("method")]
    with style.context(STYLE):
        figure, (panel,) = panels(1)
        ends: dict[str, tuple[float, float, str]] = {}
        styles: list[dict[str, Any]] = [{"color": BLACK, "linestyle": "-"}]
        if len(methods) == 1:
            lines = pd.DataFrame({site: smooth(table.loc[methods[0]][site]) for site in sites if site in table})
            for site in lines:
                panel.plot(lines.index, lines[site], alpha=0.9, **site_style(sites, str(site)) | {"linewidth": 1.2})
            ends = line_ends(lines, sites)
        else:
            styles = [drawing.method_style(number) for number in range(len(methods))]
        for method, look in zip(methods, styles, strict=True):
            line = pd.DataFrame(table.loc[method]).mean(axis=1)
            smoothed = smooth(line)
            panel.plot(line.index, line, linewidth=0.8, alpha=0.55, color=look["color"], linestyle="-")
            panel.plot(line.index, smoothed, linewidth=2.6, marker="o" if len(line) < 3 else "", **look)
            name = method if len(methods) > 1 else "mean of sites"
            ends[name] = (float(line.index[-1]), float(smoothed.iloc[-1]), look["color"])
        panel.set_ylabel("Validation Dice [%]")
        panel.set_ylim(bottom=0)
        rounds_axis(panel)
        name_lines(panel, ends)
    return figure


def smooth(line: pd.Series) -> pd.Series:
    """Return a Savitzky-Golay filtered curve (order 2, window about a quarter of it); unchanged below five points.

    It reaches from the first to the last known point: a site may join late or leave.
    """
    filled = line.loc[line.first_valid_index() : line.last_valid_index()].interpolate()
    if len(filled) < 5 or filled.isna().any():
        return filled.reindex(line.index)
    window = min(max(5, len(filled) // 4 | 1), 21)
    smoothed = savgol_filter(filled.to_numpy(), window, polyorder=2)
    return pd.Series(np.clip(smoothed, filled.min(), filled.max()), index=filled.index).reindex(line.index)
