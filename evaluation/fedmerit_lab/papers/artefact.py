"""A paper's table or figure: its name, the trainings it takes, how it is made, and the numbers that the paper printed.

``printed/`` holds for each paper a TOML file of its artefacts in words, in which ``{name}`` is a text of texts.toml,
and the numbers typed from the papers. A CSV file is a printed table; its rows have the names of
`fedmerit compare --methods`, and ``captions.csv`` has its number in the paper. A column belongs to the group after its
``|``. A cell is a number, with a deviation (``86.7±0.3``), or a mean with the highest (``91(92)``), or empty. FedCE:
Jiang et al. 2023; CGSV: Xu et al. 2021; FedAVE: Wang et al. 2024; FedSAC: Wang et al., KDD 2024; CYCle: Tastan et al.
2025.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from fedmerit_evaluation.figures.tables import Table
from fedmerit_lab.papers.study import Need, Study

CELL = r"(?P<value>-?[\d.]+(?:e-?\d+)?)(?:±(?P<spread>[\d.]+)|\((?P<highest>[\d.]+)\))?"


@dataclass(frozen=True, eq=False)
class Published:
    """A printed table."""

    where: str  # Table 1
    what: str  # with the unit
    cells: pd.DataFrame  # as printed; names of rows in the first column

    @property
    def first(self) -> str:
        """The heading of the first column."""
        return str(self.cells.columns[0])

    @property
    def groups(self) -> list[str]:
        """The groups of columns."""
        return list(dict.fromkeys(_split(heading)[1] for heading in self.cells.columns[1:]))

    def group(self, group: str) -> Table:
        """Return the columns of one group under their own names; a mean with the highest gives two."""
        return self._table({group: ""})

    def table(self, name: str, groups: Sequence[str] | None = None) -> Table:
        """Return all columns, or those of some groups, each with the name of its group."""
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
    """Return the printed table of that name: ``fedce-table2``."""
    caption = _read("captions").set_index("table").loc[name]
    return Published(str(caption["where"]), str(caption["what"]), _read(name))


def _read(name: str) -> pd.DataFrame:
    with (files("fedmerit_lab.papers") / "printed" / f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, dtype=str, keep_default_na=False)


def _split(heading: str) -> tuple[str, str]:
    """Return a column's own name, and its group."""
    column, _, group = heading.partition(" | ")
    return column, group


def _parts(cells: "pd.Series[str]") -> pd.DataFrame:
    """Return ``value, spread, highest`` of each cell, NaN if missing; `ValueError` if one is not a number."""
    parts = cells.str.extract(f"^{CELL}$")
    if wrong := list(cells[parts["value"].isna() & (cells != "")]):
        raise ValueError(f"cell {wrong[0]!r} of a published table is not a number")
    return parts.astype(float)


@dataclass(frozen=True)
class Drawn:
    """A figure and its numbers."""

    name: str  # of its files
    caption: str
    figure: Figure
    numbers: pd.DataFrame


@dataclass(frozen=True)
class Made:
    """The result of an artefact: our tables and the paper's, figures, notes."""

    tables: Sequence[Table] = ()
    drawn: Sequence[Drawn] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Artefact:
    """A table or figure of a paper."""

    name: str  # table1
    what: str
    make: Callable[[Study, "Artefact"], Made]
    needs: tuple[Need, ...] = ()
    published: tuple[Published, ...] = ()
    remark: str = ""  # differences to the paper's, and why
    private: bool = False  # shows patients' images or numbers computed from them
    on_demand: bool = False  # made only if it is named: it needs more patients than most folders have

    @property
    def cost(self) -> str:
        """The trainings of one seed, where N is the number of sites."""
        return " + ".join(need.cost for need in self.needs) or "0"


@dataclass(frozen=True)
class Paper:
    """A paper and its artefacts."""

    title: str
    source: str
    setting: str  # how it was measured there
    artefacts: tuple[Artefact, ...]
    remark: str = ""  # differences that all artefacts have
    absent: Mapping[str, str] = field(default_factory=dict)  # artefacts that are not made, and why


def read_paper(name: str, makers: Mapping[str, tuple[Callable[[Study, Artefact], Made], tuple[Need, ...]]]) -> Paper:
    """Return the paper that ``printed/NAME.toml`` describes.

    Args:
        name: of the file.
        makers: by artefact, the function that makes it and the trainings it needs; as many as in the file.
    """
    texts = _read_toml("texts")

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill(one) for key, one in value.items()}
        return value.format(**texts) if isinstance(value, str) else value

    paper = fill(_read_toml(name))
    described = paper.pop("artefacts")
    assert described.keys() == makers.keys(), f"{name}.toml and its makers differ"
    artefacts = [
        Artefact(**{**words, "published": tuple(map(published, words.get("published", ())))}, name=key, make=make,
                 needs=needs)
        for key, words in described.items()
        for make, needs in [makers[key]]
    ]  # fmt: skip
    return Paper(**paper, artefacts=tuple(artefacts))


def _read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads((files("fedmerit_lab.papers") / "printed" / f"{name}.toml").read_text("utf-8"))


KEEP_OWN = ":last_round=own"  # in a label: sites of one model keep the model that they train in the last round


def beside(ours: Table, published: Published, groups: Sequence[str] | None = None) -> Table:
    """Return our table with the paper's columns of the same headings added, for our methods.

    Args:
        ours: its first column has methods; `KEEP_OWN` is ignored when they are looked up.
        published: the paper's.
        groups: of the paper's columns; None: all.
    """
    frame, spread = ours.frame.copy(), (ours.frame if ours.spread is None else ours.spread).copy()
    if ours.spread is None:
        for place in range(spread.shape[1]):
            if ours.is_number(place):
                spread[spread.columns[place]] = float("nan")
    methods = frame[published.first].str.removesuffix(KEEP_OWN)
    numbers = [heading for place, heading in enumerate(ours.headings) if ours.is_number(place)]
    for group in published.groups if groups is None else groups:
        theirs = published.group(group)
        for heading in (name for name in theirs.headings[1:] if name in numbers):
            title = f"{heading}, {group or 'paper'}"
            for part, source in ((frame, theirs.frame), (spread, theirs.spread)):
                assert source is not None
                part[title] = methods.map(source.set_index(published.first)[heading])
    caption = f"{ours.caption}; with {published.where} of the paper"
    return replace(ours, frame=frame, spread=spread, caption=caption)


def every(group: str) -> bool:
    """Return all of the paper's columns."""
    return True


def printed(name: str, published: Sequence[Published], groups: Callable[[str], bool] = every) -> list[Table]:
    """Return the paper's own tables, named after the artefact, with the columns of the wanted groups."""
    tables = []
    for number, one in enumerate(published, start=1):
        if wanted := [group for group in one.groups if groups(group)]:
            tables.append(one.table(f"{name}-published" + f"-{number}" * (len(published) > 1), wanted))
    return tables
