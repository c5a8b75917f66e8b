"""Figures of numbers of sites and methods side by side: Dice, gains, shares, values, estimates over ground truth."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedmerit_data.figure_style import STYLE
from fedmerit_evaluation.figures import drawing
from fedmerit_evaluation.figures.drawing import DARK_GREY, EQUAL, INK, SITES, label_rows, legend, rows_figure
from fedmerit_evaluation.statistics.ranks import Ranking


def dice_bars(cases: "pd.Series[float]", sites: Sequence[str]) -> Figure:
    """Draw test Dice, mean over seeds, with every case as a dot: a row per site, a colour per method.

    Args:
        cases: Dice of each case, ``(method, seed, site, case)``, fractions.
        sites: the sites, a row for each.
    """
    cases, methods = 100 * cases, [str(method) for method in cases.index.unique("method")]
    means = cases.groupby(level=["method", "seed", "site"], observed=True).mean()
    dice = means.groupby(level=["method", "site"], observed=True).mean()
    with style.context(STYLE):
        figure, panel = rows_figure(len(sites), len(methods))
        for number, method in enumerate(methods):
            colour = drawing.method_style(number)["color"]
            for place, site in enumerate(sites):
                if (method, site) not in dice.index:
                    continue
                row = drawing.offset_dot(place, number, len(methods))
                dots = cases.xs((method, site), level=("method", "site")).dropna()
                panel.scatter(dots, np.full(len(dots), row), s=9, color=colour, alpha=0.35, linewidth=0, zorder=2)
                panel.plot(
                    dice[method, site], row, marker="|", markersize=9, markeredgewidth=2.6, color=colour, zorder=3
                )
        label_rows(panel, sites)
        panel.set_xlabel("Test Dice [%]")
        lowest = float(np.nanmin(cases.to_numpy()))  # dots and marks, unlike bars, need no zero
        panel.set_xlim(10 * np.floor(max(lowest - 1, 0) / 10), 100)
        legend(figure, [*(method_bars(methods) if len(methods) > 1 else ()), drawing.mean_mark(), drawing.case_dot()])
    return figure


def gain_ranges(gains: pd.DataFrame, sites: Sequence[str]) -> Figure:
    """Draw gains in test Dice over local training with their CIs: a row per site, a colour per method.

    Args:
        gains: ``(method, site)`` x ``mean, low, high``, fractions.
        sites: all sites, a row for each.
    """
    shown = 100 * gains[["mean", "low", "high"]].dropna(subset="mean")
    methods = [str(method) for method in shown.index.unique(0)]
    with style.context(STYLE):
        figure, panel = rows_figure(len(sites), len(methods))
        panel.axvline(0, color=INK, linewidth=1)
        for number, method in enumerate(methods):
            rows = pd.DataFrame(shown.xs(method, level=0))
            places = [drawing.offset_dot(sites.index(str(site)), number, len(methods)) for site in rows.index]
            _ranges(panel, rows, places, drawing.method_style(number)["color"])
        label_rows(panel, sites)
        panel.set_xlabel(
            "Worse federated  \N{LEFTWARDS ARROW}  gain in test Dice [points]  \N{RIGHTWARDS ARROW}  better"
        )
        if len(methods) > 1:
            legend(figure, method_bars(methods))
    return figure


def share_ranges(shares: pd.DataFrame, equal: float, title: str = "Share of contribution [%]") -> Figure:
    """Draw the share of each site with its CI over seeds: a row per site, the largest on top.

    Args:
        shares: sites x ``mean, low, high``, fractions.
        equal: the share of each site if all were the same.
        title: the title of the horizontal axis.
    """
    shown = 100 * shares.sort_values("mean", ascending=False, kind="stable")
    with style.context(STYLE):
        figure, panel = rows_figure(len(shown))
        panel.axvline(100 * equal, **EQUAL)
        panel.axvline(0, color=INK, linewidth=1)
        _ranges(panel, shown, list(range(len(shown))), SITES[0]["color"])
        label_rows(panel, [str(site) for site in shown.index])
        panel.set_xlim(left=min(0.0, float(np.nanmin(shown[["mean", "low"]].to_numpy()))))
        panel.set_xlabel(title)
        legend(figure, [Line2D([], [], label=f"equal share, {100 * equal:.1f} %", **EQUAL)])
    return figure


def agreement(values: pd.Series, estimates: Mapping[str, pd.Series], reference: str) -> Figure:
    """Draw estimated contributions over values: a panel per method, a named dot per site.

    Args:
        values: values by site, in points of Dice.
        estimates: by method, the estimates by site.
        reference: the name of the values.
    """
    sites = list(values.index)
    with style.context(STYLE):
        figure, axes = drawing.panels(len(estimates))
        for panel, (method, line) in zip(axes, estimates.items(), strict=True):
            known = [site for site in sites if not np.isnan(line.get(site, np.nan))]
            panel.scatter(values[known], line[known], s=26, color=SITES[0]["color"])
            panel.set_title(drawing.broken(method))
            panel.margins(0.2)
            for site, (place, side) in _scatter_agreement(values[known], line[known]).items():
                at = values[site], line[site]
                panel.annotate(drawing.broken(site), at, place, textcoords="offset points", ha=side, fontsize=7.5)
        drawing.titled(
            figure, "Estimated contribution", f"{reference[0].upper()}{reference[1:]} value [points of Dice]"
        )
    return figure


RIGHT, LEFT, BELOW = ((4, 3), "left"), ((-4, 3), "right"), ((0, -11), "center")  # of a dot: points away, alignment


def _scatter_agreement(x: pd.Series, y: pd.Series) -> dict[str, tuple[tuple[int, int], str]]:
    """Return, by site, the place of its name: right of its dot, unless another dot is near there."""
    wide, high = (max(float(np.ptp(axis)), 1e-12) for axis in (x, y))
    sites = [str(site) for site in x.sort_values(kind="stable").index]
    sides: dict[str, set[tuple[tuple[int, int], str]]] = {site: set() for site in sites}  # on which another dot is near
    for left, right in combinations(sites, 2):
        if x[right] - x[left] < 0.22 * wide and abs(y[right] - y[left]) < 0.08 * high:
            sides[left].add(RIGHT)
            sides[right].add(LEFT)
    return {site: BELOW if len(near) == 2 else LEFT if RIGHT in near else RIGHT for site, near in sides.items()}


def _ranges(panel: Axes, rows: pd.DataFrame, places: Sequence[float], colour: str) -> None:
    """Draw dots with their CIs, if they have any."""
    ends = rows[["low", "high"]].sub(rows["mean"], axis=0).abs().fillna(0).to_numpy().T
    panel.errorbar(rows["mean"], places, xerr=ends, fmt="o", markersize=4.5, linewidth=1.4, color=colour, capsize=2)


def method_bars(methods: Sequence[str]) -> list[Line2D]:
    """Return a bar for each method, for a legend."""
    return [
        Line2D([], [], linewidth=5, color=drawing.method_style(number)["color"], label=method)
        for number, method in enumerate(methods)
    ]


def value_ranges(rankings: Mapping[str, Ranking], units: Mapping[str, str], *, has_verdicts: bool = True) -> Figure:
    """Draw a panel per estimator: every site's value as a dot on its CI, and its rank.

    A grey band joins sites that are not significantly different from the one above.

    Args:
        rankings: the ranked sites, by the name of the estimator.
        units: the units of values, by the name of the estimator.
        has_verdicts: whether ranks and bands are drawn.
    """
    with style.context(STYLE):
        figure, axes = drawing.panels(len(rankings))
        for panel, (name, one) in zip(axes, rankings.items(), strict=True):
            _draw(panel, one, has_verdicts)
            has_no_note = one.has_significant_pairs or not has_verdicts
            panel.set_title(drawing.broken(name) + "\nno significant difference" * (not has_no_note))
            panel.set_xlabel(units[name])
    return figure


def _draw(panel: Axes, one: Ranking, has_verdicts: bool) -> None:
    n = len(one.order)
    panel.axvline(0, color=DARK_GREY, linewidth=0.8)
    for row, site in enumerate(one.order):
        place, height = one.sites.index(site), n - 1 - row
        if has_verdicts and row and not one.order_signs[one.sites.index(one.order[row - 1]), place]:
            panel.axhspan(height - 0.15, height + 1.15, color="#d6d9de", zorder=0, linewidth=0)
        if one.measured:
            panel.hlines(height, one.low[place], one.high[place], color=INK, linewidth=1.6)
        panel.plot(one.value[place], height, "o", markersize=6, color=drawing.site_style(one.sites, site)["color"])
        if not has_verdicts:
            continue
        first, last = int(one.highest_rank[place]), int(one.lowest_rank[place])
        rank = f"rank {first}" if first == last else f"rank {first} to {last}"
        panel.annotate(rank, (1.0, height), xycoords=("axes fraction", "data"), xytext=(4, 0),
                       textcoords="offset points", va="center", fontsize="small", color=INK)  # fmt: skip
    panel.set_yticks(range(n), [drawing.broken(site) for site in reversed(one.order)])
    panel.set_ylim(-0.6, n - 0.4)
