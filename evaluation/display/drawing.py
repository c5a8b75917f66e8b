"""What all figures share: their look, one colour per site, panels, axes, and how a figure becomes a file."""

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from data_prep.figure_text import draw_as_written

STYLE = "data_prep.figures"  # a style sheet, for `matplotlib.style.context`
with style.context(STYLE):
    SITES = list(matplotlib.rcParams["axes.prop_cycle"])  # colour and line of each site in turn
METHOD_COLOURS = (  # Tol's "muted", readable with colour-blindness
    "#332288", "#CC6677", "#117733", "#88CCEE", "#AA4499", "#999933", "#882255", "#44AA99", "#6E6E6E",
)  # fmt: skip
METHOD_LINES = ("-", "--", ":", "-.")
INK, GREY, DARK_GREY = "#30343b", "#8a8f98", "#4b5563"
CASE: Any = {"s": 11, "color": "white", "edgecolor": INK, "linewidth": 0.6}  # a dot in a scatter plot
DOTS: Any = {"linestyle": "", "marker": "o"}


def site_style(sites: Sequence[str], site: str) -> dict[str, Any]:
    """Colour and line style of a site, among all sites."""
    return dict(SITES[sites.index(site) % len(SITES)])


def method_style(number: int) -> dict[str, Any]:
    """Colour and line style of a method by its place."""
    line = METHOD_LINES[number // len(METHOD_COLOURS) % len(METHOD_LINES)]
    return {"color": METHOD_COLOURS[number % len(METHOD_COLOURS)], "linestyle": line}


def png(figure: Figure) -> bytes:
    """The figure as PNG, by its own dots per inch."""
    file = io.BytesIO()
    draw_as_written(figure)
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as SVG, the same bytes each time."""
    file = io.BytesIO()
    draw_as_written(figure)
    with style.context(STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def panels(number: int, *, sharey: bool = False, width: float | None = None) -> tuple[Figure, list[Axes]]:
    """A figure of ``number`` panels, two or three in a row."""
    columns = 2 if number == 4 else min(number, 3)
    rows = -(-number // columns)
    size = (width or (6.8 if columns == 1 else 1.9 + 3.3 * columns), 0.7 + 2.7 * rows)
    figure = Figure(figsize=size, dpi=160, layout="constrained")
    axes = list(figure.subplots(rows, columns, sharey=sharey, squeeze=False).flat)
    for panel in axes[number:]:
        panel.set_axis_off()
    return figure, axes[:number]


def wide(things: int, each: float) -> float:
    """The width of a figure of one panel, in inches, by how many things stand side by side."""
    return min(14.0, max(6.4, 2.2 + each * things))


def rounds_axis(panel: Axes) -> None:
    """Whole rounds along the horizontal axis."""
    panel.set_xlabel("Round")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    panel.margins(x=0.02)


def names_axis(panel: Axes, places: Sequence[float], names: Sequence[str]) -> None:
    """Names along the horizontal axis."""
    panel.set_xticks(places, names)
    turn_if_long(panel, names)
    panel.tick_params(axis="x", length=0)


def in_two_lines(methods: Sequence[Any]) -> list[str]:
    """Labels of methods, the settings below the name."""
    return [str(method).replace(" (", "\n(") for method in methods]


def turn_if_long(panel: Axes, names: Sequence[str]) -> None:
    """Turn the names along the horizontal axis, where they would run into each other."""
    if len(names) * max(map(len, names)) > 90:
        panel.tick_params(axis="x", labelrotation=20)


def titled(figure: Figure, vertical: str = "", horizontal: str = "") -> None:
    """What the axes of all panels together say."""
    if horizontal:
        figure.supxlabel(horizontal, fontsize=9.5, color=INK)
    if vertical:
        figure.supylabel(vertical, fontsize=9.5, color=INK)


def legend(figure: Figure, handles: Sequence[Any], title: str | None = None) -> None:
    """What the lines are, at the upper right beside the panels."""
    figure.legend(handles=list(handles), title=title, loc="outside right upper", alignment="left")


def site_lines(sites: Sequence[str]) -> list[Line2D]:
    """Of a legend: a line for each site."""
    return [Line2D([], [], label=site, **site_style(sites, site)) for site in sites]


def site_dots(sites: Sequence[str]) -> list[Line2D]:
    """Of a legend: a dot for each site."""
    return [Line2D([], [], color=site_style(sites, site)["color"], label=site, **DOTS) for site in sites]


def site_bars(sites: Sequence[str]) -> list[Line2D]:
    """Of a legend: a bar for each site."""
    return [Line2D([], [], linewidth=6, color=site_style(sites, site)["color"], label=site) for site in sites]


def case_dot() -> Line2D:
    """Of a legend: the dot of a case."""
    return Line2D([], [], **DOTS, markersize=4, color="white", markeredgecolor=INK, label="one case")
