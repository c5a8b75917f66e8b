"""Tables for people, who open them in spreadsheets."""

import pandas as pd

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet computes


def no_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """The table with an apostrophe before every text, headings too, that a spreadsheet would compute."""
    plain = table.map(_plain)
    plain.columns = [_plain(name) for name in table.columns]
    return plain


def _plain(cell: object) -> object:
    if not (isinstance(cell, str) and cell.startswith(FORMULA)):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
