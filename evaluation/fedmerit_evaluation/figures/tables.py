"""Tables as text, CSV, LaTeX and on a terminal. Dice is a percentage with one decimal."""

import base64
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from fedmerit.errors import printable
from fedmerit.files import write_text
from fedmerit.schema.score_name import with_score_name
from fedmerit.schema.scores import TOLERANCE
from fedmerit_data.tables import csv_text as text_of

HEADINGS = {
    "method": "Method",
    "seed": "Seed",
    "site": "Site",
    "round": "Round",
    "case": "Case",
    "label": "Label",
    "dice": "Dice [%]",
    "lowest": "Lowest case [%]",
    "cases": "Cases",
    "patients": "Patients",
    "hd95": "HD95 [mm]",
    "nsd": f"NSD at {TOLERANCE:g} mm [%]",
    "hd95_px": "HD95 [px]",
    "nsd_px": f"NSD at {TOLERANCE:g} px [%]",
    "both_empty": "Both empty",
    "one_empty": "One empty",
    "mean": "Mean",
    "std": "Std",
    "worst": "Worst",
    "num_samples": "Training images",
    "weight": "Weight, last round [%]",
    "mean_weight": "Weight, mean [%]",
    "share": "Share of contribution [%]",
    "contribution": "Contribution, last round [own unit]",
    "mean_contribution": "Contribution, mean [own unit]",
    "reputation": "Reputation, last round [own unit]",
    "mean_reputation": "Reputation, mean [own unit]",
    "flagged": "Flagged rounds",
    "rejected": "Rejected rounds",
    "seconds": "Seconds per round",
    "bytes_sent": "Sent per round [MB]",
    "bytes_received": "Received per round [MB]",
}
UNITS = {
    **dict.fromkeys(("dice", "lowest", "nsd", "nsd_px", "weight", "mean_weight", "share"), 100.0),
    **dict.fromkeys(("bytes_sent", "bytes_received"), 1e-6),
}
HIDDEN_COLUMNS = dict.fromkeys(  # ends captions, by quantity
    ("hd95", "hd95_px"), "; none for cases with an empty prediction or reference"
)
WHOLE = (
    "Runs",
    "Seed",
    "Seeds",
    "Sites",
    "Rank",
    "Test cases",
    "Round",
    "Cases",
    "Patients",
    "Both empty",
    "One empty",
    "Training images",
    "Flagged rounds",
    "Rejected rounds",
)
MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"
MISSING = DASH
MAX_COLUMNS = 10_000  # of characters
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        DASH: "--",
        MINUS: "$-$",
        "ε": r"$\varepsilon$",
        "δ": r"$\delta$",
    }
    | {character: f"${character}$" for character in "<>|"}  # in LaTeX's first font encoding other signs in text
    | {character: f"\\{character}" for character in "&%$#_{}"}
)


def with_headings(table: pd.DataFrame) -> pd.DataFrame:
    """Return a view of results in the units and with the headings shown; its index becomes columns."""
    if table.index.names != [None]:
        table = table.reset_index()
    table = table.assign(**{name: table[name] * factor for name, factor in UNITS.items() if name in table})
    return table.rename(columns=HEADINGS)


@dataclass(frozen=True)
class Table:
    """A table to show: numbers in the units shown and columns as headed."""

    name: str  # of its files
    caption: str
    frame: pd.DataFrame
    spread: pd.DataFrame | None = None  # standard deviations over seeds, same shape; NaN: none
    best: pd.DataFrame | None = None  # bool, same shape: what to print bold
    decimals: int = 3  # unless the heading has [%], [points], [MB], [mm], [px] or a count
    low: pd.DataFrame | None = None  # lower ends of intervals, of columns that have any; NaN: none
    high: pd.DataFrame | None = None  # upper ends, likewise

    def cell(self, row: int, column: int) -> str:
        """Return a cell as text: the number, its deviation after "±", its interval in brackets."""
        value: Any = self.frame.iloc[row, column]
        text = self._text(value, column)
        if text == MISSING or isinstance(value, str):
            return text
        spread: Any = math.nan if self.spread is None else self.spread.iloc[row, column]
        shown = text if pd.isna(spread) else f"{text} ± {self._text(spread, column)}"
        low, high = (self._end(part, row, column) for part in (self.low, self.high))
        if pd.isna(low) or pd.isna(high):
            return shown
        return f"{shown} [{self._text(low, column)}, {self._text(high, column)}]"

    def is_best(self, row: int, column: int) -> bool:
        """Return whether a cell is bold."""
        return self.best is not None and bool(self.best.iloc[row, column])

    def is_number(self, column: int) -> bool:
        """Return whether a column is right-aligned."""
        return bool(pd.api.types.is_numeric_dtype(self.frame.dtypes.iloc[column]))

    def _end(self, part: pd.DataFrame | None, row: int, column: int) -> Any:
        heading = self.frame.columns[column]
        return math.nan if part is None or heading not in part else part[heading].iloc[row]

    def _text(self, value: Any, column: int) -> str:
        heading = str(self.frame.columns[column])
        if isinstance(value, str):
            return value
        if pd.isna(value):
            return MISSING
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        one = heading.endswith(("[%]", "[points]", "[MB]", "[mm]", "[px]")) or heading.startswith("Seconds")
        decimals = 0 if heading in WHOLE and float(value).is_integer() else 1 if one else self.decimals
        text = f"{value:z.{decimals}f}"  # z: no minus before a zero
        return text.replace("-", MINUS)

    @property
    def file(self) -> str:
        """The name of the files of the table, without an ending."""
        return file_name(self.name)

    @property
    def address(self) -> str:
        """The CSV as a data address, so a page needs no file beside it."""
        return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(csv_text(self).encode()).decode()}"

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        rows, columns = self.frame.shape
        return rows, columns

    @property
    def headings(self) -> list[str]:
        """The headings."""
        return [with_score_name(str(name)) for name in self.frame.columns]


