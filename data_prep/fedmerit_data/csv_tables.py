"""Tables that people write down in spreadsheets, as CSV."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from fedmerit.errors import BadInput


def read_table(file: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """The rows that hold anything, each with its line: the values of ``columns``, without spaces around them.

    They are parted by commas, or by semicolons, as spreadsheets of some languages do.

    Raises:
        BadInput: the file cannot be read, or lacks a column.
    """
    expected = f"expected the columns {', '.join(columns)}, as CSV in UTF-8"
    try:
        text = file.read_text("utf-8-sig")
        head = text.partition("\n")[0]
        table = csv.DictReader(io.StringIO(text), delimiter=";" if ";" in head and "," not in head else ",")
        there = table.fieldnames = [name.strip() for name in table.fieldnames or ()]
        rows = [(table.line_num, {name: (row.get(name) or "").strip() for name in columns}) for row in table]
    except (OSError, ValueError, csv.Error) as error:
        raise BadInput(f"{file}: not a readable table ({error}); {expected}") from error
    if missing := [name for name in columns if name not in there]:
        raise BadInput(f"{file}: has no column {missing[0]}; {expected}")
    return [(line, row) for line, row in rows if any(row.values())]
