"""Figures of results, from the long results table. One colour per site, the same in every figure."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from scipy.signal import savgol_filter

from evaluation.tables import case_dice, pairs, per_round, site_dice, validation

# Okabe and Ito's palette for sites, Tol's "muted" for methods: both readable with colour-blindness.
SITE_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C7A00")
METHOD_COLOURS = ("#332288", "#CC6677", "#117733", "#88CCEE", "#AA4499", "#999933", "#882255", "#44AA99", "#6E6E6E")
CASE: Any = {"s": 11, "color": "white", "edgecolor": "#30343b", "linewidth": 0.6}
LINES = ("-", "--", ":", "-.")
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#8a8f98",
    "axes.labelcolor": "#30343b",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.8,
    "xtick.color": "#30343b",
    "ytick.color": "#30343b",
    "legend.frameon": False,
    "legend.title_fontsize": 9.5,
    "lines.linewidth": 1.8,
    "figure.facecolor": "white",
    "svg.hashsalt": "fedmerit",
}


def over_rounds(results: pd.DataFrame, quantity: str, title: str, *, equal_share: bool = False) -> Figure:
    """One panel per method, one line per site; with several seeds their mean, and a band from lowest to highest.

    Args:
        results: the long table.
        quantity: of the rounds, such as ``weight``.
        title: what the vertical axis says.
        equal_share: whether to draw 1/n, and to let the panels share their vertical axis.
    """
    table = per_round(results, quantity)
    sites = _sites(results)
    methods = list(table.index.unique("method"))
    with matplotlib.rc_context(STYLE):
        figure, panels = _panels(len(methods), sharey=equal_share)
        for panel, method in zip(panels, methods, strict=True):
            seeds = table.loc[method].groupby(level="round")
            middle, low, high = seeds.mean(), seeds.min(), seeds.max()
            if equal_share:
                panel.axhline(1 / len(sites), color="#8a8f98", linewidth=1, linestyle=(0, (2, 2)))
            drawn: list[str] = []  # a line that lies on one of them is dashed, to let both be seen
            for site in (site for site in sites if site in middle and middle[site].notna().any()):
                hides = any(np.allclose(middle[site], middle[other], equal_nan=True) for other in drawn)
                look = site_style(sites, site) | ({"linestyle": (0, (4, 4))} if hides else {})
                panel.plot(middle.index, middle[site], marker="o" if len(middle) < 3 else "", **look)
                drawn.append(site)
                if (high[site] - low[site]).max() > 0:
                    panel.fill_between(
                        middle.index, low[site], high[site], color=site_style(sites, site)["color"], alpha=0.15, lw=0
                    )
            panel.set_title(str(method))
            _rounds_axis(panel)
        figure.supylabel(title, fontsize=9.5, color="#30343b")
        handles = _site_handles(sites)
        if equal_share:
            handles.append(Line2D([], [], color="#8a8f98", linewidth=1, linestyle=(0, (2, 2)), label="equal share"))
        figure.legend(handles=handles, title="Site", loc="outside right upper", alignment="left")
    return figure


def lines_over_rounds(panels: Mapping[str, pd.DataFrame], title: str, bold: Mapping[str, str] | None = None) -> Figure:
    """A panel for each table, a line for each site.

    Args:
        panels: by their titles, rounds x sites; sites may differ from panel to panel.
        title: what the vertical axis says.
        bold: by panel, the site whose line is the thickest there.
    """
    sites = sorted({str(site) for table in panels.values() for site in table})
    with matplotlib.rc_context(STYLE):
        figure, axes = _panels(len(panels), sharey=True)
        for panel, (name, table) in zip(axes, panels.items(), strict=True):
            for site in map(str, table):
                thick = {"linewidth": 3 if site == bold[name] else 1} if bold else {}
                look = site_style(sites, site) | thick
                panel.plot(table.index, table[site], marker="o" if len(table) < 3 else "", **look)
            panel.set_title(name)
            _rounds_axis(panel)
        figure.supylabel(title, fontsize=9.5, color="#30343b")
        figure.legend(handles=_site_handles(sites), title="Site", loc="outside right upper", alignment="left")
    return figure


def reputations(results: pd.DataFrame) -> Figure:
    """What sites hold of each other, 0 to 1, in the first, a middle and the last round: as Figures 4, 5 and 8 of CYCle.

    One panel per method and round; a row per site that holds, mean over seeds. The lowest row is the mean over
    holders and over all rounds.
    """
    table = pairs(results, "peer_reputation")
    of_methods = {str(name): part.droplevel("method") for name, part in table.groupby(level="method", observed=True)}
    chosen = {name: _first_middle_last(part.index.unique("round")) for name, part in of_methods.items()}
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure, panels = _panels(sum(map(len, chosen.values())))
        places = iter(panels)
        for method, rounds in chosen.items():
            held = of_methods[method]
            overall = held.groupby(level="round").mean().mean(axis=0).to_dict()
            for number in rounds:
                shown = held[held.index.get_level_values("round") == number].droplevel("round")
                shown = shown.dropna(axis=1, how="all")
                cells = np.vstack([shown.to_numpy(), [overall[site] for site in shown]])
                panel = next(places)
                panel.imshow(cells, vmin=0, vmax=1, cmap="Blues", aspect="auto")
                for (row, column), value in np.ndenumerate(cells):
                    if not np.isnan(value):
                        ink = "white" if value > 0.6 else "#1b1e23"
                        panel.text(column, row, f"{value:.2f}", ha="center", va="center", color=ink, fontsize=8)
                panel.axhline(len(shown) - 0.5, color="white", linewidth=3)
                panel.set_title(f"{method}, round {number}" if len(chosen) > 1 else f"Round {number}")
                panel.set_xticks(range(shown.shape[1]), shown.columns)
                panel.set_yticks(range(len(cells)), [*shown.index, "all rounds"])
                panel.tick_params(length=0)
                _turn_if_long(panel, [str(site) * 2 for site in shown.columns])
        figure.supxlabel("Site", fontsize=9.5, color="#30343b")
        figure.supylabel("Reputation with", fontsize=9.5, color="#30343b")
    return figure


def convergence(results: pd.DataFrame) -> Figure:
    """Validation Dice over rounds of the models as the sites receive them: raw thin, smoothed thick.

    One method: the mean over sites in black, and the sites behind it. Several: one colour per method.
    """
    table = 100 * validation(results).groupby(level=["method", "round"]).mean()
    sites = _sites(results)
    methods = list(table.index.unique("method"))
    with matplotlib.rc_context(STYLE):
        figure, (panel,) = _panels(1, width=8.2)
        if len(methods) == 1:
            for site in (site for site in sites if site in table):
                line = table.loc[methods[0]][site]
                panel.plot(line.index, smooth(line), alpha=0.9, **site_style(sites, site) | {"linewidth": 1.2})
            styles: list[dict[str, Any]] = [{"color": "#1b1e23", "linestyle": "-"}]
            handles = [Line2D([], [], color="#1b1e23", linewidth=2.6, label="mean of sites"), *_site_handles(sites)]
        else:
            styles = [_style(METHOD_COLOURS, number) for number in range(len(methods))]
            handles = [
                Line2D([], [], linewidth=2.4, label=str(name), **look)
                for name, look in zip(methods, styles, strict=True)
            ]
        for method, look in zip(methods, styles, strict=True):
            line = table.loc[method].mean(axis=1)
            panel.plot(line.index, line, linewidth=0.8, alpha=0.55, color=look["color"])
            panel.plot(line.index, smooth(line), linewidth=2.6, marker="o" if len(line) < 3 else "", **look)
        panel.set_ylabel("Validation Dice [%]")
        panel.set_ylim(bottom=0)
        _rounds_axis(panel)
        title = "Site" if len(methods) == 1 else "Method, mean of sites"
        figure.legend(handles=handles, title=title, loc="outside right upper", alignment="left")
    return figure


def dice_bars(results: pd.DataFrame) -> Figure:
    """Test Dice per method and site, mean over seeds, with every case as a dot."""
    dice = 100 * site_dice(results)["dice"].groupby(level=["method", "site"]).mean()
    cases = 100 * case_dice(results).mean(axis=1)
    sites = _sites(results)
    methods = list(dice.index.unique("method"))
    width = 0.84 / len(sites)
    single = len(methods) == 1
    with matplotlib.rc_context(STYLE):
        figure, (panel,) = _panels(1, width=min(14.0, max(6.4, 2.2 + 0.34 * len(sites) * len(methods))))
        for column, site in enumerate(sites):
            colour = site_style(sites, site)["color"]
            for group, method in enumerate(methods):
                if (method, site) not in dice.index:
                    continue
                centre = group + (column - (len(sites) - 1) / 2) * width
                panel.bar(centre, dice[method, site], width * (0.7 if single else 0.9), color=colour, alpha=0.85)
                points = cases.xs((method, site), level=("method", "site")).dropna()
                spread = np.linspace(-0.25, 0.25, len(points)) * width if len(points) > 1 else np.zeros(len(points))
                panel.scatter(centre + spread, points, zorder=3, **CASE)
        if single:
            centres = [(column - (len(sites) - 1) / 2) * width for column in range(len(sites))]
            panel.set_xticks(centres, sites)
            handles = []
        else:
            panel.set_xticks(range(len(methods)), [str(method).replace(" (", "\n(") for method in methods])
            handles = [
                Line2D([], [], linewidth=6, color=site_style(sites, site)["color"], label=site) for site in sites
            ]
        names = sites if single else [str(method).replace(" (", "\n(") for method in methods]
        _turn_if_long(panel, names)
        panel.tick_params(axis="x", length=0)
        panel.set_ylabel("Test Dice [%]")
        panel.set_ylim(0, 100)
        handles.append(_case_handle())
        title = None if single else "Site"
        figure.legend(handles=handles, title=title, loc="outside right upper", alignment="left")
    return figure


def gain_ranges(gains: pd.DataFrame, sites: Sequence[str]) -> Figure:
    """Gain in test Dice over training alone per method and site, with its interval.

    Args:
        gains: ``(method, site)`` x ``mean, low, high``, fractions.
        sites: all sites, for their colours.
    """
    shown = 100 * gains[["mean", "low", "high"]].dropna(subset="mean")
    methods = list(shown.index.unique(0))
    with matplotlib.rc_context(STYLE):
        figure, (panel,) = _panels(1, width=min(14.0, max(6.4, 2.2 + 0.25 * len(sites) * len(methods))))
        panel.axhline(0, color="#30343b", linewidth=1)
        for column, site in enumerate(sites):
            if site not in shown.index.unique(1):
                continue
            rows = shown.xs(site, level=1)
            places = [methods.index(method) + 0.8 * ((column + 0.5) / len(sites) - 0.5) for method in rows.index]
            ends = rows[["low", "high"]].sub(rows["mean"], axis=0).abs().fillna(0).to_numpy().T
            colour = site_style(sites, site)["color"]
            panel.errorbar(places, rows["mean"], yerr=ends, fmt="o", markersize=4.5, linewidth=1.4, color=colour,
                           capsize=2)  # fmt: skip
        _method_axis(panel, methods)
        panel.set_ylabel("Gain in test Dice [points]")
        handles = [Line2D([], [], linestyle="", marker="o", color=site_style(sites, site)["color"], label=site)
                   for site in sites]  # fmt: skip
        figure.legend(handles=handles, title="Site", loc="outside right upper", alignment="left")
    return figure


def agreement(values: pd.Series, said: Mapping[str, pd.Series], truth: str) -> Figure:
    """What each method says of contributions over what the sites are worth: a panel per method, a dot per site.

    Args:
        values: of each site, points of Dice.
        said: by method, of each site.
        truth: what the values are.
    """
    sites = list(values.index)
    with matplotlib.rc_context(STYLE):
        figure, panels = _panels(len(said))
        for panel, (method, line) in zip(panels, said.items(), strict=True):
            for site in sites:
                panel.scatter(values[site], line.get(site, np.nan), s=34, color=site_style(sites, site)["color"])
            panel.set_title(method)
            panel.margins(0.15)
        figure.supxlabel(f"{truth[0].upper()}{truth[1:]} value [points of Dice]", fontsize=9.5, color="#30343b")
        figure.supylabel("Contribution, as the method says", fontsize=9.5, color="#30343b")
        handles = [Line2D([], [], linestyle="", marker="o", color=site_style(sites, site)["color"], label=site)
                   for site in sites]  # fmt: skip
        figure.legend(handles=handles, title="Site", loc="outside right upper", alignment="left")
    return figure


def own_over_rounds(own: pd.DataFrame, others: Mapping[str, pd.DataFrame], name: str, title: str) -> Figure:
    """One site's line per method, before bands from lowest to highest and between the quartiles of the others.

    Args:
        own: rounds x methods.
        others: by method, rounds x ``min, lower quartile, median, upper quartile, max``, where they may be drawn.
        name: of the site.
        title: what the vertical axis says.
    """
    colour = SITE_COLOURS[0]
    with matplotlib.rc_context(STYLE):
        figure, panels = _panels(own.shape[1])
        for panel, method in zip(panels, map(str, own), strict=True):
            if method in others:
                band = others[method]
                edges = [(("min", "max"), 0.18), (("lower quartile", "upper quartile"), 0.3)]
                for (low, high), alpha in edges:
                    panel.fill_between(band.index, band[low], band[high], color="#6b7280", alpha=alpha, lw=0)
                panel.plot(band.index, band["median"], color="#4b5563", linewidth=1.2, linestyle=(0, (3, 2)))
            panel.plot(own.index, own[method], color=colour, marker="o" if len(own) < 3 else "")
            panel.set_title(method)
            _rounds_axis(panel)
        figure.supylabel(title, fontsize=9.5, color="#30343b")
        figure.legend(handles=_own_handles(name, others=bool(others)), loc="outside right upper", alignment="left")
    return figure


def own_dice(dice: pd.Series, cases: Mapping[str, pd.Series], others: pd.DataFrame, name: str) -> Figure:
    """One site's test Dice per method: the mean, every case as a dot, and the quantiles of the others as a box.

    Args:
        dice: of each method, fractions.
        cases: by method, Dice of each case, all seeds.
        others: methods x ``min, lower quartile, median, upper quartile, max``; without rows: not drawn.
        name: of the site.
    """
    methods = [str(method) for method in dice.index]
    with matplotlib.rc_context(STYLE):
        figure, (panel,) = _panels(1, width=min(14.0, max(6.4, 2.2 + 0.8 * len(methods))))
        stats = [
            {"whislo": row["min"], "q1": row["lower quartile"], "med": row["median"], "q3": row["upper quartile"],
             "whishi": row["max"]}
            for _, row in (100 * others).iterrows()
        ]  # fmt: skip
        if stats:
            grey: Any = {"color": "#4b5563", "linewidth": 1}
            panel.bxp(stats, positions=[methods.index(str(method)) + 0.2 for method in others.index], widths=0.3,
                      showfliers=False, patch_artist=True, manage_ticks=False, medianprops=grey, whiskerprops=grey,
                      capprops=grey, boxprops={"facecolor": "#d6d9de", "edgecolor": "#4b5563"})  # fmt: skip
        for place, method in enumerate(methods):
            panel.bar(place - 0.2, 100 * dice[method], 0.3, color=SITE_COLOURS[0], alpha=0.85)
            points = 100 * cases[method].dropna()
            spread = np.linspace(-0.09, 0.09, len(points)) if len(points) > 1 else np.zeros(len(points))
            panel.scatter(place - 0.2 + spread, points, zorder=3, **CASE)
        _method_axis(panel, methods)
        panel.set_ylabel("Test Dice [%]")
        panel.set_ylim(0, 100)
        handles = [Line2D([], [], linewidth=6, color=SITE_COLOURS[0], label=name), _case_handle()]
        if stats:
            handles.append(Line2D([], [], linewidth=6, color="#d6d9de", label="others: min, quartiles, max"))
        figure.legend(handles=handles, loc="outside right upper", alignment="left")
    return figure


def smooth(line: pd.Series) -> pd.Series:
    """A Savitzky-Golay filtered curve (order 2, window about a quarter of it); as it is below five points."""
    filled = line.interpolate(limit_direction="both")
    if len(filled) < 5 or filled.isna().any():
        return filled
    window = min(max(5, len(filled) // 4 | 1), 21)
    smoothed = savgol_filter(filled.to_numpy(), window, polyorder=2)
    return pd.Series(np.clip(smoothed, filled.min(), filled.max()), index=line.index)


def site_style(sites: Sequence[str], site: str) -> dict[str, Any]:
    """Colour and line style of a site, among all sites."""
    return _style(SITE_COLOURS, sites.index(site))


def png(figure: Figure) -> bytes:
    """The figure as PNG, 160 dots per inch."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as SVG, the same bytes each time."""
    file = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _first_middle_last(rounds: pd.Index) -> list[int]:
    """Of the rounds of a run, three; fewer where there are no more."""
    return sorted({int(rounds[place]) for place in (0, len(rounds) // 2, -1)})


def _sites(results: pd.DataFrame) -> list[str]:
    return sorted(site for site in results["site"].unique() if site)


def _style(colours: Sequence[str], number: int) -> dict[str, Any]:
    return {"color": colours[number % len(colours)], "linestyle": LINES[number // len(colours) % len(LINES)]}


def _own_handles(name: str, *, others: bool) -> list[Any]:
    own = Line2D([], [], color=SITE_COLOURS[0], label=name)
    if not others:
        return [own]
    return [
        own,
        Line2D([], [], color="#4b5563", linewidth=1.2, linestyle=(0, (3, 2)), label="others: median"),
        Patch(color="#6b7280", alpha=0.42, lw=0, label="others: quartiles"),
        Patch(color="#6b7280", alpha=0.18, lw=0, label="others: min to max"),
    ]


def _case_handle() -> Line2D:
    return Line2D([], [], linestyle="", marker="o", markersize=4, color="white", markeredgecolor="#30343b",
                  label="one case")  # fmt: skip


def _method_axis(panel: Axes, methods: Sequence[str]) -> None:
    names = [str(method).replace(" (", "\n(") for method in methods]
    panel.set_xticks(range(len(methods)), names)
    _turn_if_long(panel, names)
    panel.tick_params(axis="x", length=0)
    panel.set_xlim(-0.6, len(methods) - 0.4)


def _turn_if_long(panel: Axes, names: Sequence[str]) -> None:
    if len(names) * max(map(len, names)) > 90:
        panel.tick_params(axis="x", labelrotation=20)


def _site_handles(sites: Sequence[str]) -> list[Line2D]:
    return [Line2D([], [], label=site, **site_style(sites, site)) for site in sites]


def _panels(number: int, *, sharey: bool = False, width: float | None = None) -> tuple[Figure, list[Axes]]:
    """A figure of ``number`` panels, two or three in a row."""
    columns = 2 if number == 4 else min(number, 3)
    rows = -(-number // columns)
    size = (width or (6.8 if columns == 1 else 1.9 + 3.3 * columns), 0.7 + 2.7 * rows)
    figure = Figure(figsize=size, dpi=160, layout="constrained")
    axes = figure.subplots(rows, columns, sharey=sharey, squeeze=False)
    panels: list[Axes] = list(axes.flat)
    for panel in panels[number:]:
        panel.set_axis_off()
    return figure, panels[:number]


def _rounds_axis(panel: Axes) -> None:
    panel.set_xlabel("Round")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    panel.margins(x=0.02)
