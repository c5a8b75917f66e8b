"""Figures of a study of attacks: Figures 4 and 7 of Jiang et al. 2023."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure

from fedmerit_data.figure_style import STYLE
from fedmerit_evaluation.figures.drawing import INK
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.attacked_runs import HONEST, AttackedRun
from fedmerit_lab.attacks.detectors import accumulated, free_rider_values, of_rounds
from fedmerit_lab.attacks.sybils import SYBILS
from fedmerit_lab.papers.figures import lines_over_rounds

SNAPSHOTS = 6  # rounds that Figure 4 shows


def figures(attacks: Sequence[AttackedRun], results: Results) -> dict[str, Figure]:
    """Return both figures for every method and attack except Sybil attacks, means over seeds and folds; by name."""
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
            by_attacker = {
                site: _over_seeds(table, [attack for attack in own if attack.site == site])
                for site in sorted({attack.site for attack in own})
            }
            drawn[f"{figure}_{name}"] = draw(by_attacker, f"{title} ({label}, {kind})")
    return drawn


def _over_seeds(table: pd.DataFrame, attacks: Sequence[AttackedRun]) -> pd.DataFrame:
    """Return rounds x sites, the mean of some runs."""
    own = table.loc[[attack.folder.name for attack in attacks]].dropna(axis=1, how="all")
    return own.groupby(level="round").mean()


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


def lines(values: Mapping[str, pd.DataFrame], title: str) -> Figure:
    """Draw Figure 7: a panel for each attacker, a line for each site over the rounds, the attacker's in bold."""
    by_title = {f"{site} attacks": table for site, table in values.items()}
    return lines_over_rounds(by_title, title, bold={f"{site} attacks": site for site in values})
