"""Figures of numbers of sites and methods side by side: Dice, gains, contributions beside ground truth."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evaluation.display.drawing import (
    CASE,
    DARK_GREY,
    INK,
    SITES,
    STYLE,
    case_dot,
    in_two_lines,
    legend,
    names_axis,
    panels,
    site_bars,
    site_dots,
    site_style,
    titled,
    wide,
)
from evaluation.results.views import Results


def dice_bars(results: Results) -> Figure:
    """Test Dice per method and site, mean over seeds, with every case as a dot."""
    dice = 100 * results.dice.sites["dice"].groupby(level=["method", "site"]).mean()
    cases, sites = 100 * results.dice.cases, results.sites
    methods = list(dice.index.unique("method"))
    width = 0.84 / len(sites)
    single = len(methods) == 1
    with style.context(STYLE):
        figure, (panel,) = panels(1, width=wide(len(sites) * len(methods), 0.34))
        for column, site in enumerate(sites):
            colour = site_style(sites, site)["color"]
            for group, method in enumerate(methods):
                if (method, site) not in dice.index:
                    continue
                centre = group + (column - (len(sites) - 1) / 2) * width
                panel.bar(centre, dice[method, site], width * (0.7 if single else 0.9), color=colour, alpha=0.85)
                _dots(panel, centre, cases.xs((method, site), level=("method", "site")), 0.25 * width)
        if single:
            names_axis(panel, [(column - (len(sites) - 1) / 2) * width for column in range(len(sites))], sites)
        else:
            names_axis(panel, range(len(methods)), in_two_lines(methods))
        _dice_axis(panel)
        legend(figure, [*([] if single else site_bars(sites)), case_dot()], None if single else "Site")
    return figure


def own_dice(dice: pd.Series, cases: Mapping[str, pd.Series], others: pd.DataFrame, name: str) -> Figure:
    """One site's test Dice per method: the mean, every case as a dot, and the quantiles of the others as a box.

    Args:
        dice: of each method, fractions.
        cases: by method, Dice of each case, all seeds.
        others: methods x ``min, lower quartile, median, upper quartile, max``; without rows: not drawn.
        name: of the site.
    """
    methods, colour = [str(method) for method in dice.index], SITES[0]["color"]
    with style.context(STYLE):
        figure, (panel,) = panels(1, width=wide(len(methods), 0.8))
        stats = [
            {"whislo": row["min"], "q1": row["lower quartile"], "med": row["median"], "q3": row["upper quartile"],
             "whishi": row["max"]}
            for _, row in (100 * others).iterrows()
        ]  # fmt: skip
        if stats:
            grey: Any = {"color": DARK_GREY, "linewidth": 1}
            panel.bxp(stats, positions=[methods.index(str(method)) + 0.2 for method in others.index], widths=0.3,
                      showfliers=False, patch_artist=True, manage_ticks=False, medianprops=grey, whiskerprops=grey,
                      capprops=grey, boxprops={"facecolor": "#d6d9de", "edgecolor": DARK_GREY})  # fmt: skip
        for place, method in enumerate(methods):
            panel.bar(place - 0.2, 100 * dice[method], 0.3, color=colour, alpha=0.85)
            _dots(panel, place - 0.2, 100 * cases[method], 0.09)
        _methods_axis(panel, methods)
        _dice_axis(panel)
        handles = [Line2D([], [], linewidth=6, color=colour, label=name), case_dot()]
        if stats:
            handles.append(Line2D([], [], linewidth=6, color="#d6d9de", label="others: min, quartiles, max"))
        legend(figure, handles)
    return figure


def gain_ranges(gains: pd.DataFrame, sites: Sequence[str]) -> Figure:
    """Gain in test Dice over training alone per method and site, with its interval.

    Args:
        gains: ``(method, site)`` x ``mean, low, high``, fractions.
        sites: all sites, for their colours.
    """
    shown = 100 * gains[["mean", "low", "high"]].dropna(subset="mean")
    methods = list(shown.index.unique(0))
    with style.context(STYLE):
        figure, (panel,) = panels(1, width=wide(len(sites) * len(methods), 0.25))
        panel.axhline(0, color=INK, linewidth=1)
        for column, site in enumerate(sites):
            if site not in shown.index.unique(1):
                continue
            rows = shown.xs(site, level=1)
            places = [methods.index(method) + 0.8 * ((column + 0.5) / len(sites) - 0.5) for method in rows.index]
            ends = rows[["low", "high"]].sub(rows["mean"], axis=0).abs().fillna(0).to_numpy().T
            colour = site_style(sites, site)["color"]
            panel.errorbar(places, rows["mean"], yerr=ends, fmt="o", markersize=4.5, linewidth=1.4, color=colour,
                           capsize=2)  # fmt: skip
        _methods_axis(panel, methods)
        panel.set_ylabel("Gain in test Dice [points]")
        legend(figure, site_dots(sites), "Site")
    return figure


def agreement(values: pd.Series, said: Mapping[str, pd.Series], truth: str) -> Figure:
    """What each method says of contributions over what the sites are worth: a panel per method, a dot per site.

    Args:
        values: of each site, points of Dice.
        said: by method, of each site.
        truth: what the values are.
    """
    sites = list(values.index)
    with style.context(STYLE):
        figure, axes = panels(len(said))
        for panel, (method, line) in zip(axes, said.items(), strict=True):
            for site in sites:
                panel.scatter(values[site], line.get(site, np.nan), s=34, color=site_style(sites, site)["color"])
            panel.set_title(method)
            panel.margins(0.15)
        titled(figure, "Contribution, as the method says", f"{truth[0].upper()}{truth[1:]} value [points of Dice]")
        legend(figure, site_dots(sites), "Site")
    return figure


def _dots(panel: Axes, centre: float, cases: pd.Series, reach: float) -> None:
    """Every case as a dot, spread about the middle of its bar."""
    known = cases.dropna()
    spread = np.linspace(-reach, reach, len(known)) if len(known) > 1 else np.zeros(len(known))
    panel.scatter(centre + spread, known, zorder=3, **CASE)


def _dice_axis(panel: Axes) -> None:
    panel.set_ylabel("Test Dice [%]")
    panel.set_ylim(0, 100)


def _methods_axis(panel: Axes, methods: Sequence[str]) -> None:
    names_axis(panel, range(len(methods)), in_two_lines(methods))
    panel.set_xlim(-0.6, len(methods) - 0.4)
