"""Tables and lines of papers that deal one data set into sites, of made-up runs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from evaluation.papers import cgsv_artefacts, fedave_artefacts
from evaluation.papers.dealt_sites import alone_and_final, reputations
from evaluation.papers.needs import Compared
from evaluation.papers.study import Deal
from fedmerit.errors import BadInput

CGSV = {one.name: one for one in cgsv_artefacts.PAPER.artefacts}
FEDAVE = {one.name: one for one in fedave_artefacts.PAPER.artefacts}


def test_correlations_over_dealt_sites_by_hand(study, pretend):
    artefact = FEDAVE["table2"]
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


def test_the_papers_columns_are_those_of_as_many_agents(study, pretend):
    artefact = CGSV["table1"]
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


def test_reputations_of_any_method_by_hand(study, pretend):
    artefact = CGSV["table7"]
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
    need = Compared(("fedave",), Deal("POW", "powerlaw"))
    artefact = replace(FEDAVE["table2"], needs=(need,))
    pretend(study, artefact)
    with pytest.raises(BadInput, match="no training alone is finished"):
        alone_and_final(study.results(need))
