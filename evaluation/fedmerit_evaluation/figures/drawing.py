"""Common parts of all figures: style, one colour per site, panels, axes, files."""

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from fedmerit.schema.score_name import with_score_name
from fedmerit_data.figure_style import STYLE, disable_mathtext

with style.context(STYLE):
    SITES = list(matplotlib.rcParams["axes.prop_cycle"])  # colour and line of each site in turn
METHOD_COLOURS = (  # Tol's "muted", readable with colour-blindness
    "#332288", "#CC6677", "#117733", "#88CCEE", "#AA4499", "#999933", "#882255", "#44AA99", "#6E6E6E",
)  # fmt: skip
METHOD_LINES = ("-", "--", ":", "-.")
INK, GREY, DARK_GREY = "#30343b", "#8a8f98", "#4b5563"
EQUAL: Any = {"color": GREY, "linewidth": 1, "linestyle": (0, (2, 2))}  # the line of an equal share
NARROW = 5.6  # inches
PHONE = 4.2  # inches: a phone of 390 pixels makes 3.7 of it
PANEL_HEIGHT = 2.7  # inches
NAME_HEIGHT = 0.075  # height of a name beside a panel, as a fraction of the panel
LONG = 26  # characters of a name in a line: more would leave a panel no room, or run into the next one
DOTS: Any = {"linestyle": "", "marker": "o"}


def site_style(sites: Sequence[str], site: str) -> dict[str, Any]:
    """Return the colour and line style of a site, among all sites."""
    return dict(SITES[sites.index(site) % len(SITES)])


def method_style(number: int) -> dict[str, Any]:
    """Return the colour and line style of a method by its place."""
    line = METHOD_LINES[number // len(METHOD_COLOURS) % len(METHOD_LINES)]
    return {"color": METHOD_COLOURS[number % len(METHOD_COLOURS)], "linestyle": line}


def png(figure: Figure) -> bytes:
    """Return the figure as PNG, by its own dots per inch."""
    file = io.BytesIO()
    _finish_texts(figure)
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def webp(figure: Figure) -> bytes:
    """Return the figure as WebP, by its own dots per inch: a fifth of the bytes of a PNG, for images in a page."""
    file = io.BytesIO()
    _finish_texts(figure)
    figure.savefig(file, format="webp", pil_kwargs={"quality": 80})
    return file.getvalue()


def svg(figure: Figure) -> bytes:
    """Return the figure as SVG with text as text and places to a hundredth of a point, the same bytes each time."""
    file = io.BytesIO()
    _finish_texts(figure)
    with style.context(STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None})
    tags = re.sub(rb">\s+<", b"><", file.getvalue())
    return re.sub(rb"<[^>]+>", lambda tag: re.sub(rb"(\.\d\d)\d+", rb"\1", tag.group()), tags)


def _finish_texts(figure: Figure) -> None:
    disable_mathtext(figure)
    for text in figure.findobj(Text):
        if (named := with_score_name(text.get_text())) != text.get_text():
            text.set_text(named)


