"""Names in figures."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.text import Text


def disable_mathtext(figure: Figure) -> None:
    """Draw dollar signs: names of sites and runs are no formulas, and may be none that matplotlib can read.

    Letters that the figure's font lacks, such as Chinese ones, are written out as ``\\u5317``: the box that would be
    drawn instead is the same for all of them. Fonts of this machine are not looked for, as other machines lack them.
    """
    axes = [axis for panel in figure.findobj(Axes) for axis in (panel.xaxis, panel.yaxis)]
    powers = [axis for axis in axes if axis.get_scale() == "log"]  # of whose numbers matplotlib makes formulas
    numbers = {label for axis in powers for label in axis.get_ticklabels(which="both")}
    for axis in axes:
        labels = axis.get_ticklabels()
        written = [_drawable(label) for label in labels]
        if written != [label.get_text() for label in labels]:
            axis.set_ticklabels(written)  # a label's own text is made anew on drawing
    for text in figure.findobj(Text):
        if text not in numbers:
            text.set_parse_math(False)
            text.set_text(_drawable(text))


def _drawable(text: Text) -> str:
    """Its text, letters that its font lacks written out."""
    letters = get_font(findfont(text.get_fontproperties())).get_charmap()
    return "".join(
        one if ord(one) in letters or one == "\n" else one.encode("unicode_escape").decode()
        for one in str(text.get_text())
    )
