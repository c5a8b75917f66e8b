"""The numbers that papers printed: whole tables of numbers that agree with each other."""

import math

import numpy as np
import pandas as pd
import pytest

from fedmerit.methods.registry import METHODS
from fedmerit_evaluation.fairness.measures import euclidean, pearson
from fedmerit_lab.papers.artefact import Published, names, published


@pytest.mark.parametrize("name", names())
def test_a_printed_table_is_a_whole_table_of_numbers(name):
    printed = published(name)
    table = printed.table(name)
    rows, columns = printed.cells.shape
    assert rows == table.shape[0] == table.frame[printed.first].nunique() >= 2
    assert columns <= table.shape[1] == len(set(table.headings))
    assert table.headings[0] == printed.first
    assert all(table.is_number(place) for place in range(1, table.shape[1]))
    assert table.frame.iloc[:, 1:].notna().any().all()
    assert table.caption == f"{printed.where} of the paper: {printed.what}"
    if printed.first == "Method":
        assert {label.split(":")[0] for label in table.frame["Method"]} <= set(METHODS)


def test_groups_stand_as_printed():
    assert published("fedce-table2").groups == ["retinal fundus", "prostate MRI"]
    assert published("fedce-table4").groups == [""]
    assert published("cgsv-table5").groups == ["MNIST, 5 agents", "CIFAR-10, 5 agents"]
    assert published("cycle-table7").first == "Labels"
    assert published("cgsv-table1").of("MR, 5 agents").headings == ["Method", "POW", "POW, highest"]


@pytest.mark.parametrize("task", ["fundus", "prostate"])
def test_means_and_deviations_of_the_paper_follow_from_its_clients(task):
    printed = published(f"fedce-table6-{task}")
    frame = printed.table("table").frame
    clients = frame.filter(regex=r"^\d").to_numpy(float)
    (group,) = printed.groups
    assert np.abs(clients.mean(axis=1) - frame[f"Avg., {group}"]).max() < 0.011
    assert np.abs(clients.std(axis=1, ddof=1) - frame[f"Std., {group}"]).max() < 0.011


def test_what_the_remark_on_table_2_says_of_the_paper():
    frame = published("fedce-table6-prostate").of("prostate MRI").frame.set_index("Method").filter(regex=r"^\d")
    alone, fedce = (frame.loc[name].to_numpy(float) for name in ("standalone", "fedce"))
    assert float(pearson(alone, fedce)) == pytest.approx(86.0, abs=0.05)
    assert float(euclidean(alone, fedce)) == pytest.approx(2.95, abs=0.005)


def test_drops_and_shares_of_the_papers_leave_one_out():
    for name, columns in (
        ("fedce-table4", ["Drop, disc [points]", "Drop, cup [points]"]),
        ("fedce-table5", ["Drop [points]"]),
    ):
        frame = published(name).of("").frame.set_index("Client")
        for drop in columns:
            without = frame[drop.replace("Drop", "Dice without it").replace("points", "%")]
            away = without["nobody out"] - without.drop("nobody out") - frame[drop].drop("nobody out")
            assert away.abs().max() < 0.0101
        images = frame["Training images"].drop("nobody out")
        said = frame["Sample contribution [%]"].drop("nobody out")
        assert (100 * images / images.sum() - said).abs().max() < 0.02


@pytest.mark.parametrize("name", [f"cycle-table{name}" for name in ("1-resnet", "1-cnn", "2", "3", "4", "5")])
def test_accuracies_less_gains_are_those_of_training_alone_whatever_the_method(name):
    printed = published(name)
    for group in printed.groups:
        frame = printed.of(group).frame
        alone = frame["MVA [%]"] - frame["MCG [points]"]
        assert alone.max() - alone.min() < (0.15 if name == "cycle-table2" else 0.05)


@pytest.mark.parametrize(("table", "by_site"), [("1-resnet", "9-resnet"), ("1-cnn", "9-cnn"), ("4", "6")])
def test_cycles_spreads_are_by_n_and_not_by_n_minus_1(table, by_site):
    means, sites = published(f"cycle-table{table}"), published(f"cycle-table{by_site}")
    for group in means.groups:
        accuracy = sites.of(group).frame.set_index("Method")
        printed = means.of(group).frame.set_index("Method")
        if (table, group) == ("1-resnet", "Homogeneous") or (table, group) == ("1-resnet", "Dirichlet (0.5)"):
            printed = printed.drop(index="cycle")  # of other numbers than its Table 9
        gains = accuracy.loc[printed.index] - accuracy.loc["standalone"]
        assert (accuracy.loc[printed.index].mean(axis=1) - printed["MVA [%]"]).abs().max() < 0.02
        assert (gains.mean(axis=1) - printed["MCG [points]"]).abs().max() < 0.02
        assert (gains.std(axis=1, ddof=0) - printed["CGS [points]"]).abs().max() < 0.02


def test_fedsac_prints_itself_alike_in_two_tables():
    for first, second in (("1", "3"), ("2", "4")):
        tables = [published(f"fedsac-table{name}").table("t").frame.set_index("Method") for name in (first, second)]
        assert tables[0].loc["fedsac"].to_list() == tables[1].loc["fedsac"].to_list()


def test_means_of_the_honest_follow_from_the_participants():
    for name, honest, mean in (
        ("cycle-table7", 4, "Mean of the others"),
        ("cycle-table8", 3, "Mean of the first three"),
    ):
        frame = published(name).of("").frame
        assert (frame[[str(place + 1) for place in range(honest)]].mean(axis=1) - frame[mean]).abs().max() < 0.3


def test_a_cell_is_a_number_a_deviation_or_a_mean_with_the_highest():
    cells = [["fedavg", "1.5±0.2", "", "91(92)"], ["cgsv", "-2e-1", "3", "4"]]
    printed = Published("Table 0", "x", pd.DataFrame(cells, columns=["Method", "A | one", "B | one", "A | two"]))
    table = printed.table("t")
    assert table.headings == ["Method", "A, one", "B, one", "A, two", "A, two, highest"]
    expected = [[1.5, math.nan, 91, 92], [-0.2, 3, 4, math.nan]]
    assert table.frame.iloc[:, 1:].to_numpy(float) == pytest.approx(np.array(expected), nan_ok=True)
    assert table.spread.iloc[0, 1:].to_list() == pytest.approx([0.2, *[math.nan] * 3], nan_ok=True)
    assert printed.table("t", ["two"]).headings == ["Method", "A, two", "A, two, highest"]
    wrong = Published("Table 0", "x", pd.DataFrame([["fedavg", "nine"]], columns=["Method", "A | one"]))
    with pytest.raises(ValueError, match="cell 'nine' of a published table is no number"):
        wrong.table("t")