def panels(number: int, *, sharey: bool = False, width: float | None = None) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``number`` panels, one or two in a row."""
    columns = min(number, 2)
    rows = -(-number // columns)
    size = (width or (NARROW if columns == 1 else 6.6), 0.7 + PANEL_HEIGHT * rows)
    figure = Figure(figsize=size, dpi=160, layout="constrained")
    axes = list(figure.subplots(rows, columns, sharey=sharey, squeeze=False).flat)
    for panel in axes[number:]:
        panel.set_axis_off()
    return figure, axes[:number]


def for_phone(figure: Figure) -> bool:
    """Make a figure as narrow as a phone, with type as large as before: panels below each other.

    Returns:
        Whether it could: not if its panels are no plain grid (colour bar, pictures without axes).
    """
    specs = [panel.get_subplotspec() for panel in figure.axes]
    grids = [spec.get_gridspec() for spec in specs if spec is not None]
    if len(grids) < len(specs) or len(set(grids)) != 1:
        return False
    shown = [panel for panel in figure.axes if panel.axison]
    if not shown:
        return False
    for spare in set(figure.axes) - set(shown):
        spare.remove()
    rows = grids[0].nrows
    figure.set_size_inches(PHONE, figure.get_figheight() + PANEL_HEIGHT * (len(shown) - rows))
    stacked = figure.add_gridspec(len(shown), 1)
    for row, panel in enumerate(shown):
        panel.set_subplotspec(stacked[row, 0])
        panel.tick_params(labelleft=True, labelbottom=True)  # hidden for shared axes
    for one in list(figure.legends):
        one.remove()
        labels = [text.get_text() for text in one.get_texts()]
        with style.context(STYLE):
            legend(figure, one.legend_handles, one.get_title().get_text(), labels)
    return True


def rows_figure(rows: int, groups: int = 1) -> tuple[Figure, Axes]:
    """Return a figure of one panel with named rows, with room for ``groups`` dots in each."""
    figure = Figure(figsize=(NARROW, 0.9 + rows * max(0.34, 0.13 + 0.17 * groups)), dpi=160, layout="constrained")
    return figure, figure.subplots()


def broken(name: str, width: int = LONG) -> str:
    """Return a name with line breaks, if it is longer than a width in characters."""
    return "\n".join(textwrap.wrap(name, width)) if len(name) > width else name


def _shortened(name: str) -> str:
    """Return a name without its middle, if it is longer than `LONG`."""
    return f"{name[: LONG // 2]}\N{HORIZONTAL ELLIPSIS}{name[-LONG // 2 + 1 :]}" if len(name) > LONG else name


def label_rows(panel: Axes, names: Sequence[str]) -> None:
    """Write names along the vertical axis, the first on top, with a faint line for each."""
    panel.set_yticks(range(len(names)), [broken(name) for name in names])
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="y", visible=False)
    panel.grid(axis="x", visible=True)
    for place in range(1, len(names)):
        panel.axhline(place - 0.5, color="#eceef1", linewidth=0.8, zorder=0)


def offset_dot(place: float, number: int, of: int) -> float:
    """Return the place of the ``number``-th of ``of`` dots in a row, the first on top."""
    return place + 0.7 * ((number + 0.5) / of - 0.5)


def rounds_axis(panel: Axes) -> None:
    """Show whole rounds along the horizontal axis."""
    panel.set_xlabel("Round")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    panel.margins(x=0.02)


def titled(figure: Figure, vertical: str = "", horizontal: str = "") -> None:
    """Write titles of the axes of all panels together."""
    if horizontal:
        figure.supxlabel(horizontal, fontsize=9.5, color=INK)
    if vertical:
        figure.supylabel(vertical, fontsize=9.5, color=INK)


def legend(figure: Figure, handles: Sequence[Any], title: str = "", labels: Sequence[str] = ()) -> None:
    """Draw a legend in rows above the panels; the labels are those of the handles if none are given."""
    labels = list(labels) or [str(handle.get_label()) for handle in handles]
    room = int(11 * figure.get_figwidth())  # characters
    columns = max(1, min(len(labels), int(room / (max(map(len, labels), default=1) + 6))))
    labels = [broken(" ".join(label.split()), room - 6) for label in labels]
    figure.legend(list(handles), labels, title=title or None, loc="outside upper left", alignment="left", ncols=columns)


def name_lines(panel: Axes, ends: Mapping[str, tuple[float, float, str]]) -> None:
    """Write the name of each line at its right end, moved if two would overlap.

    Args:
        panel: with its limits set, or its lines drawn.
        ends: by name, the end's place along both axes and the colour.
    """
    low, high = panel.get_ylim()
    names = sorted(ends, key=lambda name: ends[name][1])
    lines = max((broken(name).count("\n") + 1 for name in names), default=1)
    fits = lines * len(names) * NAME_HEIGHT <= 1
    least = min(NAME_HEIGHT * (lines if fits else 1), 1 / max(len(names), 1)) * (high - low)
    heights = [ends[name][1] for name in names]
    for place in range(1, len(names)):
        heights[place] = max(heights[place], heights[place - 1] + least)
    for place in reversed(range(len(names))):
        heights[place] = min(heights[place], high if place == len(names) - 1 else heights[place + 1] - least)
    for name, height in zip(names, heights, strict=True):
        x, y, colour = ends[name]
        text = broken(name) if fits else _shortened(name)
        panel.annotate(
            text, (x, y), (1.06, height), textcoords=panel.get_yaxis_transform(), color=colour, fontsize=8, va="center",
            annotation_clip=False, arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.6},
        )  # fmt: skip
    panel.set_ylim(low, high)


def case_dot() -> Line2D:
    """Return the dot of a case, for a legend."""
    return Line2D([], [], **DOTS, markersize=4, color=GREY, markeredgewidth=0, label="one case")


def mean_mark(label: str = "mean", colour: str = INK) -> Line2D:
    """Return the mark of a mean, for a legend."""
    return Line2D([], [], linestyle="", marker="|", markersize=9, markeredgewidth=2.6, color=colour, label=label)
