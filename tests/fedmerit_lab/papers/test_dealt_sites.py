"""Tables and lines of sites dealt anew: correlations, reputations and orders by hand."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from dealt_results import study_of
from paper_runs import artefact_of

from fedmerit.errors import BadInput
from fedmerit_lab.papers import cgsv_artefacts, fedave_artefacts
from fedmerit_lab.papers.artefact import Artefact, Made
from fedmerit_lab.papers.partitioned_sites import (
    accuracies,
    agents,
    apart,
    bars,
    fairness,
    highest_dice,
    lines,
    local_only_and_final,
    needs,
    pairs_in_order,
    parameters_of,
    reputations,
    site_dice,
)
from fedmerit_lab.papers.required_trainings import Compared
from fedmerit_lab.papers.study import Partition

POW, CLA = Partition("POW", "powerlaw"), Partition("CLA", "variety")
TWO_SEEDS = {("standalone", 0): [0.5, 0.6, 0.8], ("cgsv", 0): [0.6, 0.7, 0.8], ("cgsv", 1): [0.7, 0.9, 0.8]}


def compared(labels, deals=(POW,), **changes):
    return Artefact("table0", "Numbers", lambda study, artefact: Made(), needs(labels, deals), **changes)


def test_correlations_over_dealt_sites_by_hand(study, pretend):
    artefact = artefact_of(fedave_artefacts.PAPER, "table2")
    pretend(study, artefact)
    ours = artefact.make(study, artefact).tables[0]
    results = study.results(artefact.needs[0]).rows
    rows = results[(results["split"] == "union") & (results["quantity"] == "dice")].astype({"method": str})
    dice = rows.groupby(["method", "seed", "site"])["value"].mean().unstack("site")
    by_hand = [100 * np.corrcoef(dice.loc["standalone", seed], dice.loc["fedave", seed])[0, 1] for seed in (0, 1)]
    cells = ours.frame.set_index("Method")
    assert cells.loc["fedave", "POW"] == pytest.approx(np.mean(by_hand))
    assert math.isfinite(cells.loc["fedavg:last_round=own", "POW"])
    assert math.isfinite(cells.loc["fedavg:last_round=own", "POW, MNIST"])  # the paper's fedavg
    assert cells.loc["fedave", "POW, MNIST"] == 97.59
    assert "standalone" not in cells.index


def test_reputations_of_any_method_by_hand(study, pretend):
    artefact = artefact_of(cgsv_artefacts.PAPER, "table7")
    pretend(study, artefact)
    results = study.results(artefact.needs[0])
    found = reputations(results)
    results = results.rows
    assert "standalone" not in found.index.get_level_values("method")
    psi = results[(results["method"] == "fedavg") & (results["seed"] == 1) & (results["quantity"] == "cosine_to_mean")]
    table = psi.pivot(index="round", columns="site", values="value")
    memory = np.zeros(5)
    for row in table.to_numpy():
        memory = 0.95 * memory + 0.05 * row
        memory /= memory.sum()
    assert found.loc["fedavg", 1].to_numpy(float) == pytest.approx(memory)
    own = results[(results["method"] == "cgsv") & (results["seed"] == 1) & (results["quantity"] == "reputation")]
    last = own[own["round"] == 3].set_index("site")["value"]
    assert found.loc["cgsv", 1].to_numpy(float) == pytest.approx(last[found.columns].to_numpy())


def test_without_training_alone_there_is_no_fairness(study, pretend):
    need = Compared(("fedave",), Partition("POW", "powerlaw"))
    artefact = replace(artefact_of(fedave_artefacts.PAPER, "table2"), needs=(need,))
    pretend(study, artefact)
    with pytest.raises(BadInput, match="no training alone is finished"):
        local_only_and_final(study.results(need))


def test_the_highest_dice_is_that_of_the_best_site_of_each_run(study, pretend):
    artefact = artefact_of(fedave_artefacts.PAPER, "table3")
    artefact = replace(artefact, needs=artefact.needs[:1])
    pretend(study, artefact)
    ours, theirs = highest_dice(study, artefact).tables
    dice = 100 * site_dice(study.results(artefact.needs[0]))
    best = [max(dice.loc["cgsv", seed]) for seed in (0, 1)]
    row = ours.frame["Method"].to_list().index("cgsv")
    assert ours.frame["POW"][row] == pytest.approx(sum(best) / 2)
    assert ours.spread["POW"][row] == pytest.approx(abs(best[0] - best[1]) / math.sqrt(2))
    assert ours.frame["POW, EMNIST"][row] == 91.6
    assert theirs.name == "table3-published"


def test_pairs_in_order_by_hand():
    """A run of three sites, 3 pairs; in the other two are alike, so 2. Ties of what is good count as no less."""
    index = pd.MultiIndex.from_tuples([("one", 0), ("one", 1)], names=["method", "seed"])
    reputation = pd.DataFrame([[1, 2, 3], [5, 5, 7]], index, ["A", "B", "C"])
    goods = {
        "near": pd.DataFrame([[1, 1, 0], [9, 9, 9]], index, ["A", "B", "C"]),  # B of A; C of A, C of B
        "dice": pd.DataFrame([[3, 2, 1], [1, 3, 2]], index, ["C", "B", "A"]),  # all three; C of B not: 1 below 3
    }
    frame = pairs_in_order(["none", "one"], reputation, goods)
    (row,) = frame.to_dict("records")
    assert (row["Method"], row["Pairs"]) == ("one", 5)
    assert row["near [%]"] == pytest.approx(100 * 3 / 5)
    assert row["dice [%]"] == pytest.approx(100 * 3 / 5)
    assert row["all [%]"] == pytest.approx(100 * 1 / 5)
    with pytest.raises(BadInput, match="no training of none, two is finished"):
        pairs_in_order(["none", "two"], reputation, goods)


def test_labels_say_their_parameters_and_who_keeps_the_last_round():
    assert parameters_of("cycle:tau_opt=0.1:tau_max=0.6") == {"tau_opt": "0.1", "tau_max": "0.6"}
    assert parameters_of("fedavg") == {}
    assert apart(["standalone", "fedavg", "cgsv"]) == ("standalone", "fedavg:last_round=own", "cgsv")


def test_columns_are_of_as_many_agents_as_sites_asked_for(study):
    wanted = agents(study)
    assert [group for group in ("MNIST, 5 agents", "MNIST, 15 agents", "MNIST") if wanted(group)] == ["MNIST, 5 agents"]


def test_lines_are_means_over_seeds_of_a_panel_for_each_deal(study, pretend):
    artefact = replace(
        artefact_of(cgsv_artefacts.PAPER, "figure4"), needs=(Compared(("cgsv",), Partition("POW", "powerlaw")),)
    )
    pretend(study, artefact)
    (drawn,) = lines(train_loss="Training loss")(study, artefact).drawn
    rows = study.results(artefact.needs[0]).rows
    own = rows[(rows["quantity"] == "train_loss") & (rows["round"] == 2) & (rows["site"] == "site-3")]
    line = drawn.numbers[drawn.numbers["round"] == 2].iloc[0]
    assert line["panel"] == "POW"
    assert line["site-3"] == pytest.approx(own["value"].sum() / 2)
    assert len(drawn.numbers) == 4  # rounds
    with pytest.raises(BadInput, match="no run records nothing"):
        lines(nothing="Nothing")(study, artefact)


def test_means_over_sites_and_the_highest_are_means_over_seeds():
    """cgsv's means over sites are 70 and 80, its highest 80 and 90: deviations of two such are 10 / sqrt(2)."""
    study = study_of({"POW": TWO_SEEDS, "CLA": {("cgsv", 0): [0.1, 0.2, 0.3]}}, seeds=(0, 1))
    artefact = compared(("fedavg", "cgsv", "standalone"), (POW, CLA))
    (table,) = accuracies(study, artefact, lambda group: True).tables
    assert table.headings == ["Method", "POW", "POW, highest", "CLA", "CLA, highest"]
    assert table.frame["Method"].to_list() == ["cgsv", "standalone"]  # as the artefact names them, fedavg has none
    assert table.frame.iloc[0, 1:].to_list() == pytest.approx([75, 85, 20, 30])
    assert table.frame.iloc[1, 1:].to_list() == pytest.approx([190 / 3, 80, math.nan, math.nan], nan_ok=True)
    assert table.spread.iloc[0, 1:3].to_list() == pytest.approx([10 / math.sqrt(2)] * 2)
    assert table.cell(0, 2) == "85.00 ± 7.07"
    (alone,) = highest_dice(study, artefact).tables
    assert alone.headings == ["Method", "POW", "CLA"]
    assert alone.frame.iloc[0, 1:].to_list() == pytest.approx([85, 30])


