"""Figures of coloured cells: gains of sites, what sites hold of each other, numbers by two parameters."""

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure

from evaluation.display.drawing import DARK_GREY, EQUAL, INK, NARROW, STYLE, panels, titled, turn_if_long
from evaluation.display.table import MINUS
from evaluation.results.views import Results

FAR = 15.0  # points of Dice: gains from here on have the deepest colour


def gains(points: pd.DataFrame, times: pd.Series) -> Figure:
    """Who gains, who loses, at what cost: a row per method, the highest mean on top.

    Args:
        points: methods x sites, Dice above training alone in points; NaN: not known.
        times: of methods, what a round takes, training alone being 1.
    """
    shown = points.assign(**{"all sites": points.mean(axis=1)}).sort_values("all sites", ascending=False, kind="stable")
    cells = shown.to_numpy(float)
    with style.context([STYLE, {"axes.grid": False}]):
        figure = Figure(figsize=(NARROW + 1.4, 1.0 + 0.27 * len(shown)), dpi=160, layout="constrained")
        panel, beside = figure.subplots(1, 2, sharey=True, width_ratios=(3.2, 1))
        panel.imshow(cells, vmin=-FAR, vmax=FAR, cmap="PuOr", aspect="auto")
        for (row, column), value in np.ndenumerate(cells):
            if not np.isnan(value):
                ink = "white" if abs(value) > 0.6 * FAR else "#1b1e23"
                panel.text(
                    column, row, f"{value:+.1f}".replace("-", MINUS), ha="center", va="center", color=ink, fontsize=8
                )
        panel.axvline(shown.shape[1] - 1.5, color="white", linewidth=3)
        panel.set_xticks(range(shown.shape[1]), shown.columns)
        panel.set_yticks(range(len(shown)), [str(method) for method in shown.index])
        panel.tick_params(length=0)
        panel.set_title("Dice above training alone [points]")
        taken = times.reindex(shown.index).to_numpy(float)
        bars = beside.barh(range(len(shown)), taken, color=DARK_GREY, height=0.6)
        beside.bar_label(bars, fmt="%.1f", padding=2, fontsize=8, color=INK)
        beside.axvline(1, **EQUAL)
        beside.set_xlim(0, 1.3 * max(1.0, float(np.nanmax(taken, initial=1.0))))
        beside.set_title("Time")
        beside.tick_params(axis="y", length=0)
    return figure


def reputations(results: Results) -> Figure:
    """What sites hold of each other, 0 to 1, in the first, a middle and the last round: as Figures 4, 5 and 8 of CYCle.

    One panel per method and round; a row per site that holds, mean over seeds. The lowest row is the mean over
    holders and over all rounds.
    """
    table = results.rounds.pairs("peer_reputation")
    of_methods = {str(name): part.droplevel("method") for name, part in table.groupby(level="method", observed=True)}
    chosen = {name: _first_middle_last(part.index.unique("round")) for name, part in of_methods.items()}
    with style.context([STYLE, {"axes.grid": False}]):
        figure, axes = panels(sum(map(len, chosen.values())))
        places = iter(axes)
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
                turn_if_long(panel, [str(site) * 2 for site in shown.columns])
        titled(figure, "Reputation with", "Site")
    return figure


def over_parameters(numbers: pd.DataFrame, parameters: tuple[str, str]) -> Figure:
    """A map for each other column of ``numbers`` over the two that hold parameters, the first of them upwards."""
    up, across = parameters
    shown = [str(name) for name in numbers if name not in parameters]
    with style.context(STYLE):
        figure, axes = panels(len(shown))
        for panel, what in zip(axes, shown, strict=True):
            table = numbers.pivot(index=up, columns=across, values=what)
            panel.imshow(table.to_numpy(float), cmap="viridis", origin="lower", aspect="auto")
            panel.set_xticks(range(table.shape[1]), [f"{value:g}" for value in table.columns])
            panel.set_yticks(range(table.shape[0]), [f"{value:g}" for value in table.index])
            panel.grid(visible=False)
            for (row, column), value in np.ndenumerate(table.to_numpy(float)):
                box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.5}
                panel.text(column, row, f"{value:.2f}", ha="center", va="center", bbox=box)
            panel.set_title(what)
            panel.set_xlabel(across)
            panel.set_ylabel(up)
    return figure


def _first_middle_last(rounds: pd.Index) -> list[int]:
    """Of the rounds of a run, three; fewer where there are no more."""
    return sorted({int(rounds[place]) for place in (0, len(rounds) // 2, -1)})
