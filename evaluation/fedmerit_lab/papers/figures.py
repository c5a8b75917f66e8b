"""Figures of any quantity for papers' artefacts: lines over rounds, marks by site."""

from collections.abc import Mapping

import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure

from fedmerit_data.figure_style import STYLE
from fedmerit_evaluation.figures.curves import line_ends
from fedmerit_evaluation.figures.dots_and_bars import method_bars
from fedmerit_evaluation.figures.drawing import (
    label_rows,
    legend,
    method_style,
    name_lines,
    offset_dot,
    panels,
    rounds_axis,
    rows_figure,
    site_style,
    titled,
)


def lines_over_rounds(tables: Mapping[str, pd.DataFrame], title: str, bold: Mapping[str, str] | None = None) -> Figure:
    """Return a panel for each table, a line for each site.

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
        for panel, table in zip(axes, tables.values(), strict=True):
            name_lines(panel, line_ends(table.rename(columns=str), sites))
        titled(figure, title)
    return figure


def site_marks(table: pd.DataFrame, title: str) -> Figure:
    """Return any quantity per site and method: a row per site, a mark in the method's colour.

    Args:
        table: methods x sites.
        title: what the horizontal axis says.
    """
    methods, sites = [str(method) for method in table.index], [str(site) for site in table]
    with style.context(STYLE):
        figure, panel = rows_figure(len(sites), len(methods))
        for number, values in enumerate(table.to_numpy(float)):
            for place, value in enumerate(values):
                row, colour = offset_dot(place, number, len(methods)), method_style(number)["color"]
                panel.plot(value, row, marker="|", markersize=9, markeredgewidth=2.6, color=colour)
        label_rows(panel, sites)
        panel.set_xlabel(title)
        legend(figure, method_bars(methods))
    return figure
