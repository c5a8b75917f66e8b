"""Names in figures are drawn as they are written."""

import io

import pytest
from matplotlib.figure import Figure

from fedmerit_data.figure_style import disable_mathtext


def drawn(figure):
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue().decode()


def test_dollars_are_no_formulas_but_powers_of_ten_are():
    figure = Figure()
    panel = figure.subplots()
    panel.plot([1, 1000], [1, 2], label="site $a^b$")
    panel.set_xscale("log")
    panel.set_title(r"$\nothing$ that can be read")
    panel.legend()
    with pytest.raises(ValueError, match="nothing"):
        drawn(figure)
    disable_mathtext(figure)
    page = drawn(figure)
    for text in (r"$\nothing$ that can be read", "site $a^b$"):
        assert f"<!-- {text} -->" in page
    assert r"<!-- $\mathdefault{10^{2}}$ -->" in page  # of which the superscript is drawn
    assert all(label.get_parse_math() for label in panel.get_xticklabels())
    assert not any(label.get_parse_math() for label in panel.get_yticklabels())


@pytest.mark.filterwarnings("error:Glyph")  # what matplotlib says of a glyph that is missing
def test_letters_that_the_font_lacks_are_written_out():
    figure = Figure()
    panel = figure.subplots()
    panel.plot([0, 1], label="北京")
    panel.set_yticks([0, 1], ["Köln", "दिल्ली"])
    panel.set_title("two\nlines")
    panel.legend()
    disable_mathtext(figure)
    page = drawn(figure)
    for text in (r"\u5317\u4eac", "Köln", "two", r"\u0926"):
        assert f"<!-- {text}" in page
