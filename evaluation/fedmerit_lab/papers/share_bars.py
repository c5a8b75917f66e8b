"""Shares of the sites under a change of sites, as a figure."""

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedmerit_evaluation.figures.drawing import INK, STYLE, site_style, titled


def before_and_after(shares: pd.DataFrame) -> Figure:
    """As Figure 5 of Jiang et al. 2023: a panel for each site left out, the others' values with and without it.

    Args:
        shares: ``without, site`` x ``with_all, without_it``, percent, of the sites that remain; each pair sums to 100.
    """
    left_out = list(shares.index.unique("without"))
    sites = sorted({*left_out, *shares.index.unique("site")})
    with style.context(STYLE):
        columns = min(3, len(left_out))
        rows = -(-len(left_out) // columns)
        figure = Figure(figsize=(1.9 + 3.2 * columns, 0.9 + 2.6 * rows), dpi=160, layout="constrained")
        axes = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
        for panel, without in zip(axes, left_out, strict=False):
            table = shares.loc[without]
            places = np.arange(len(table))
            for shift, column, alpha, line in ((-0.2, "with_all", 0.9, "-"), (0.2, "without_it", 0.45, "--")):
                colours = [site_style(sites, str(site))["color"] for site in table.index]
                panel.bar(places + shift, table[column], 0.36, color=colours, alpha=alpha)
                panel.plot(places + shift, table[column], color=INK, linewidth=1, linestyle=line)
            largest = (table["with_all"] - table["without_it"]).abs().max()
            panel.set_title(f"without {without}: \N{GREEK CAPITAL LETTER DELTA} up to {largest:.1f}")
            panel.set_xticks(places, [str(site) for site in table.index], rotation=30)
        for panel in axes[len(left_out) :]:
            panel.set_axis_off()
        titled(figure, "Share of the weights [%]")
        handles = [
            Line2D([], [], color=INK, linewidth=1, label="all sites, re-normalised"),
            Line2D([], [], color=INK, linewidth=1, linestyle="--", label="trained without it"),
        ]
        figure.legend(handles=handles, loc="outside lower left", ncols=2)
    return figure
