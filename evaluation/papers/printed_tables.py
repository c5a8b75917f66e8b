"""Numbers that papers printed, typed from their tables into ``printed/``, to stand beside what is measured here.

A file is a printed table, its rows named as `fedmerit compare --methods` names methods; ``captions.csv`` says where it
stands. A column belongs to the group after its ``|``. A cell is a number, with a deviation (``86.7±0.3``), or a mean
with the highest (``91(92)``); empty where nothing is printed. FedCE: Jiang et al. 2023; CGSV: Xu et al. 2021; FedAVE:
Wang et al. 2024; FedSAC: Wang et al., KDD 2024; CYCle: Tastan et al. 2025.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import pandas as pd

from evaluation.display.table import Table

CELL = r"(?P<value>-?[\d.]+(?:e-?\d+)?)(?:±(?P<spread>[\d.]+)|\((?P<highest>[\d.]+)\))?"


@dataclass(frozen=True, eq=False)
class Published:
    """One printed table."""

    where: str  # Table 1
    what: str  # with the unit
    cells: pd.DataFrame  # as printed; names of rows in the first column

    @property
    def first(self) -> str:
        """What a row is."""
        return str(self.cells.columns[0])

    @property
    def groups(self) -> list[str]:
        """What columns belong to."""
        return list(dict.fromkeys(_split(heading)[1] for heading in self.cells.columns[1:]))

    def of(self, group: str) -> Table:
        """The columns of one group under their own names; of a mean with the highest, two."""
        return self._table({group: ""})

    def table(self, name: str, groups: Sequence[str] | None = None) -> Table:
        """All columns, or those of some groups, each with the name of its group."""
        chosen = self.groups if groups is None else groups
        return self._table({group: f", {group}" * bool(group) for group in chosen}, name)

    def _table(self, suffixes: Mapping[str, str], name: str = "") -> Table:
        frame = self.cells[[self.first]].copy()
        spread = frame.copy()
        for heading in self.cells.columns[1:]:
            column, group = _split(heading)
            if group not in suffixes:
                continue
            title, parts = f"{column}{suffixes[group]}", _parts(self.cells[heading])
            frame[title], spread[title] = parts["value"], parts["spread"]
            if parts["highest"].notna().any():
                frame[f"{title}, highest"], spread[f"{title}, highest"] = parts["highest"], float("nan")
        return Table(name, f"{self.where} of the paper: {self.what}", frame, spread, decimals=2)


@cache
def published(name: str) -> Published:
    """The printed table of that name: ``fedce-table2``."""
    caption = _read("captions").set_index("table").loc[name]
    return Published(str(caption["where"]), str(caption["what"]), _read(name))


def names() -> list[str]:
    """The printed tables there are."""
    return list(_read("captions")["table"])


def _read(name: str) -> pd.DataFrame:
    with (files("evaluation.papers") / "printed" / f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, dtype=str, keep_default_na=False)


def _split(heading: str) -> tuple[str, str]:
    """A column's own name, and its group."""
    column, _, group = heading.partition(" | ")
    return column, group


def _parts(cells: "pd.Series[str]") -> pd.DataFrame:
    """``value, spread, highest`` of each cell, NaN where it has none; `ValueError` where one is no number."""
    parts = cells.str.extract(f"^{CELL}$")
    if wrong := list(cells[parts["value"].isna() & (cells != "")]):
        raise ValueError(f"cell {wrong[0]!r} of a published table is no number")
    return parts.astype(float)
