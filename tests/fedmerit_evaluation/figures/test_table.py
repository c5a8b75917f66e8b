"""Tables as text, CSV, LaTeX and on a terminal."""

import io
import math

import pandas as pd
import pytest
from rich.console import Console

from fedmerit_evaluation.figures.tables import Table, csv_text, latex_text, print_table, with_headings


def test_latex_escapes_and_sets_in_the_style_of_booktabs() -> None:
    frame = pd.DataFrame({"Site_&": ["100% {a}~^\\#$", "b"], "Dice [%]": [87.654, -1.0]})
    best = pd.DataFrame([[False, True], [False, False]])
    text = latex_text(Table("t", "A & B", frame, best=best))
    assert r"100\% \{a\}\textasciitilde{}\textasciicircum{}\textbackslash{}\#\$ & \textbf{87.7} \\" in text
    assert r"Site\_\& & Dice [\%] \\" in text
    assert r"b & $-$1.0 \\" in text
    assert r"\caption{A \& B}" in text
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lr}"))


def test_latex_sets_signs_that_its_first_font_encoding_lacks() -> None:
    text = latex_text(Table("t", "(ε, δ)", pd.DataFrame({"p": ["< 0.001", "> 0.05", "a|b"]})))
    assert r"\caption{($\varepsilon$, $\delta$)}" in text
    assert all(f"{cell} " in text for cell in ("$<$ 0.001", "$>$ 0.05", "a$|$b"))


def test_csv_holds_the_unrounded_numbers_and_the_deviations() -> None:
    frame = pd.DataFrame({"Method": ["a"], "Alder": [87.654321]})
    text = csv_text(Table("t", "", frame, spread=pd.DataFrame({"Method": [math.nan], "Alder": [1.5]})))
    assert text == 'Method,Alder,"Alder, std over seeds"\na,87.654321,1.5\n'


def test_csv_holds_no_formula() -> None:
    """A spreadsheet computes what begins so."""
    frame = pd.DataFrame({"Site": ['=HYPERLINK("x")', "+1+cmd|' /C calc'!A0", "@A1", "-2", "\t=1"], "=A1": [-1.5] * 5})
    text = csv_text(Table("t", "", frame))
    cells = [line.partition(",")[0].strip('"') for line in text.splitlines()]
    assert all(cell.startswith("'") for cell in (cells[1], cells[2], cells[3], cells[5]))
    assert cells[4] == "-2"  # a number
    assert text.splitlines()[0] == "Site,'=A1"
    assert ",-1.5" in text


def test_headed_shows_dice_in_percent_and_bytes_in_megabytes() -> None:
    index = pd.MultiIndex.from_tuples([("a", 0, "Alder"), ("a", 0, "Birch")], names=["method", "seed", "site"])
    view = pd.DataFrame({"dice": [0.6, 0.9], "lowest": [0.5, 0.9], "cases": 2, "both_empty": [1, 2]}, index)
    table = with_headings(view)
    assert list(table) == ["Method", "Seed", "Site", "Dice [%]", "Lowest case [%]", "Cases", "Both empty"]
    assert table["Dice [%]"].to_list() == pytest.approx([60, 90])


@pytest.mark.parametrize("name", ["A\x1b]0;owned\x07", "[red]A[/red]", "[/A]", ":smile:"])
def test_names_are_printed_as_they_are_and_command_no_terminal(name) -> None:
    """Those of a run that came from somebody else."""
    for table in (pd.DataFrame({"site": [name], "dice": [0.5]}), pd.DataFrame({name: ["A"]})):
        file = io.StringIO()
        print_table(Table("table", name, table), Console(file=file, width=20))
        assert name.replace("\x1b", r"\x1b").replace("\x07", r"\x07") in file.getvalue()
        assert not any(letter in file.getvalue() for letter in "\x1b\x07")
