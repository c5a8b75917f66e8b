"""What an artefact costs, and how its tables stand beside the paper's."""

import math

import pandas as pd
import pytest

from fedmerit_evaluation.figures.tables import Table
from fedmerit_lab.papers.artefact import BY_LOCAL_ONLY, KEEP_OWN, Artefact, Made, Published, beside, printed
from fedmerit_lab.papers.required_trainings import Compared, WithoutOne


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


def test_a_method_with_another_end_stands_beside_the_papers_of_its_name():
    labels = [f"fedavg{KEEP_OWN}", f"cgsv{BY_LOCAL_ONLY}", "cgsv:beta=2"]
    ours = Table("t", "ours", pd.DataFrame({"Method": labels, "A": [1.0, 2.0, 3.0]}))
    cells = pd.DataFrame([["fedavg", "7", "8"], ["cgsv", "5", "6"]], columns=["Method", "A | one", "A | two"])
    table = beside(ours, Published("Table 0", "x", cells), ["two"])
    assert table.headings == ["Method", "A", "A, two"]
    assert table.frame["A, two"].to_list() == pytest.approx([8, 6, math.nan], nan_ok=True)
    assert table.caption == "ours; beside it Table 0 of the paper"


def test_printed_tables_are_numbered_where_there_are_several():
    one, two = (
        Published(where, "x", pd.DataFrame([["fedavg", "7"]], columns=["Method", f"A | {group}"]))
        for where, group in (("Table 1", "small"), ("Table 2", "large"))
    )
    assert [table.name for table in printed("table9", [one])] == ["table9-published"]
    assert [table.name for table in printed("table9", [one, two])] == ["table9-published-1", "table9-published-2"]
    (chosen,) = printed("table9", [one, two], lambda group: group == "large")
    assert (chosen.name, chosen.headings) == ("table9-published-2", ["Method", "A, large"])


def test_an_artefact_costs_what_its_needs_do():
    needs = (Compared(("fedavg", "fedce")), WithoutOne("fedavg"))
    assert Artefact("table0", "x", lambda study, artefact: Made(), needs).cost == "2 + N + 1"
    assert Artefact("table0", "x", lambda study, artefact: Made()).cost == "0"
