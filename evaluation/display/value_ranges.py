"""One figure of what sites are worth, with what is not known of it: for those who decide, not for those who compute."""

from collections.abc import Mapping

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluation.display.drawing import DARK_GREY, INK, STYLE, panels, site_style
from evaluation.results.ranks import Ranking


def value_ranges(rankings: Mapping[str, Ranking], units: Mapping[str, str]) -> Figure:
    """A panel an estimator: every site's value as a dot on its interval, the rank that can be said beside it.

    Sites that cannot be told from the one above them hang on one grey band.

    Args:
        rankings: by the name of the estimator.
        units: of the values, likewise.
    """
    with style.context(STYLE):
        figure, axes = panels(len(rankings))
        for panel, (name, one) in zip(axes, rankings.items(), strict=True):
            _draw(panel, one)
            panel.set_title(name if one.tells_any else f"{name}\nno two can be told apart")
            panel.set_xlabel(units[name])
    return figure


def _draw(panel: Axes, one: Ranking) -> None:
    n = len(one.order)
    panel.axvline(0, color=DARK_GREY, linewidth=0.8)
    for row, site in enumerate(one.order):
        place, height = one.sites.index(site), n - 1 - row
        if row and not one.told[one.sites.index(one.order[row - 1]), place]:
            panel.axhspan(height - 0.15, height + 1.15, color="#d6d9de", zorder=0, linewidth=0)
        if one.measured:
            panel.hlines(height, one.low[place], one.high[place], color=INK, linewidth=1.6)
        panel.plot(one.value[place], height, "o", markersize=6, color=site_style(one.sites, site)["color"])
        first, last = int(one.highest_rank[place]), int(one.lowest_rank[place])
        rank = f"rank {first}" if first == last else f"rank {first} to {last}"
        panel.annotate(rank, (1.0, height), xycoords=("axes fraction", "data"), xytext=(4, 0),
                       textcoords="offset points", va="center", fontsize="small", color=INK)  # fmt: skip
    panel.set_yticks(range(n), list(reversed(one.order)))
    panel.set_ylim(-0.6, n - 0.4)
