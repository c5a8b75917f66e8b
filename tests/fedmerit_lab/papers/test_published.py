"""The numbers that papers printed: complete tables that are consistent, and how they are added to ours."""

import math
from importlib.resources import files

import numpy as np
import pandas as pd
import pytest

from fedmerit.methods.registry import METHODS
from fedmerit_evaluation.figures.tables import Table
from fedmerit_lab.papers.artefact import KEEP_OWN, Published, beside, printed, published


def table_of(cells, columns, where="Table 0"):
    return Published(where, "x", pd.DataFrame(cells, columns=columns))


def test_columns_are_added_by_method_and_heading():
    labels = ["cgsv", "fedce", f"fedavg{KEEP_OWN}"]
    ours = Table("t", "ours", pd.DataFrame({"Method": labels, "A": [1.0, 2.0, 3.0], "C": [0.0] * 3}))
    theirs = table_of(
        [["fedavg", "7", "8", "9"], ["cgsv", "5±1", "6", "4"]], ["Method", "A | one", "B | one", "A | two"]
    )
    table = beside(ours, theirs, ["one"])
    assert table.headings == ["Method", "A", "C", "A, one"]
    assert table.frame["A, one"].to_list() == pytest.approx([5, math.nan, 7], nan_ok=True)
    assert [table.cell(0, place) for place in range(4)] == ["cgsv", "1.000", "0.000", "5.000 ± 1.000"]
    assert table.caption == "ours; with Table 0 of the paper"
    assert ours.headings == ["Method", "A", "C"]


def test_several_printed_tables_are_numbered():
    groups = (("Table 1", "small"), ("Table 2", "large"))
    one, two = (table_of([["fedavg", "7"]], ["Method", f"A | {group}"], where) for where, group in groups)
    assert [table.name for table in printed("table9", [one])] == ["table9-published"]
    assert [table.name for table in printed("table9", [one, two])] == ["table9-published-1", "table9-published-2"]
    (chosen,) = printed("table9", [one, two], lambda group: group == "large")
    assert (chosen.name, chosen.headings) == ("table9-published-2", ["Method", "A, large"])


def test_a_cell_is_a_number_a_deviation_or_a_mean_with_the_highest():
    cells = [["fedavg", "1.5±0.2", "", "91(92)"], ["cgsv", "-2e-1", "3", "4"]]
    found = table_of(cells, ["Method", "A | one", "B | one", "A | two"])
    table = found.table("t")
    assert table.headings == ["Method", "A, one", "B, one", "A, two", "A, two, highest"]
    expected = [[1.5, math.nan, 91, 92], [-0.2, 3, 4, math.nan]]
    assert table.frame.iloc[:, 1:].to_numpy(float) == pytest.approx(np.array(expected), nan_ok=True)
    assert table.spread.iloc[0, 1:].to_list() == pytest.approx([0.2, *[math.nan] * 3], nan_ok=True)
    assert found.table("t", ["two"]).headings == ["Method", "A, two", "A, two, highest"]
    with pytest.raises(ValueError, match="cell 'nine' of a published table is not a number"):
        table_of([["fedavg", "nine"]], ["Method", "A | one"]).table("t")


FILES = [file.name for file in (files("fedmerit_lab.papers") / "printed").iterdir() if file.name.endswith(".csv")]


@pytest.mark.parametrize("name", sorted(name.removesuffix(".csv") for name in FILES if name != "captions.csv"))
def test_a_printed_table_is_complete(name):
    found = published(name)
    table = found.table(name)
    rows, columns = found.cells.shape
    assert rows == table.shape[0] == table.frame[found.first].nunique() >= 2
    assert columns <= table.shape[1] == len(set(table.headings))
    assert table.headings[0] == found.first
    assert all(table.is_number(place) for place in range(1, table.shape[1]))
    assert table.frame.iloc[:, 1:].notna().any().all()
    assert table.caption == f"{found.where} of the paper: {found.what}"
    if found.first == "Method":
        assert {label.split(":")[0] for label in table.frame["Method"]} <= set(METHODS)


@pytest.mark.parametrize("task", ["fundus", "prostate"])
def test_means_and_deviations_of_fedce_follow_from_its_clients(task):
    found = published(f"fedce-table6-{task}")
    frame = found.table("table").frame
    clients = frame.filter(regex=r"^\d").to_numpy(float)
    (group,) = found.groups
    assert np.abs(clients.mean(axis=1) - frame[f"Avg., {group}"]).max() < 0.011
    assert np.abs(clients.std(axis=1, ddof=1) - frame[f"Std., {group}"]).max() < 0.011


@pytest.mark.parametrize("name", [f"cycle-table{name}" for name in ("1-resnet", "1-cnn", "2", "3", "4", "5")])
def test_accuracy_minus_gain_of_cycle_is_that_of_local_only_training_for_every_method(name):
    found = published(name)
    for group in found.groups:
        frame = found.group(group).frame
        local_only = frame["MVA [%]"] - frame["MCG [points]"]
        assert local_only.max() - local_only.min() < (0.15 if name == "cycle-table2" else 0.05)


@pytest.mark.parametrize(("table", "by_site"), [("1-resnet", "9-resnet"), ("1-cnn", "9-cnn"), ("4", "6")])
def test_spreads_of_cycle_are_by_n_and_not_by_n_minus_1(table, by_site):
    means, sites = published(f"cycle-table{table}"), published(f"cycle-table{by_site}")
    for group in means.groups:
        accuracy = sites.group(group).frame.set_index("Method")
        found = means.group(group).frame.set_index("Method")
        if table == "1-resnet" and group in ("Homogeneous", "Dirichlet (0.5)"):
            found = found.drop(index="cycle")  # of other numbers than its Table 9
        gains = accuracy.loc[found.index] - accuracy.loc["standalone"]
        assert (accuracy.loc[found.index].mean(axis=1) - found["MVA [%]"]).abs().max() < 0.02
        assert (gains.mean(axis=1) - found["MCG [points]"]).abs().max() < 0.02
        assert (gains.std(axis=1, ddof=0) - found["CGS [points]"]).abs().max() < 0.02
