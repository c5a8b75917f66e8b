"""Texts that a spreadsheet would compute, as other people's files may hold them, stay texts."""

import pandas as pd

from fedmerit_data.tables import escape_formulas


def test_what_a_spreadsheet_would_compute_begins_with_an_apostrophe():
    texts = {
        "=1+1": "'=1+1", "+site": "'+site", "-site": "'-site", "@SUM(A1)": "'@SUM(A1)", "\t=1": "'\t=1",
        "\r=1": "'\r=1", "-": "'-", "-3.5": "-3.5", "+1e5": "+1e5", "site=1": "site=1", "": "", "'=1": "'=1",
    }  # fmt: skip
    assert escape_formulas(pd.DataFrame({"x": list(texts)}))["x"].to_list() == list(texts.values())


def test_numbers_stay_and_headings_are_texts_too():
    table = pd.DataFrame({"=cmd()": [-1.5, 2.0], "site": ["=A", "B"], 7: [None, -3]})
    plain = escape_formulas(table)
    assert plain.to_csv(index=False, lineterminator="\n") == "'=cmd(),site,7\n-1.5,'=A,\n2.0,B,-3.0\n"
    assert table.columns.to_list() == ["=cmd()", "site", 7]  # what came in is left alone
