"""What an artefact of a paper is, and that every one is made of made-up runs."""

import math

import pandas as pd
import pytest
from one_in import one_in

from evaluation.display.table import Table
from evaluation.papers import descent_bounds, submodel_bounds
from evaluation.papers.artefact import beside
from evaluation.papers.needs import Compared
from evaluation.papers.printed_tables import Published
from evaluation.papers.production import PAPERS

ARTEFACTS = {f"{name}-{one.name}": one for name, paper in PAPERS.items() for one in paper.artefacts}


def test_beside_joins_by_method_and_heading():
    ours = Table("t", "ours", pd.DataFrame({"Method": ["cgsv", "fedce"], "A": [1.0, 2.0], "C": [0.0, 0.0]}))
    published = Published(
        "Table 0",
        "x",
        pd.DataFrame([["fedavg", "7", "8"], ["cgsv", "5±1", "6"]], columns=["Method", "A | one", "B | one"]),
    )
    table = beside(ours, published)
    assert table.headings == ["Method", "A", "C", "A, one"]
    assert table.frame["A, one"].to_list() == pytest.approx([5, math.nan], nan_ok=True)
    assert [table.cell(0, place) for place in range(4)] == ["cgsv", "1.000", "0.000", "5.000 ± 1.000"]
    assert ours.headings == ["Method", "A", "C"]


OF_COMPARISONS = [
    name
    for name, one in ARTEFACTS.items()
    if one.needs and all(isinstance(need, Compared) for need in one.needs) and not one.private
]


@pytest.mark.parametrize("name", one_in(6, OF_COMPARISONS))
def test_an_artefact_of_comparisons_is_made(name, study, pretend):
    artefact = ARTEFACTS[name]
    pretend(study, artefact)
    made = artefact.make(study, artefact)
    assert made.tables or made.drawn
    for table in made.tables:
        assert table.name.startswith(artefact.name)
        assert table.caption
        assert table.frame.iloc[:, 1:].notna().any(axis=None)
    for drawn in made.drawn:
        assert drawn.name.startswith(artefact.name)
        assert len(drawn.numbers)
        assert drawn.figure.axes
    if artefact.name.startswith("table") and "Method" in made.tables[0].frame:
        ours = made.tables[0]
        shown = list(dict.fromkeys(ours.frame["Method"]))
        assert shown == [label for label in artefact.needs[0].labels if label in shown]
        assert len(shown) >= len(artefact.needs[0].labels) - 1
        assert [table.name for table in made.tables[1:]] or artefact.published


def test_artefacts_of_no_training_are_made(study, monkeypatch):
    descents, convergence = descent_bounds.table(repeats=1), submodel_bounds.convergence((2, 4))
    monkeypatch.setattr(descent_bounds, "table", lambda: descents)
    monkeypatch.setattr(submodel_bounds, "convergence", lambda: convergence)
    for name in ("fedce-theorem3.2", "fedce-theorem3.3", "fedsac-theorem2", "cgsv-table4"):
        ours = ARTEFACTS[name].make(study, ARTEFACTS[name]).tables[0]
        assert ours.name == ARTEFACTS[name].name
        assert len(ours.frame) >= 2
    for name, number in (("cycle-figure6", 1), ("cycle-figure7", 2)):
        drawings = ARTEFACTS[name].make(study, ARTEFACTS[name]).drawn
        assert len(drawings) == number
        for drawn in drawings:
            assert len(drawn.numbers) >= 10
            assert drawn.figure.axes