def csv_text(table: Table) -> str:
    """Return the numbers as CSV, unrounded; deviations over seeds and ends of intervals follow as columns."""
    frames = [table.frame]
    for part, name in ((table.spread, "std over seeds"), (table.low, "low"), (table.high, "high")):
        if part is not None:
            frames.append(part.select_dtypes("number").dropna(axis=1, how="all").add_suffix(f", {name}"))
    whole = pd.concat(frames, axis=1).rename(columns=lambda name: with_score_name(str(name)))
    return text_of(whole)


def latex_text(table: Table) -> str:
    """Return the table as LaTeX in the style of booktabs, special characters escaped."""
    rows, columns = table.shape
    align = "".join("r" if table.is_number(column) else "l" for column in range(columns))

    def cell(row: int, column: int) -> str:
        text = table.cell(row, column).translate(_LATEX)
        return rf"\textbf{{{text}}}" if table.is_best(row, column) else text

    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{with_score_name(table.caption).translate(_LATEX)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        " & ".join(name.translate(_LATEX) for name in table.headings) + r" \\",
        r"\midrule",
        *(" & ".join(cell(row, column) for column in range(columns)) + r" \\" for row in range(rows)),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def rich_table(table: Table, *, narrow: bool = False) -> RichTable:
    """Return the table for a terminal; ``narrow``: headings break between words if they are longer than the cells."""
    result = RichTable(
        box=box.SIMPLE_HEAD,
        title=Text(printable(with_score_name(table.caption))) if table.caption else None,
        title_justify="left",
        pad_edge=False,
    )
    rows, columns = table.shape
    for column, heading in enumerate(table.headings):
        texts = [*heading.split(), *(printable(table.cell(row, column)) for row in range(rows))]
        width = max(map(cell_len, texts)) if narrow else None
        result.add_column(Text(printable(heading)), justify="right" if table.is_number(column) else "left", width=width)
    for row in range(rows):
        cells = (
            Text(printable(table.cell(row, column)), "bold" if table.is_best(row, column) else "")
            for column in range(columns)
        )
        result.add_row(*cells)
    return result


def print_table(table: pd.DataFrame | Table, console: Console) -> None:
    """Print a table or a view of results, Dice as percentages, on a rich console; no word and no number is cut.

    On a terminal that is too narrow, headings break between words; lines may still be longer than the terminal.
    """
    shown = table if isinstance(table, Table) else Table("table", "", with_headings(table))
    drawn = rich_table(shown)
    if console.is_terminal and _columns(drawn, console) > console.width:
        drawn = rich_table(shown, narrow=True)
    wide = max(console.width, _columns(drawn, console))
    Console(file=console.file, width=wide, quiet=console.quiet).print(drawn)


def _columns(drawn: RichTable, console: Console) -> int:
    """Return the width of a table in characters, without a limit."""
    return Measurement.get(console, console.options.update(max_width=MAX_COLUMNS), drawn).maximum


def file_name(text: str) -> str:
    """Return a label as the name of a file or folder: ``fedce:combine=plus`` as ``fedce_combine-plus``."""
    return re.sub(r"[^\w.+-]+", "_", text.replace("=", "-")).strip("_")


def plain_name(text: str) -> str:
    """Return a spec as the name of a table, with dashes: ``multi_round:last=2`` as ``multi-round-last-2``."""
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def write_tables(tables: Iterable[Table], folder: Path) -> None:
    """Write each table as CSV; with a caption also as LaTeX."""
    for table in tables:
        name = file_name(table.name)
        write_text(folder / f"{name}.csv", csv_text(table))
        if table.caption:
            write_text(folder / f"{name}.tex", latex_text(table))
