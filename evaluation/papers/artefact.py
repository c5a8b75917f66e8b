"""What a paper's table or figure is: its name, the trainings it takes, how it is made, what the paper printed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd
from matplotlib.figure import Figure

from evaluation.display.table import Table
from evaluation.papers.printed_tables import Published
from evaluation.papers.study import Need, Study


@dataclass(frozen=True)
class Drawn:
    """A figure, and the numbers it shows."""

    name: str  # of its files
    caption: str
    figure: Figure
    numbers: pd.DataFrame


@dataclass(frozen=True)
class Made:
    """What came of an artefact: tables of ours, the paper's, figures, and what there is to say of them."""

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
    remark: str = ""  # what differs from the paper's, and why
    private: bool = False  # shows patients' images, or what is computed from them
    on_demand: bool = False  # made where it is named alone: it deals more patients than most folders hold

    @property
    def cost(self) -> str:
        """Trainings of one seed, where N is the number of sites."""
        return " + ".join(need.cost for need in self.needs) or "0"


@dataclass(frozen=True)
class Paper:
    """A paper: what can be made of it here, and what cannot."""

    title: str
    source: str
    setting: str  # how it was measured there
    artefacts: tuple[Artefact, ...]
    absent: Mapping[str, str] = field(default_factory=dict)  # what is not made, and why


APART = ":last_round=own"  # as labels have it: sites of one model keep what they train in the last round
BY_ALONE = ":contributions=standalone"  # rewards go by what sites reach alone, not by the method's reputations


def beside(ours: Table, published: Published, groups: Sequence[str] | None = None) -> Table:
    """Our table with the paper's columns of the same headings after it, for the methods that it has.

    Args:
        ours: its first column names methods; with `APART` or `BY_ALONE` they stand beside the paper's of the same name.
        published: the paper's.
        groups: of the paper's columns; None: all.
    """
    frame, spread = ours.frame.copy(), (ours.frame if ours.spread is None else ours.spread).copy()
    if ours.spread is None:
        for place in range(spread.shape[1]):
            if ours.is_number(place):
                spread[spread.columns[place]] = float("nan")
    methods = frame[published.first].str.removesuffix(APART).str.removesuffix(BY_ALONE)
    numbers = [heading for place, heading in enumerate(ours.headings) if ours.is_number(place)]
    for group in published.groups if groups is None else groups:
        theirs = published.of(group)
        for heading in (name for name in theirs.headings[1:] if name in numbers):
            title = f"{heading}, {group or 'paper'}"
            for part, source in ((frame, theirs.frame), (spread, theirs.spread)):
                assert source is not None
                part[title] = methods.map(source.set_index(published.first)[heading])
    caption = f"{ours.caption}; beside it {published.where} of the paper"
    return replace(ours, frame=frame, spread=spread, caption=caption)


def every(group: str) -> bool:
    """All of the paper's columns."""
    return True


def printed(name: str, published: Sequence[Published], groups: Callable[[str], bool] = every) -> list[Table]:
    """The paper's own tables, named after the artefact; of their columns those of the wanted groups."""
    tables = []
    for number, one in enumerate(published, start=1):
        if wanted := [group for group in one.groups if groups(group)]:
            tables.append(one.table(f"{name}-published" + f"-{number}" * (len(published) > 1), wanted))
    return tables


def renamed(table: Table, name: str) -> Table:
    """The same table with another name for its files."""
    return replace(table, name=name)
