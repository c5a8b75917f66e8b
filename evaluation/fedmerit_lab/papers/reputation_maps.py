"""Ratings of sites by each other as coloured cells."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedmerit_evaluation.figures.drawing import STYLE, panels, titled
from fedmerit_evaluation.results.views import Results

DEEP = 0.5  # from here on text is white


def _write_numbers(panel: Axes, cells: NDArray[np.float64]) -> None:
    """The numbers of ``cells``, white where the colour is deep; nothing for NaN."""
    for (row, column), value in np.ndenumerate(cells):
        if not np.isnan(value):
            ink = "white" if abs(value) > DEEP else "#1b1e23"
            panel.text(column, row, f"{value:.2f}", ha="center", va="center", color=ink, fontsize=8)


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
                _write_numbers(panel, cells)
                panel.axhline(len(shown) - 0.5, color="white", linewidth=3)
                panel.set_title(f"{method}, round {number}" if len(chosen) > 1 else f"Round {number}")
                panel.set_xticks(range(shown.shape[1]), shown.columns)
                panel.set_yticks(range(len(cells)), [*shown.index, "all rounds"])
                panel.tick_params(length=0)
                _turn_if_long(panel, [str(site) * 2 for site in shown.columns])
        titled(figure, "Reputation with", "Site")
    return figure


def _first_middle_last(rounds: pd.Index) -> list[int]:
    """Of the rounds of a run, three; fewer where there are no more."""
    return sorted({int(rounds[place]) for place in (0, len(rounds) // 2, -1)})


def _turn_if_long(panel: Axes, names: Sequence[str]) -> None:
    """Turn the names along the horizontal axis if they would overlap."""
    if len(names) * max(map(len, names)) > 90:
        panel.tick_params(axis="x", labelrotation=20)
