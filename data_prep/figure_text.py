"""Names in figures."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text


def draw_as_written(figure: Figure) -> None:
    """Draw dollar signs: names of sites and runs are no formulas, and may be none that matplotlib can read."""
    axes = [axis for panel in figure.findobj(Axes) for axis in (panel.xaxis, panel.yaxis)]
    powers = [axis for axis in axes if axis.get_scale() == "log"]  # of whose numbers matplotlib makes formulas
    numbers = {label for axis in powers for label in axis.get_ticklabels(which="both")}
    for text in figure.findobj(Text):
        if text not in numbers:
            text.set_parse_math(False)
