"""CSV tables from and for spreadsheets."""

import struct
from pathlib import Path

import pandas as pd
import pytest

from fedmerit.errors import BadInput
from fedmerit_data.tables import escape_formulas, read_table, write_csv

COLUMNS = ("site", "case")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "written",
    [
        b"site,case\nBasel,a\nBern,b\n",
        b"\xef\xbb\xbfsite;case\r\nBasel;a\r\nBern;b\r\n",  # of a German spreadsheet
        b"site\tcase\nBasel\ta\nBern\tb\n",  # of BIDS
        b"sep=;\r\nsite;case\r\nBasel;a\r\nBern;b\r\n",
        "site\tcase\r\nBasel\ta\r\nBern\tb\r\n".encode("utf-16"),  # "Unicode text" of a spreadsheet
        b"case, site ,scanner\na, Basel,x\nb,Bern ,y",
    ],
)
def test_commas_and_semicolons(tmp_path, written):
    (tmp_path / "table.csv").write_bytes(written)
    rows = [(line, {name: row[name] for name in COLUMNS}) for line, row in read_table(tmp_path / "table.csv", COLUMNS)]
    assert rows == [(2, {"site": "Basel", "case": "a"}), (3, {"site": "Bern", "case": "b"})]


@pytest.mark.parametrize(
    ("written", "reported"),
    [
        (b"", "has no column site"),
        (b"site,patient\nBasel,a\n", "has no column case"),
        ("site,case\nZürich,a\n".encode("latin-1"), "not a readable table"),
        (None, "not a readable table"),
    ],
)
def test_what_is_no_such_table(tmp_path, written, reported):
    file = tmp_path / "table.csv"
    if written is not None:
        file.write_bytes(written)
    with pytest.raises(BadInput, match=rf"table\.csv: {reported}.*; expected the columns site, case, as CSV in UTF-8"):
        read_table(file, COLUMNS)


def test_what_a_spreadsheet_would_compute_begins_with_an_apostrophe():
    texts = {
        "=1+1": "'=1+1", "+site": "'+site", "-site": "'-site", "@SUM(A1)": "'@SUM(A1)", "\t=1": "'\t=1",
        "\r=1": "'\r=1", "\n=1": "'\n=1", "\uff1d1+1": "'\uff1d1+1", "-": "'-", "-3.5": "-3.5", "+1e5": "+1e5",
        "site=1": "site=1", "": "", "'=1": "''=1", "'a": "'a",
    }  # fmt: skip
    assert escape_formulas(pd.DataFrame({"x": list(texts)}))["x"].to_list() == list(texts.values())


def test_numbers_stay_and_headings_are_texts_too():
    table = pd.DataFrame({"=cmd()": [-1.5, 2.0], "site": ["=A", "B"], 7: [None, -3]})
    plain = escape_formulas(table)
    assert plain.to_csv(index=False, lineterminator="\n") == "'=cmd(),site,7\n-1.5,'=A,\n2.0,B,-3.0\n"
    assert table.columns.to_list() == ["=cmd()", "site", 7]  # what came in is left unchanged


def test_a_spreadsheet_is_its_first_sheet_with_the_columns(tmp_path):
    pytest.importorskip("openpyxl")
    file = tmp_path / "table.xlsx"
    with pd.ExcelWriter(file) as sheets:
        pd.DataFrame({"about": ["a release"]}).to_excel(sheets, sheet_name="notes", index=False)
        pd.DataFrame({"site ": ["Basel", None], "case": ["a", None], "age": [63, None]}).to_excel(
            sheets, sheet_name="cases", index=False
        )
    assert read_table(file, COLUMNS) == [(2, {"site": "Basel", "case": "a", "age": "63"})]
    with pytest.raises(BadInput, match="no sheet of notes, cases has the columns sex"):
        read_table(file, ["sex"])
    file.write_bytes(b"no spreadsheet")
    with pytest.raises(BadInput, match="not a readable spreadsheet"):
        read_table(file, COLUMNS)


def test_a_spreadsheet_of_old_programs_is_read(tmp_path):
    """Of the first version of the format: its records are lengths and cells of text."""
    pytest.importorskip("xlrd")
    cells = [(0, 0, "Site"), (0, 1, "case"), (1, 0, "Basel"), (1, 1, "a")]
    records = [struct.pack("<4H", 9, 4, 7, 16)]
    for row, column, text in cells:
        content = struct.pack("<2H4B", row, column, 0, 0, 0, len(text)) + text.encode()
        records.append(struct.pack("<2H", 4, len(content)) + content)
    file = tmp_path / "table.xls"
    file.write_bytes(b"".join((*records, struct.pack("<2H", 10, 0))))
    assert read_table(file, COLUMNS) == [(2, {"site": "Basel", "case": "a"})]


def test_table_for_people_written_and_read_again_has_the_same_texts(tmp_path):
    table = pd.DataFrame({"site": ["=HYPERLINK(1)", "@x", "plain"], "case": ["+a", "'=1", "-2"]})
    write_csv(tmp_path / "table.csv", table)
    assert "\n'=HYPERLINK(1),'+a\n" in (tmp_path / "table.csv").read_text()
    assert [row for _, row in read_table(tmp_path / "table.csv", COLUMNS)] == [
        {"site": "=HYPERLINK(1)", "case": "+a"},
        {"site": "@x", "case": "'=1"},
        {"site": "plain", "case": "-2"},
    ]


OF_RESULTS = {  # whose columns are those of results.csv, in which names are checked; or only numbers
    *("evaluation.py", "coalitions.py", "replay.py", "gradient_inversion.py", "value_benchmark.py")
}


def test_csv_for_people_is_written_by_one_function():
    writers = {
        path.name
        for folder in ("custom", "cli", "data_prep", "deploy", "evaluation")
        for path in (ROOT / folder).rglob("*.py")
        if ".to_csv(" in path.read_text()
    }
    assert writers == {"tables.py"} | OF_RESULTS
