"""Tables as spreadsheets write them."""

import pytest

from fedmerit.errors import BadInput
from fedmerit_data.tables import read_table

COLUMNS = ("site", "case")


@pytest.mark.parametrize(
    "written",
    [
        b"site,case\nBasel,a\nBern,b\n",
        b"\xef\xbb\xbfsite;case\r\nBasel;a\r\nBern;b\r\n",  # of a German spreadsheet
        b"case, site ,scanner\na, Basel,x\nb,Bern ,y",
    ],
)
def test_commas_and_semicolons(tmp_path, written):
    (tmp_path / "table.csv").write_bytes(written)
    rows = [(2, {"site": "Basel", "case": "a"}), (3, {"site": "Bern", "case": "b"})]
    assert read_table(tmp_path / "table.csv", COLUMNS) == rows


def test_rows_are_told_by_their_lines_and_empty_ones_left_out(tmp_path):
    (tmp_path / "table.csv").write_text("site,case\nBasel,a\n,\n\n ,\nBern,\n")
    rows = [(2, {"site": "Basel", "case": "a"}), (6, {"site": "Bern", "case": ""})]
    assert read_table(tmp_path / "table.csv", COLUMNS) == rows


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (b"", "has no column site"),
        (b"site\tcase\nBasel\ta\n", "has no column site"),
        (b"site,patient\nBasel,a\n", "has no column case"),
        ("site,case\nZürich,a\n".encode("latin-1"), "not a readable table"),
        (None, "not a readable table"),
    ],
)
def test_what_is_no_such_table(tmp_path, written, told):
    file = tmp_path / "table.csv"
    if written is not None:
        file.write_bytes(written)
    with pytest.raises(BadInput, match=rf"table\.csv: {told}.*; expected the columns site, case, as CSV in UTF-8"):
        read_table(file, COLUMNS)
