"""Figures of any quantity for papers' artefacts: lines over rounds, marks by site."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure

from fedmerit_data.figure_style import STYLE
from fedmerit_evaluation.figures.curves import line_ends
from fedmerit_evaluation.figures.drawing import INK, name_lines, panels, rounds_axis, site_style, titled


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


SNAPSHOTS = 6  # rounds that Figure 4 of Jiang et al. 2023 shows


def heat_map(values: Mapping[str, pd.DataFrame], title: str) -> Figure:
    """Draw Figure 4: a panel for each shown round, a row for each run by its attacker, a column for each site.

    Args:
        values: by attacker, rounds x sites of its run (or the mean of several); negative ones are drawn as 0, as in
            the paper.
        title: of the values.
    """
    attackers, table = list(values), next(iter(values.values()))
    rounds = np.unique(np.linspace(0, len(table) - 1, SNAPSHOTS).round().astype(int))
    stack = np.stack([[values[site].iloc[row].clip(lower=0).to_numpy() for site in attackers] for row in rounds])
    highest = max(float(np.nanmax(stack)), 1e-9) if np.isfinite(stack).any() else 1.0
    size = 0.55 * len(table.columns)
    with style.context([STYLE, {"axes.grid": False, "font.size": 8}]):
        figure = Figure(
            figsize=(1.5 + (0.4 + size) * len(rounds), 1.6 + 0.4 * len(attackers)), dpi=160, layout="constrained"
        )
        panels = figure.subplots(1, len(rounds), sharey=True, squeeze=False)[0]
        for panel, row, cells in zip(panels, rounds, stack, strict=True):
            picture = panel.imshow(cells, vmin=0, vmax=highest, cmap="Blues", aspect="auto")
            for (y, x), value in np.ndenumerate(cells):
                colour = "white" if value > highest / 2 else INK
                panel.text(
                    x, y, "" if np.isnan(value) else f"{value:.2f}", ha="center", va="center", color=colour, size=7
                )
            panel.set_title(f"Round {table.index[row]}")
            panel.set_xticks(range(len(table.columns)), table.columns, rotation=90)
            panel.set_yticks(range(len(attackers)), attackers)
        panels[0].set_ylabel("Free rider")
        figure.colorbar(picture, ax=panels, shrink=0.8)
        figure.suptitle(title, x=0.01, ha="left")
    return figure