def test_fairness_is_the_correlation_of_every_seed_with_its_own_training_alone():
    """Alone 5, 6, 8 and 3, 2, 1 tenths; what is got is alone's line upwards, then downwards: r of 1 and -1, mean 0."""
    dice = {("standalone", 0): [0.5, 0.6, 0.8], ("standalone", 1): [0.3, 0.2, 0.1]}
    study = study_of({"POW": dice | {("cgsv", 0): [0.6, 0.7, 0.9], ("cgsv", 1): [0.6, 0.7, 0.8]}}, seeds=(0, 1))
    (table,) = fairness(study, compared(("standalone", "cgsv"))).tables
    assert table.frame["Method"].to_list() == ["cgsv"]
    assert table.frame["POW"].to_list() == pytest.approx([0], abs=1e-9)
    assert table.spread["POW"].to_list() == pytest.approx([100 * math.sqrt(2)])


def test_a_site_that_was_absent_counts_as_zero_and_keeps_the_least_reputation():
    """Round 1: (0.05 * 0.4, floor 0.001) is 20 : 1. Round 2: 0.95 of 20 / 21, and 0.95 / 21 + 0.05 * 0.2."""
    cosines = [{("fedavg", 0): [0.4, math.nan]}, {("fedavg", 0): [math.nan, 0.2]}]
    study = study_of({"POW": {("fedavg", 0): [0.5, 0.6]}}, {"cosine_to_mean": cosines, "reputation": []})
    first, second = reputations(study.results(Compared(("fedavg",), POW))).loc["fedavg", 0]
    assert second == pytest.approx((0.95 / 21 + 0.01) / (0.95 + 0.01))
    assert first == pytest.approx(1 - second)


def test_bars_are_a_figure_for_each_deal():
    study = study_of({"POW": TWO_SEEDS, "DIR(0.1)": TWO_SEEDS}, seeds=(0, 1))
    first, second = bars(study, compared(("cgsv",), (POW, Partition("DIR(0.1)", "dirichlet", alpha=0.1)))).drawn
    assert [first.name, second.name] == ["table0-POW", "table0-DIR_0.1"]
    assert first.caption == "Numbers, POW"
    cgsv = first.numbers.set_index("method").loc["cgsv"]
    assert cgsv.to_list() == pytest.approx([65, 80, 80])
