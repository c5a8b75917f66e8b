"""The style of figures, and the text in them."""

from functools import cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.text import Text

STYLE = "fedmerit_data.figures"  # the style sheet; each site takes the next colour and line of its cycle


def disable_mathtext(figure: Figure) -> None:
    """Draw dollar signs as such: names of sites and runs are not formulas, and matplotlib may fail to parse them.

    Letters that the figure's font lacks, such as Chinese ones, become ``\\u5317``: matplotlib draws the same box for
    all of them. Other fonts of this machine are not used, since other machines lack them.
    """
    axes = [axis for panel in figure.findobj(Axes) for axis in (panel.xaxis, panel.yaxis)]
    powers = [axis for axis in axes if axis.get_scale() == "log"]  # matplotlib writes their numbers as formulas
    numbers = {label for axis in powers for label in axis.get_ticklabels(which="both")}
    for axis in axes:
        labels = axis.get_ticklabels()
        written = [_drawable(label) for label in labels]
        if written != [label.get_text() for label in labels]:
            axis.set_ticklabels(written)  # matplotlib sets a label's own text again when it draws
    for text in figure.findobj(Text):
        if text not in numbers:
            text.set_parse_math(False)
            text.set_text(_drawable(text))


def _drawable(text: Text) -> str:
    """Return the text, with escapes for letters that its font lacks."""
    letters = _letters(findfont(text.get_fontproperties()))
    return "".join(
        one if ord(one) in letters or one == "\n" else one.encode("unicode_escape").decode()
        for one in str(text.get_text())
    )


@cache  # a millisecond each, for hundreds of texts of a page
def _letters(font: str) -> frozenset[int]:
    """Return the code points that a font file has."""
    return frozenset(get_font(font).get_charmap())
