"""Tables and figures of CGSV, of made-up runs."""

import numpy as np
import pytest
from paper_runs import artefact_of

from fedmerit_evaluation.fairness.measures import pearson
from fedmerit_evaluation.studies.cluster import Workers
from fedmerit_lab.papers.cgsv_artefacts import PAPER
from fedmerit_lab.papers.partitioned_sites import site_dice
from fedmerit_lab.papers.production import produce


def test_the_papers_columns_are_those_of_as_many_agents(study, pretend):
    artefact = artefact_of(PAPER, "table1")
    pretend(study, artefact)
    headings = artefact.make(study, artefact).tables[0].headings
    assert [name for name in headings if "agents" in name and "MNIST" in name and "10" not in name] == [
        "UNI, MNIST, 5 agents",
        "UNI, highest, MNIST, 5 agents",
        "POW, MNIST, 5 agents",
        "POW, highest, MNIST, 5 agents",
        "CLA, MNIST, 5 agents",
        "CLA, highest, MNIST, 5 agents",
    ]
    study.into = 7
    tables = artefact.make(study, artefact).tables
    assert [table.name for table in tables] == ["table1"]  # nothing of the paper to stand beside
    assert not [name for name in tables[0].headings if "agents" in name]


def test_the_overhead_is_over_training_alone(study, pretend):
    artefact = artefact_of(PAPER, "table3")
    pretend(study, artefact)
    frame = artefact.make(study, artefact).tables[0].frame.set_index("Method")
    assert frame.loc["standalone", "Overhead [s]"] == frame.loc["fedavg", "Overhead [s]"] == 1  # of the server
    assert frame.loc["fedavg", "Sites [s]"] == 22.5  # they take 2.5 to 6.5
    assert frame.loc["eci", "Server [s]"] == 1.5
    assert frame.loc["eci", "Overhead [s]"] == 1.5
    assert frame.loc["eci", "Ratio to training"] == pytest.approx(1.5 / 22.5)


def test_the_order_of_theorem_2_by_hand(study, pretend):
    """Reputations and distances both rise with a site's place, so that a better one is never nearer."""
    artefact = artefact_of(PAPER, "theorem2")
    pretend(study, artefact)
    frame = artefact.make(study, artefact).tables[0].frame.set_index("Method")
    rows = study.results(artefact.needs[0]).rows
    own = rows[(rows["method"] == "cgsv") & (rows["round"] == 3) & (rows["split"] == "")]
    pairs, lower = 0, 0
    for _, run in own.groupby("seed"):
        table = run.pivot(index="site", columns="quantity", values="value")
        for _, one in table.iterrows():
            for _, other in table.iterrows():
                if one["reputation"] > other["reputation"]:
                    pairs, lower = pairs + 1, lower + (one["train_loss"] <= other["train_loss"])
    assert frame.loc["cgsv", "Pairs"] == pairs > 0
    assert frame.loc["cgsv", "lower loss [%]"] == pytest.approx(100 * lower / pairs)


def test_final_losses_stand_beside_dice(study, pretend):
    artefact = artefact_of(PAPER, "figure8")
    pretend(study, artefact)
    dice, test, train = artefact.make(study, artefact).drawn
    assert [one.name for one in (dice, test, train)] == ["figure8", "figure8-test-loss", "figure8-train-loss"]
    assert test.numbers["method"].to_list() == list(artefact.needs[0].labels)
    assert test.numbers["site-2"].to_list() == [0.4] * 4
    losses = study.results(artefact.needs[0]).rows
    last = losses[(losses["quantity"] == "train_loss") & (losses["round"] == 3) & (losses["site"] == "site-1")]
    means = last.astype({"method": str}).groupby("method")["value"].mean()
    assert train.numbers.set_index("method")["site-1"].to_list() == pytest.approx(
        means[train.numbers["method"]].to_list()
    )


def test_altruism_in_numbers(study, pretend):
    artefact = artefact_of(PAPER, "altruism")
    pretend(study, artefact)
    frame = artefact.make(study, artefact).tables[0].frame
    assert frame["Altruism"].to_list() == ["1", "1.2", "1.5", "2"]
    assert frame["Lowest quota"].to_list() == pytest.approx([0.5] * 4)
    dice = site_dice(study.results(artefact.needs[0]))
    row = dice.loc["cgsv:beta=2"]
    assert frame["Dice, lowest site [%]"].iloc[3] == pytest.approx(100 * row.min(axis=1).mean())
    expected = [pearson(dice.loc["standalone", seed], row.loc[seed]) for seed in (0, 1)]
    assert frame["Pearson with training alone"].iloc[3] == pytest.approx(np.mean(expected))


def test_figure_2_is_two(study, pretend):
    artefact = artefact_of(PAPER, "figure2")
    pretend(study, artefact)
    drawn = artefact.make(study, artefact).drawn
    assert [one.name for one in drawn] == ["figure2-model-distance", "figure2-train-loss"]


@pytest.mark.slow
def test_figure_1_of_cgsv_is_computed_once(study, monkeypatch):
    artefact = artefact_of(PAPER, "figure1")
    cells = [(4, 1024), (6, 1024), (6, 64)]
    monkeypatch.setattr("fedmerit_lab.papers.cgsv_artefacts.approximation.grid", lambda largest: cells)
    made, _ = produce(PAPER, [artefact], study, Workers(1))
    assert not made[0].missing
    first = (study.out / "figures" / "figure1.csv").read_text()
    again, _ = produce(PAPER, [artefact], study, Workers(1))
    assert not again[0].missing
    assert (study.out / "figures" / "figure1.csv").read_text() == first  # its times are those of the first


def test_the_preset_trains_as_the_paper_does_on_cifar_10(study):
    artefact = artefact_of(PAPER, "table4")
    ours, theirs = artefact.make(study, artefact).tables
    numbers = ["B", "Step size x 1000", "Decay [%]", "T"]
    preset = ours.frame.set_index("Training").loc["--preset paper"]
    assert preset[numbers].to_list() == theirs.frame.set_index("Data").loc["CIFAR-10", numbers].to_list()
    assert preset[numbers].to_list() == pytest.approx([128, 15, 97.7, 200])
