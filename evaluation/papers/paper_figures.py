"""Figures of papers that no report needs: values under a change of sites; and the numbers behind lines."""

from collections.abc import Mapping

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evaluation.figures import STYLE, site_style


def numbers_of(panels: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """What `evaluation.figures.lines_over_rounds` shows as one table: ``panel, round`` and a column for each site."""
    return pd.concat(
        {name: table.rename_axis("round") for name, table in panels.items()}, names=["panel"]
    ).reset_index()


def before_and_after(shares: pd.DataFrame) -> Figure:
    """As Figure 5 of Jiang et al. 2023: a panel for each site left out, the others' values with and without it.

    Args:
        shares: ``without, site`` x ``with_all, without_it``, percent, of the sites that remain; each pair sums to 100.
    """
    left_out = list(shares.index.unique("without"))
    sites = sorted({*left_out, *shares.index.unique("site")})
    with matplotlib.rc_context(STYLE):
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
                panel.plot(places + shift, table[column], color="#30343b", linewidth=1, linestyle=line)
            largest = (table["with_all"] - table["without_it"]).abs().max()
            panel.set_title(f"without {without}: \N{GREEK CAPITAL LETTER DELTA} up to {largest:.1f}")
            panel.set_xticks(places, [str(site) for site in table.index], rotation=30)
        for panel in axes[len(left_out) :]:
            panel.set_axis_off()
        figure.supylabel("Share of the weights [%]", fontsize=9.5, color="#30343b")
        handles = [
            Line2D([], [], color="#30343b", linewidth=1, label="all sites, re-normalised"),
            Line2D([], [], color="#30343b", linewidth=1, linestyle="--", label="trained without it"),
        ]
        figure.legend(handles=handles, loc="outside lower left", ncols=2)
    return figure
