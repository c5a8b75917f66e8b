"""Tables of FedSAC, of made-up runs."""

from dataclasses import replace

import pandas as pd
from paper_runs import artefact_of

from fedmerit_lab.papers import submodel_bounds
from fedmerit_lab.papers.fedsac_artefacts import PAPER


def test_methods_by_training_alone_stand_beside_the_papers(study, pretend):
    artefact = artefact_of(PAPER, "table6")
    artefact = replace(artefact, needs=artefact.needs[:1])
    pretend(study, artefact)
    frame = artefact.make(study, artefact).tables[0].frame.set_index("Method")
    assert list(frame.columns) == ["POW, 20 sites", "POW, 20 sites, CIFAR-10", "POW, 20 sites, Fashion MNIST"]
    assert frame.loc["cgsv:contributions=standalone"].iloc[1:].to_list() == [46.29, 87.21]
    assert frame.loc["fedsac"].iloc[1:].to_list() == [48.60, 87.60]


def test_theorem_1_of_fedsac_is_asked_of_its_runs(study, monkeypatch, pretend):
    """Reputations and what is held both rise with a site's place; Dice does in the mean."""
    monkeypatch.setattr(submodel_bounds, "orders", lambda: pd.DataFrame({"L / mu": [1.0], "Pairs": [2]}))
    artefact = artefact_of(PAPER, "theorem1")
    pretend(study, artefact)
    _, trained = artefact.make(study, artefact).tables
    (row,) = trained.frame.to_dict("records")
    assert (row["Method"], row["more neurons [%]"]) == ("fedsac", 100)
    assert 0 < row["Pairs"] <= 20
    assert row["all [%]"] <= min(row["lower loss [%]"], row["higher Dice [%]"])
    study.has_server_set = False
    made = artefact.make(study, artefact)
    assert len(made.tables) == 1
    assert "images set aside" in made.notes[0]
