"""Gains over training alone as CYCle has them: by hand, and alike in its tables and figures."""

from dataclasses import replace

import numpy as np
import pytest
from paper_runs import artefact_of

from fedmerit.errors import BadInput
from fedmerit_lab.papers.cycle_artefacts import PAPER
from fedmerit_lab.papers.partitioned_sites import site_dice


def test_gains_over_training_alone_by_hand(study, pretend):
    artefact = artefact_of(PAPER, "table1")
    pretend(study, artefact)
    ours, *theirs = artefact.make(study, artefact).tables
    dice = site_dice(study.results(artefact.needs[0]))
    gains = [100 * (dice.loc[("cycle", seed)] - dice.loc[("standalone", seed)]) for seed in (0, 1)]
    row = ours.frame.set_index("Method").loc["cycle"]
    assert row["MVA [%], Homogeneous"] == pytest.approx(100 * dice.loc["cycle"].to_numpy().mean())
    assert row["MCG [points], Homogeneous"] == pytest.approx(np.mean([gain.mean() for gain in gains]))
    assert row["CGS [points], Homogeneous"] == pytest.approx(np.mean([gain.std(ddof=1) for gain in gains]))
    assert [table.name for table in theirs] == [f"table1-published-{number}" for number in (1, 2, 3)]
    by_site = artefact_of(PAPER, "table9")
    pretend(study, by_site)
    uni = by_site.make(study, by_site).tables[0].frame.set_index("Method")
    both = sum(gains) / 2
    assert uni.loc["cycle"].drop("Worse off than alone").to_list() == pytest.approx(both.to_list())
    lost = [site for site in both.index if both[site] < 0]
    assert uni.loc["cycle", "Worse off than alone"] == (", ".join(lost) or "nobody")


def test_a_point_of_the_figure_is_a_row_of_the_table(study, pretend):
    table, figure = artefact_of(PAPER, "table1"), artefact_of(PAPER, "figure13")
    two = tuple(replace(need, labels=("standalone", "cycle", "cgsv")) for need in figure.needs[:2])
    pretend(study, replace(table, needs=two))
    rows = table.make(study, replace(table, needs=two)).tables[0].frame.set_index("Method")
    (drawn,) = figure.make(study, replace(figure, needs=two)).drawn
    points = drawn.numbers.set_index(["method", "deal"])
    for method in ("cycle", "cgsv"):
        for deal in ("Homogeneous", "Dirichlet (0.5)"):
            assert points.loc[(method, deal), "MCG"] == rows.loc[method, f"MCG [points], {deal}"]
            assert points.loc[(method, deal), "CGS"] == rows.loc[method, f"CGS [points], {deal}"]
    assert len(points) == 4
    axis = drawn.figure.axes[0]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["cgsv", "cycle"]
    assert len(axis.collections[0].get_offsets()) == 2


def test_a_map_holds_the_gain_of_each_pair_of_parameters(study, pretend):
    artefact = artefact_of(PAPER, "figure14")
    pairs = [(opt, most) for opt in (0.1, 0.25) for most in (0.6, 0.9)]
    labels = ("standalone", *(f"cycle:score=gradients:tau_opt={opt}:tau_max={most}" for opt, most in pairs))
    artefact = replace(artefact, needs=(replace(artefact.needs[0], labels=labels),))
    pretend(study, artefact)
    made = artefact.make(study, artefact)
    numbers = made.drawn[0].numbers.set_index(["tau_opt", "tau_max"])
    dice = site_dice(study.results(artefact.needs[0]))
    of_one = dice.loc["cycle:score=gradients:tau_opt=0.25:tau_max=0.6"] - dice.loc["standalone"]
    assert numbers.loc[(0.25, 0.6), "MCG [points]"] == pytest.approx(100 * of_one.to_numpy(float).mean())
    assert len(numbers) == 4
    nobody = replace(artefact, needs=(replace(artefact.needs[0], labels=("standalone", "fedavg")),))
    pretend(study, nobody)
    with pytest.raises(BadInput, match="no training of cycle is finished"):
        nobody.make(study, nobody)
