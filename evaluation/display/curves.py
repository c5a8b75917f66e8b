"""Figures over the rounds. One colour per site, the same in every figure."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from scipy.signal import savgol_filter

from evaluation.display.drawing import (
    DARK_GREY,
    GREY,
    SITES,
    STYLE,
    legend,
    method_style,
    panels,
    rounds_axis,
    site_lines,
    site_style,
    titled,
)
from evaluation.results.views import Results

SHARE: Any = {"color": GREY, "linewidth": 1, "linestyle": (0, (2, 2))}
MEDIAN: Any = {"color": DARK_GREY, "linewidth": 1.2, "linestyle": (0, (3, 2))}


def over_rounds(results: Results, quantity: str, title: str, *, equal_share: bool = False) -> Figure:
    """One panel per method, one line per site; with several seeds their mean, and a band from lowest to highest.

    Args:
        results: of runs.
        quantity: of the rounds, such as ``weight``.
        title: what the vertical axis says.
        equal_share: whether to draw 1/n, and to let the panels share their vertical axis.
    """
    table, sites = results.rounds.of(quantity), results.sites
    methods = list(table.index.unique("method"))
    with style.context(STYLE):
        figure, axes = panels(len(methods), sharey=equal_share)
        for panel, method in zip(axes, methods, strict=True):
            seeds = table.loc[method].groupby(level="round")
            middle, low, high = seeds.mean(), seeds.min(), seeds.max()
            if equal_share:
                panel.axhline(1 / len(sites), **SHARE)
            drawn: list[str] = []  # a line that lies on one of them is dashed, to let both be seen
            for site in (site for site in sites if site in middle and middle[site].notna().any()):
                hides = any(np.allclose(middle[site], middle[other], equal_nan=True) for other in drawn)
                look = site_style(sites, site) | ({"linestyle": (0, (4, 4))} if hides else {})
                panel.plot(middle.index, middle[site], marker="o" if len(middle) < 3 else "", **look)
                drawn.append(site)
                if (high[site] - low[site]).max() > 0:
                    panel.fill_between(middle.index, low[site], high[site], color=look["color"], alpha=0.15, lw=0)
            panel.set_title(str(method))
            rounds_axis(panel)
        titled(figure, title)
        handles = site_lines(sites)
        if equal_share:
            handles.append(Line2D([], [], label="equal share", **SHARE))
        legend(figure, handles, "Site")
    return figure


def lines_over_rounds(tables: Mapping[str, pd.DataFrame], title: str, bold: Mapping[str, str] | None = None) -> Figure:
    """A panel for each table, a line for each site.

    Args:
        tables: by the titles of their panels, rounds x sites; sites may differ from panel to panel.
        title: what the vertical axis says.
        bold: by panel, the site whose line is the thickest there.
    """
    sites = sorted({str(site) for table in tables.values() for site in table})
    with style.context(STYLE):
        figure, axes = panels(len(tables), sharey=True)
        for panel, (name, table) in zip(axes, tables.items(), strict=True):
            for site in map(str, table):
                thick = {"linewidth": 3 if site == bold[name] else 1} if bold else {}
                look = site_style(sites, site) | thick
                panel.plot(table.index, table[site], marker="o" if len(table) < 3 else "", **look)
            panel.set_title(name)
            rounds_axis(panel)
        titled(figure, title)
        legend(figure, site_lines(sites), "Site")
    return figure


def convergence(results: Results) -> Figure:
    """Validation Dice over rounds of the models as the sites receive them: raw thin, smoothed thick.

    One method: the mean over sites in black, and the sites behind it. Several: one colour per method.
    """
    table = 100 * results.rounds.validation.groupby(level=["method", "round"]).mean()
    sites = results.sites
    methods = list(table.index.unique("method"))
    with style.context(STYLE):
        figure, (panel,) = panels(1, width=8.2)
        if len(methods) == 1:
            for site in (site for site in sites if site in table):
                line = table.loc[methods[0]][site]
                panel.plot(line.index, smooth(line), alpha=0.9, **site_style(sites, site) | {"linewidth": 1.2})
            styles: list[dict[str, Any]] = [{"color": "#1b1e23", "linestyle": "-"}]
            handles = [Line2D([], [], color="#1b1e23", linewidth=2.6, label="mean of sites"), *site_lines(sites)]
        else:
            styles = [method_style(number) for number in range(len(methods))]
            handles = [
                Line2D([], [], linewidth=2.4, label=str(name), **look)
                for name, look in zip(methods, styles, strict=True)
            ]
        for method, look in zip(methods, styles, strict=True):
            line = table.loc[method].mean(axis=1)
            panel.plot(line.index, line, linewidth=0.8, alpha=0.55, color=look["color"], linestyle="-")
            panel.plot(line.index, smooth(line), linewidth=2.6, marker="o" if len(line) < 3 else "", **look)
        panel.set_ylabel("Validation Dice [%]")
        panel.set_ylim(bottom=0)
        rounds_axis(panel)
        legend(figure, handles, "Site" if len(methods) == 1 else "Method, mean of sites")
    return figure


def own_over_rounds(own: pd.DataFrame, others: Mapping[str, pd.DataFrame], name: str, title: str) -> Figure:
    """One site's line per method, before bands from lowest to highest and between the quartiles of the others.

    Args:
        own: rounds x methods.
        others: by method, rounds x ``min, lower quartile, median, upper quartile, max``, where they may be drawn.
        name: of the site.
        title: what the vertical axis says.
    """
    colour = SITES[0]["color"]
    with style.context(STYLE):
        figure, axes = panels(own.shape[1])
        for panel, method in zip(axes, map(str, own), strict=True):
            if method in others:
                band = others[method]
                edges = [(("min", "max"), 0.18), (("lower quartile", "upper quartile"), 0.3)]
                for (low, high), alpha in edges:
                    panel.fill_between(band.index, band[low], band[high], color="#6b7280", alpha=alpha, lw=0)
                panel.plot(band.index, band["median"], **MEDIAN)
            panel.plot(own.index, own[method], color=colour, linestyle="-", marker="o" if len(own) < 3 else "")
            panel.set_title(method)
            rounds_axis(panel)
        titled(figure, title)
        handles: list[Any] = [Line2D([], [], color=colour, label=name)]
        if others:
            handles += [
                Line2D([], [], label="others: median", **MEDIAN),
                Patch(color="#6b7280", alpha=0.42, lw=0, label="others: quartiles"),
                Patch(color="#6b7280", alpha=0.18, lw=0, label="others: min to max"),
            ]
        legend(figure, handles)
    return figure


def smooth(line: pd.Series) -> pd.Series:
    """A Savitzky-Golay filtered curve (order 2, window about a quarter of it); as it is below five points."""
    filled = line.interpolate(limit_direction="both")
    if len(filled) < 5 or filled.isna().any():
        return filled
    window = min(max(5, len(filled) // 4 | 1), 21)
    smoothed = savgol_filter(filled.to_numpy(), window, polyorder=2)
    return pd.Series(np.clip(smoothed, filled.min(), filled.max()), index=line.index)
