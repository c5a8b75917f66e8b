"""How often each rule names the rider, and an honest site, after so many rounds: a picture of `naming`'s table."""

import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evaluation.display.drawing import GREY, STYLE, legend, method_style, panels, titled
from evaluation.freeriders.naming import FALSELY, RIGHTLY


def naming_figures(table: pd.DataFrame) -> dict[str, Figure]:
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
