"""Pages and tables."""

import base64
import hashlib
import io
import math
import re
from pathlib import Path

import pandas as pd
import pytest
from jinja2 import Environment, PackageLoader, UndefinedError
from matplotlib.figure import Figure
from rich.console import Console

from fedmerit.wire.survey import Survey
from fedmerit_evaluation.figures import pages
from fedmerit_evaluation.figures.drawing import panels
from fedmerit_evaluation.figures.pages import Drawing, photograph, pictures, write_page
from fedmerit_evaluation.figures.tables import Table, csv_text, latex_text, print_table, with_headings

SHOWN = {"survey": Survey(5, {}, {}), "tables": [], "hidden": [], "pictures": {}, "names": ""}


def _held(address: str, kind: str) -> bytes:
    """What an address itself holds."""
    start = f"data:image/{kind};base64,"
    assert address.startswith(start)
    return base64.b64decode(address.removeprefix(start))


def test_the_policy_allows_the_pages_own_style_and_script_alone(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", "survey.html.j2", **SHOWN)
    page = (tmp_path / "page.html").read_text()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.replace("&#39;", "'").split(";"))
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(f"{tag}-src") == f"'sha256-{digest}'"
    assert rules == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'", "img-src": "data:"}


def test_what_stands_in_results_is_text_and_a_percent_sign_stays_with_its_number(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", "survey.html.j2", **SHOWN | {"names": "<script>alert(1)</script> 81.5 % of A %"})
    page = (tmp_path / "page.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; 81.5&nbsp;% of A %" in page
    assert page.count("<script>") == 1


def test_what_a_template_lacks_is_no_empty_text(tmp_path: Path) -> None:
    with pytest.raises(UndefinedError, match="'names' is undefined"):
        write_page(tmp_path / "page.html", "survey.html.j2", **{name: SHOWN[name] for name in SHOWN if name != "names"})
    assert not (tmp_path / "page.html").exists()


def test_figures_are_saved_as_png_and_held_as_svg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "png", lambda figure: f"png of {figure.get_label()}".encode())
    monkeypatch.setattr(pages, "svg", lambda figure: f"svg of {figure.get_label()}".encode())
    dice, weights = Figure(), Figure()
    dice.set_label("dice")
    weights.set_label("weights")
    shown = pictures({"d": Drawing("Dice.", dice), "w": Drawing("Weights.", weights, "A line.")}, tmp_path / "figures")
    assert (tmp_path / "figures" / "d.png").read_bytes() == b"png of dice"
    assert (tmp_path / "figures" / "w.png").read_bytes() == b"png of weights"
    assert [(one.name, one.caption, one.seen) for one in shown.values()] == [
        ("d", "Dice.", "Dice."),  # nothing is said of what is seen: the caption is
        ("w", "Weights.", "A line."),
    ]
    assert [_held(one.address, "svg+xml") for one in shown.values()] == [b"svg of dice", b"svg of weights"]


def test_a_photograph_lies_in_its_file_and_in_the_page(tmp_path: Path) -> None:
    shown = photograph(b"\x89PNG", "Cases.", "Outlines.", tmp_path / "figures" / "overlays.png")
    assert (tmp_path / "figures" / "overlays.png").read_bytes() == _held(shown.address, "png") == b"\x89PNG"
    assert (shown.name, shown.caption, shown.seen) == ("overlays", "Cases.", "Outlines.")


def test_a_phone_gets_panels_below_each_other(tmp_path: Path) -> None:
    apart, _ = panels(1)
    apart.add_axes((0.1, 0.1, 0.2, 0.2))  # no grid: it stays as it is
    shown = pictures({"pair": Drawing("Two.", panels(2)[0]), "apart": Drawing("One.", apart)}, tmp_path)
    assert shown["apart"].narrow == ""
    held = [_held(address, "svg+xml") for address in (shown["pair"].address, shown["pair"].narrow)]
    wide, narrow = ([float(size) for size in re.findall(rb'(?:width|height)="([\d.]+)pt"', one)] for one in held)
    assert wide[0] > narrow[0]
    assert wide[1] < narrow[1]
    template = '{% from "parts.html.j2" import picture %}{{ picture(shown) }}'
    environment = Environment(loader=PackageLoader("fedmerit_evaluation.figures", "templates"), autoescape=True)
    sources = [environment.from_string(template).render(shown=one).count("<source media") for one in shown.values()]
    assert sources == [1, 0]


def test_latex_escapes_and_sets_in_the_style_of_booktabs() -> None:
    frame = pd.DataFrame({"Site_&": ["100% {a}~^\\#$", "b"], "Dice [%]": [87.654, -1.0]})
    best = pd.DataFrame([[False, True], [False, False]])
    text = latex_text(Table("t", "A & B", frame, best=best))
    assert r"100\% \{a\}\textasciitilde{}\textasciicircum{}\textbackslash{}\#\$ & \textbf{87.7} \\" in text
    assert r"Site\_\& & Dice [\%] \\" in text
    assert r"b & $-$1.0 \\" in text
    assert r"\caption{A \& B}" in text
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lr}"))


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


def test_cells() -> None:
    frame = pd.DataFrame({"Method": ["a"], "Dice [%]": [87.65], "Weight": [0.12345], "Cases": [3], "Gone": [math.nan]})
    table = Table("t", "", frame)
    assert [table.cell(0, column) for column in range(5)] == ["a", "87.7", "0.123", "3", "\N{EN DASH}"]


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
