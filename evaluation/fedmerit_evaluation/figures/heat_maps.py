"""Heat maps: methods by sites, ratings of sites by each other, numbers by two parameters."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedmerit_evaluation.figures.drawing import DARK_GREY, INK, NARROW, STYLE, panels, titled, turn_if_long
from fedmerit_evaluation.figures.tables import MINUS
from fedmerit_evaluation.results.views import Results

FAR = 15.0  # points of Dice: gains from here have the deepest colour
DEEP = 0.5  # of the deepest: from here on text is white
NAME = 24  # characters of a line of a method's name


def dice(percent: pd.DataFrame) -> Figure:
    """Test Dice of many methods: a row per method, the highest mean over sites on top.

    Args:
        percent: methods x sites; NaN: not known.
    """
    shown = _sort_by_mean(percent)
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    with style.context([STYLE, {"axes.grid": False}]):
        figure, (panel,) = _rows(shown, 1)
        _cells(panel, shown, "{:.1f}", (shown - low) / max(high - low, 1e-9), "Blues", 0)
        panel.set_title("Test Dice [%]")
    return figure


def gains(points: pd.DataFrame, transfer: pd.Series | None = None) -> Figure:
    """Gain of each site and transfer: a row per method, the highest mean over sites on top.

    Args:
        points: methods x sites, gain in Dice over local training; NaN: not known.
        transfer: of methods, megabytes that a site sends and receives in a round; as bars.
    """
    shown = _sort_by_mean(points)
    with style.context([STYLE, {"axes.grid": False}]):
        figure, (panel, *beside) = _rows(shown, 1 if transfer is None else 2)
        _cells(panel, shown, "{:+.1f}", shown / FAR, "PuOr", -1)
        panel.set_title("Gain over local training [points]")
        if transfer is not None:
            bars = beside[0].barh(range(len(shown)), transfer.reindex(shown.index), color=DARK_GREY, height=0.6)
            beside[0].bar_label(bars, fmt="%.1f", padding=2, fontsize=8, color=INK)
            beside[0].margins(x=0.3)
            beside[0].set_title("Transfer [MB]")
            beside[0].tick_params(axis="y", length=0)
    return figure


def _sort_by_mean(numbers: pd.DataFrame) -> pd.DataFrame:
    """With the mean over sites, by which rows are ordered."""
    shown = numbers.assign(**{"all sites": numbers.mean(axis=1)})
    return shown.sort_values("all sites", ascending=False, kind="stable")


def _rows(shown: pd.DataFrame, panels: int) -> tuple[Figure, list[Axes]]:
    """A figure with room for a row of cells each; a second panel is narrow."""
    size = (NARROW + 1.4 * (panels - 1), 0.8 + 0.3 * len(shown))
    figure = Figure(figsize=size, dpi=160, layout="constrained")
    return figure, list(figure.subplots(1, panels, sharey=True, squeeze=False, width_ratios=(3.2, 1)[:panels]).flat)


def _cells(panel: Axes, shown: pd.DataFrame, text: str, depth: pd.DataFrame, colours: str, least: float) -> None:
    """A number in each cell, on a colour by its ``depth``, ``least`` to 1."""
    depths = depth.to_numpy(float)
    panel.imshow(depths, vmin=least, vmax=1, cmap=colours, aspect="auto")
    _written(panel, shown.to_numpy(float), text, depths)
    panel.axvline(shown.shape[1] - 1.5, color="white", linewidth=3)
    panel.set_xticks(range(shown.shape[1]), [str(site) for site in shown])
    names = [textwrap.fill(str(method).replace(":", ": "), NAME) for method in shown.index]  # broken between settings
    panel.set_yticks(range(len(shown)), names, fontsize=8)
    panel.tick_params(length=0)


def _written(panel: Axes, cells: NDArray[np.float64], text: str, depths: NDArray[np.float64]) -> None:
    """The numbers of ``cells`` by the format ``text``, white where the colour is deep; nothing for NaN."""
    for (row, column), value in np.ndenumerate(cells):
        if not np.isnan(value):
            ink = "white" if abs(depths[row, column]) > DEEP else "#1b1e23"
            written = text.format(value).replace("-", MINUS)
            panel.text(column, row, written, ha="center", va="center", color=ink, fontsize=8)


def reputations(results: Results) -> Figure:
    """Ratings of sites by each other, 0 to 1, in the first, a middle and the last round (Figures 4, 5 and 8 of CYCle).

    One panel per method and round; a row per rater, mean over seeds. The lowest row is the mean over raters and all
    rounds.
    """
    table = results.rounds.pairs("peer_reputation")
    of_methods = {str(name): part.droplevel("method") for name, part in table.groupby(level="method", observed=True)}
    chosen = {name: _first_middle_last(part.index.unique("round")) for name, part in of_methods.items()}
    with style.context([STYLE, {"axes.grid": False}]):
        figure, axes = panels(sum(map(len, chosen.values())))
        places = iter(axes)
        for method, rounds in chosen.items():
            ratings = of_methods[method]
            overall = ratings.groupby(level="round").mean().mean(axis=0).to_dict()
            for number in rounds:
                shown = ratings[ratings.index.get_level_values("round") == number].droplevel("round")
                shown = shown.dropna(axis=1, how="all")
                cells = np.vstack([shown.to_numpy(), [overall[site] for site in shown]])
                panel = next(places)
                panel.imshow(cells, vmin=0, vmax=1, cmap="Blues", aspect="auto")
                _written(panel, cells, "{:.2f}", cells)
                panel.axhline(len(shown) - 0.5, color="white", linewidth=3)
                panel.set_title(f"{method}, round {number}" if len(chosen) > 1 else f"Round {number}")
                panel.set_xticks(range(shown.shape[1]), shown.columns)
                panel.set_yticks(range(len(cells)), [*shown.index, "all rounds"])
                panel.tick_params(length=0)
                turn_if_long(panel, [str(site) * 2 for site in shown.columns])
        titled(figure, "Reputation with", "Site")
    return figure


def _first_middle_last(rounds: pd.Index) -> list[int]:
    """Of the rounds of a run, three; fewer where there are no more."""
    return sorted({int(rounds[place]) for place in (0, len(rounds) // 2, -1)})
