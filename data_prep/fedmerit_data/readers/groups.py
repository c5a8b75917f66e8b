"""Groups of patients, such as sex, age band or scanner: columns of a table, for Dice by group.

Reports show groups of five patients or more (`fedmerit_evaluation.report.groups`); the values are in the site folder.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import RawCase
from fedmerit_data.readers.patients import TABLE_COLUMN, case_keys
from fedmerit_data.tables import read_table

Groups = tuple[tuple[str, str], ...]  # by column, in the order of the columns; a value that is not stated is left out
AGE = re.compile(r"(?:patient|subject)? ?age(?: (?:in )?(?:years?|yrs?|y)| at .+)?")  # words in lower case
YEARS = re.compile(r"0*(\d{1,3})(?:[.,]\d+)?\s*Y?", re.IGNORECASE)  # 63, 63.5, DICOM's 063Y
BAND = 10  # years
OLDEST = 90  # and older: one band, as ages beyond may identify a person
NOT_STATED = ("", "na", "n/a", "nan", "none", "null", "unknown", "-", "?")
LONGEST = 40  # characters of a value


def read_groups(text: str, table: Path | None) -> Callable[[str, RawCase], Groups]:
    """Return a function from a site and a case to its groups, by ``FILE.csv:COLUMN,COLUMN`` or columns of ``table``.

    A row belongs to a case as of `fedmerit_data.readers.patients.read_lookup`; with a column ``site`` only to one of
    that site. Ages are put into bands of ten years.

    Args:
        text: The option.
        table: The table of patients, or FILE:COLUMN of it; None: there is none.

    Raises:
        BadInput: no table is named, or it lacks a column or cannot be read.
    """
    match = TABLE_COLUMN.fullmatch(text) or (TABLE_COLUMN.fullmatch(f"{_file(table)}:{text}") if table else None)
    if match is None:
        raise BadInput(f"--groups {text}: names no table; expected FILE.csv:COLUMN,COLUMN, or --patient-table FILE.csv")
    file, columns = Path(match["file"]), tuple(filter(None, (name.strip() for name in match["column"].split(","))))
    rows = [row for _, row in read_table(file, columns)]
    sites = next((name for name in rows[0] if name.casefold() == "site"), "") if rows else ""
    names = [name for name in (rows[0] if rows else ()) if name and name not in (*columns, sites)]
    by_value: dict[str, dict[str, list[dict[str, str]]]] = {name: defaultdict(list) for name in names}
    for row in rows:
        for name in names:
            by_value[name][row[name]].append(row)

    def find(site: str, case: RawCase) -> Groups:
        for key in case_keys(case):
            of_columns = [values[key] for values in by_value.values() if key in values]
            named = ([row for row in found if not sites or row[sites] in ("", site)] for found in of_columns)
            if nearest := min(filter(None, named), key=len, default=None):
                return _common_values(nearest, columns)
        return ()

    return find


def _file(table: Path) -> str:
    match = TABLE_COLUMN.fullmatch(str(table))
    return match["file"] if match else str(table)


def _common_values(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> Groups:
    """Return the value of each column in which all rows agree."""
    found = ((name, {band(name, row[name]) for row in rows} - {""}) for name in columns)
    return tuple((name, values.pop()) for name, values in found if len(values) == 1)


def band(column: str, value: str) -> str:
    """Return the group of a value: of an age its band of ten years, else the value; "" if it states none."""
    if value.casefold() in NOT_STATED:
        return ""
    words = re.sub("[^a-z]+", " ", column.casefold()).strip()
    if AGE.fullmatch(words) and (years := YEARS.fullmatch(value)):
        first = int(years[1]) // BAND * BAND
        return f"{OLDEST} and older" if first >= OLDEST else f"{first} to {first + BAND - 1}"
    return value[:LONGEST]


def describe_missing(cases: Sequence[RawCase], columns: Sequence[str]) -> list[str]:
    """Return a remark for each column that states nothing of some cases."""
    missing = {name: sum(name not in dict(case.groups) for case in cases) for name in columns}
    return [f"no {name} of {count} of {len(cases)} cases is stated" for name, count in missing.items() if count]
