"""CSV tables from and for spreadsheets."""

import csv
import io
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedmerit.errors import BadInput
from fedmerit.files import read_bytes, write_text

if TYPE_CHECKING:
    import pandas as pd  # takes a second to import, and readers do without

MOST_TABLE, MOST_ROWS = 1 << 23, 250_000  # bytes; a row takes up to 500 in memory
STATED_SEPARATOR = re.compile(r"\Asep=.\r?\n")  # the first line of some spreadsheets
SEPARATORS = (",", ";", "\t")
SPREADSHEETS = (".xlsx", ".xls")
# the first characters of a cell that a spreadsheet computes; some take the full-width ones, too
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def read_table(file: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Return the rows that are not empty, each with its line number: the values of all columns, stripped of spaces.

    The separator is a comma, a semicolon as in spreadsheets of some languages, or a tab as in BIDS. Of a spreadsheet
    (.xlsx, .xls) it is the first sheet that has the columns. An apostrophe by `escape_formulas` is taken away.

    Raises:
        BadInput: the file cannot be read, or lacks a column.
    """
    what = f"the columns {', '.join(columns)}, as " if columns else ""
    expected = f"expected {what}CSV in UTF-8, as spreadsheets save by that name"
    if file.suffix.lower() in SPREADSHEETS:
        return _read_sheet(file, columns)
    try:
        content = read_bytes(file, MOST_TABLE)
        text = content.decode("utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig")
        text = STATED_SEPARATOR.sub("", text)
        if text.count("\n") + text.count("\r") > MOST_ROWS:
            raise ValueError(f"more than {MOST_ROWS} rows")
        head = text.partition("\n")[0]
        separator = max(SEPARATORS, key=head.count)  # the first if there is none
        table = csv.DictReader(io.StringIO(text), delimiter=separator)
        there = table.fieldnames = _headings(table.fieldnames or (), columns)
        rows = [(table.line_num, {name: _unescape(row.get(name) or "").strip() for name in there}) for row in table]
    except (OSError, ValueError, csv.Error) as error:
        raise BadInput(f"{file}: not a readable table ({error}); {expected}") from error
    if missing := [name for name in columns if name not in there]:
        raise BadInput(f"{file}: has no column {missing[0]}; {expected}")
    return [(line, row) for line, row in rows if any(row.values())]


def _headings(names: Iterable[str], columns: Sequence[str]) -> list[str]:
    """Return the headings without spaces around them, those of ``columns`` as these are written."""
    plain = [name.strip() for name in names]
    wanted = {name.casefold(): name for name in columns if name not in plain}
    return [wanted.get(name.casefold(), name) for name in plain]


def _read_sheet(file: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of the first sheet of a spreadsheet that has the columns, as `read_table`."""
    import pandas as pd

    try:
        sheets = pd.read_excel(
            io.BytesIO(read_bytes(file, MOST_TABLE)), sheet_name=None, dtype=str, keep_default_na=False
        )
    except ImportError as error:
        raise BadInput(
            f"{file}: reading spreadsheets needs openpyxl and xlrd: install fedmerit[excel], or save the table as CSV"
        ) from error
    except Exception as error:  # whatever a damaged file makes the library raise
        raise BadInput(f"{file}: not a readable spreadsheet ({error}); save the table as CSV") from error
    for sheet in sheets.values():
        sheet.columns = _headings(map(str, sheet.columns), columns)
        if set(columns) <= set(sheet.columns):
            rows = [
                (line, {str(name): str(value).strip() for name, value in row.items()})
                for line, row in enumerate(sheet.to_dict("records"), 2)
            ]
            return [(line, row) for line, row in rows if any(row.values())]
    raise BadInput(f"{file}: no sheet of {', '.join(sheets)} has the columns {', '.join(columns)}; add them")


def write_csv(file: Path, table: "pd.DataFrame") -> None:
    """Write a table for people as CSV, by `escape_formulas`."""
    write_text(file, csv_text(table))


def csv_text(table: "pd.DataFrame") -> str:
    """Return a table for people as CSV, without its index, by `escape_formulas`."""
    return str(escape_formulas(table).to_csv(index=False, lineterminator="\n"))


def escape_formulas(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return the table with an apostrophe before every text, headings too, that a spreadsheet would compute."""
    plain = table.map(_plain)
    plain.columns = [_plain(name) for name in table.columns]
    return plain


def _plain(cell: object) -> object:
    if not (isinstance(cell, str) and cell.lstrip("'").startswith(FORMULA)):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _unescape(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _plain(cell[1:]) == cell else cell
