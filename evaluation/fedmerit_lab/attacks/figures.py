"""Figures 4 and 7 of Jiang et al. 2023: who looks like a free rider, in runs in which each site in turn is one.

How often each rule names the rider, and an honest site, after so many rounds: a picture of `naming`'s table.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedmerit_evaluation.figures.curves import lines_over_rounds
from fedmerit_evaluation.figures.drawing import GREY, INK, STYLE, legend, method_style, panels, titled
from fedmerit_evaluation.freeriders.detectors import accumulated, free_rider_values, of_rounds
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.attacked_runs import HONEST, Attack
from fedmerit_lab.attacks.detection_rules import FALSELY, RIGHTLY
from fedmerit_lab.attacks.sybils import SYBILS

SNAPSHOTS = 6  # rounds that Figure 4 shows


def figures(attacks: Sequence[Attack], results: Results) -> dict[str, Figure]:
    """Both figures for every method and attack that leaves the sites as they are, means over seeds; by name."""
    values, cosines = accumulated(free_rider_values(results)), of_rounds(results, "cosine_to_mean")
    there = [
        attack for attack in attacks if attack.kind not in (HONEST, *SYBILS) and attack.folder.name in values.index
    ]
    drawn = {}
    for label, kind in dict.fromkeys((attack.label, attack.kind) for attack in there):
        own = [attack for attack in there if (attack.label, attack.kind) == (label, kind)]
        name = f"{label}_{kind}"
        for figure, table, draw, title in (
            ("figure4", values, heat_map, "Free-rider value, mean over rounds"),
            ("figure7", cosines, lines, "Cosine to the mean update"),
        ):
            by_rider = {
                site: _over_seeds(table, [attack for attack in own if attack.site == site])
                for site in sorted({attack.site for attack in own})
            }
            drawn[f"{figure}_{name}"] = draw(by_rider, f"{title} ({label}, {kind})")
    return drawn


def _over_seeds(table: pd.DataFrame, attacks: Sequence[Attack]) -> pd.DataFrame:
    """Rounds x sites, the mean of some runs."""
    own = table.loc[[attack.folder.name for attack in attacks]].dropna(axis=1, how="all")
    return own.groupby(level="round").mean()


def heat_map(values: Mapping[str, pd.DataFrame], title: str) -> Figure:
    """As Figure 4: a panel per round shown, a row per site that rides in a run of its own, a column per site.

    Args:
        values: by the site that rides, rounds x sites of that run (or the mean of several), the same in each; below
            0 they are drawn as 0, as in the paper.
        title: what the values are.
    """
    riders, table = list(values), next(iter(values.values()))
    rounds = np.unique(np.linspace(0, len(table) - 1, SNAPSHOTS).round().astype(int))
    stack = np.stack([[values[rider].iloc[row].clip(lower=0).to_numpy() for rider in riders] for row in rounds])
    highest = max(float(np.nanmax(stack)), 1e-9) if np.isfinite(stack).any() else 1.0
    size = 0.55 * len(table.columns)
    with style.context([STYLE, {"axes.grid": False, "font.size": 8}]):
        figure = Figure(
            figsize=(1.5 + (0.4 + size) * len(rounds), 1.6 + 0.4 * len(riders)), dpi=160, layout="constrained"
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
            panel.set_yticks(range(len(riders)), riders)
        panels[0].set_ylabel("Free rider")
        figure.colorbar(picture, ax=panels, shrink=0.8)
        figure.suptitle(title, x=0.01, ha="left")
    return figure


def lines(values: Mapping[str, pd.DataFrame], title: str) -> Figure:
    """As Figure 7: a panel per site that rides, a line per site over the rounds, the rider's the thickest."""
    panels = {f"{rider} rides": table for rider, table in values.items()}
    return lines_over_rounds(panels, title, bold={f"{rider} rides": rider for rider in values})


def detection_rate_figures(table: pd.DataFrame) -> dict[str, Figure]:
    """A figure for each behaviour, a panel for each method in it; by name.

    Args:
        table: that of `naming`, one row for each method, behaviour, number of rounds and rule.
    """
    kinds = list(dict.fromkeys(table["Behaviour"])) if len(table) else []
    return {f"naming_{kind}": _figure(table[table["Behaviour"] == kind]) for kind in kinds}


def _figure(table: pd.DataFrame) -> Figure:
    methods, rules = list(dict.fromkeys(table["Method"])), list(dict.fromkeys(table["Rule"]))
    looks = {rule: method_style(number) | {"marker": "o", "markersize": 4} for number, rule in enumerate(rules)}
    with style.context(STYLE):
        figure, axes = panels(len(methods), sharey=True)
        for panel, method in zip(axes, methods, strict=True):
            for rule, look in looks.items():
                own = table[(table["Method"] == method) & (table["Rule"] == rule)].set_index("After rounds")
                panel.plot(own.index, own[RIGHTLY], **look)
                panel.plot(own.index, own[FALSELY], **{**look, "linestyle": ":", "marker": "x"})
            panel.set(title=method, ylim=(-4, 104), xlabel="After rounds")
            panel.set_xticks(sorted(set(table["After rounds"])))
        titled(figure, "Percent of runs")
        kinds = [
            Line2D([], [], color=GREY, marker="o", markersize=4, label="rider alone named"),
            Line2D([], [], color=GREY, marker="x", markersize=4, linestyle=":", label="honest site named"),
        ]
        legend(figure, [*kinds, *(Line2D([], [], label=rule, **look) for rule, look in looks.items())])
    return figure
