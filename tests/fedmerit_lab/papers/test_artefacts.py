"""Tables and figures of CGSV, FedAVE, FedCE and FedSAC, of synthetic runs."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from attack_study import make_study
from paper_runs import SyntheticTraining, artefact_of, write_paper_run
from run_factory import SITES

from fedmerit.schema.results import read_results
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.papers import cgsv, fedce
from fedmerit_lab.papers.artefact import KEEP_OWN
from fedmerit_lab.papers.fedave_fedsac import FEDAVE, FEDSAC
from fedmerit_lab.papers.partitioned_sites import partitioned_needs

CGSV, FEDCE = cgsv.PAPER, fedce.PAPER

# CGSV


def test_the_papers_columns_are_those_of_as_many_agents(study, make):
    artefact = artefact_of(CGSV, "table1")
    headings = make(artefact).tables[0].headings
    found = [name for name in headings if "agents" in name and "MNIST" in name and "10" not in name]
    both = [(name, f"{name}, highest") for name in ("UNI", "POW", "CLA")]
    assert found == [f"{name}, MNIST, 5 agents" for names in both for name in names]
    study.into = 7
    tables = make(artefact).tables
    assert [table.name for table in tables] == ["table1"]  # the paper has no such table
    assert not [name for name in tables[0].headings if "agents" in name]


def test_the_overhead_is_over_local_only_training(make):
    frame = make(artefact_of(CGSV, "table3")).tables[0].frame.set_index("Method")
    assert frame.loc["standalone", "Overhead [s]"] == frame.loc["fedavg", "Overhead [s]"] == 1  # of the server
    assert frame.loc["fedavg", "Sites [s]"] == 22.5  # they take 2.5 to 6.5
    assert frame.loc["eci", ["Server [s]", "Overhead [s]"]].to_list() == [1.5, 1.5]
    assert frame.loc["eci", "Ratio to training"] == pytest.approx(1.5 / 22.5)


def test_several_quantities_are_several_figures(make):
    drawn = make(artefact_of(CGSV, "figure2")).drawn
    assert [one.name for one in drawn] == ["figure2-model-distance", "figure2-train-loss"]


def test_the_preset_trains_as_the_paper_does_on_cifar_10(study):
    artefact = artefact_of(CGSV, "table4")
    ours, theirs = artefact.make(study, artefact).tables
    numbers = ["B", "Step size x 1000", "Decay [%]", "T"]
    preset = ours.frame.set_index("Training").loc["--preset paper"]
    assert preset[numbers].to_list() == theirs.frame.set_index("Data").loc["CIFAR-10", numbers].to_list()
    assert preset[numbers].to_list() == pytest.approx([128, 15, 97.7, 200])


@pytest.mark.parametrize("name", ["table2", "table3", "table4"])
def test_partitions_and_methods_are_those_of_the_printed_table(name):
    artefact = artefact_of(FEDAVE, name)
    (printed,) = artefact.published
    for group in printed.groups:
        table = printed.group(group)
        assert table.headings[1:] == [need.where.heading for need in partitioned_needs(artefact)]
        for need in partitioned_needs(artefact):
            labels = [label.removesuffix(KEEP_OWN) for label in need.labels]
            assert [label for label in labels if label in set(table.frame["Method"])] == table.frame["Method"].to_list()
            assert set(labels) - set(table.frame["Method"]) <= {"standalone"}


def test_the_papers_numbers_are_added_by_parameters(make):
    frame = make(artefact_of(FEDAVE, "table4")).tables[0].frame.set_index("Method")
    assert frame.loc["fedave:distributions=quota", "DIR(0.2), MNIST"] == 67.08
    assert frame.loc["fedave", "DIR(0.2), MNIST"] == 84.22
    artefact = artefact_of(FEDSAC, "table6")
    frame = make(replace(artefact, needs=artefact.needs[:1])).tables[0].frame.set_index("Method")
    assert list(frame.columns) == ["POW, 20 sites", "POW, 20 sites, CIFAR-10", "POW, 20 sites, Fashion MNIST"]
    assert frame.loc["cgsv"].iloc[1:].to_list() == [46.29, 87.21]
    assert frame.loc["fedsac"].iloc[1:].to_list() == [48.60, 87.60]


def test_table_1_has_the_papers_means(make):
    ours, *theirs = make(artefact_of(FEDCE, "table1")).tables
    assert ours.headings == ["Method", *SITES, "Avg.", "Std."] + [
        f"{what}, {task}" for task in ("retinal fundus", "prostate MRI") for what in ("Avg.", "Std.")
    ]
    row = ours.frame.set_index("Method").loc["fedce:combine=plus"]
    assert row[["Avg., retinal fundus", "Avg., prostate MRI"]].to_list() == [82.92, 88.22]
    assert row["Avg."] == pytest.approx(row[list(SITES)].mean())
    assert [table.name for table in theirs] == ["table1-published-1", "table1-published-2"]


def test_figure_5_compares_renormalised_weights(study, tmp_path, make):
    artefact, fewer = artefact_of(FEDCE, "figure5"), []
    for left_out in SITES:
        rest = [site for site in SITES if site != left_out]
        write_paper_run(tmp_path / f"without-{left_out}", "fedce", 0, rest)
        training = SyntheticTraining("fedce", 0, tmp_path / f"without-{left_out}")
        object.__setattr__(training, "coalition", frozenset(rest))
        fewer.append(training)
    study.trainings[artefact.needs[1]] = fewer
    made = make(artefact)
    frame = made.tables[0].frame
    sums = frame.groupby("Without")[["Share with all [%]", "Share without it [%]"]].sum()
    assert sums.to_numpy() == pytest.approx(np.full((4, 2), 100.0))
    assert (frame["Without"] != frame["Site"]).all()
    runs = [read_results(one.folder) for one in study.trainings[artefact.needs[0]]]
    weights = [run[(run["quantity"] == "weight") & (run["round"] == 3)].set_index("site")["value"] for run in runs]
    mean = (weights[0] + weights[1]) / 2
    row = frame[(frame["Without"] == "Alder") & (frame["Site"] == "Birch")].iloc[0]
    assert row["Share with all [%]"] == pytest.approx(100 * mean["Birch"] / mean.drop("Alder").sum())
    assert [panel.axison for panel in made.drawn[0].figure.axes] == [True] * 4 + [False] * 2


def test_figures_4_and_7_show_each_free_rider_in_turn():
    attacks, results = make_study()
    riding = [one for one in attacks if one.kind in ("zero", "honest")]
    of_them = Results(results.rows[results.rows["run"].isin([one.folder.name for one in riding])])
    study = SimpleNamespace(trainings={fedce.FREE_RIDING: riding}, results=lambda need: of_them)
    heat, lines = (
        artefact_of(FEDCE, name).make(study, artefact_of(FEDCE, name)).drawn[0] for name in ("figure4", "figure7")
    )
    panels = heat.figure.axes[:6]
    assert [panel.get_title(loc="left") for panel in panels] == [f"Round {round}" for round in (0, 2, 4, 7, 9, 11)]
    assert [text.get_text() for text in panels[5].texts] == ["0.14", "0.00", "0.00", "0.00", "0.14", "0.00"]
    assert [panel.get_title(loc="left") for panel in lines.figure.axes] == ["A attacks", "B attacks"]
