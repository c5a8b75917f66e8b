"""Artefacts of papers, of made-up runs."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from one_in import one_in
from run_factory import SITES, add_rows, make_run

from evaluation.display.table import Table
from evaluation.fairness.measures import pearson
from evaluation.freeriders.attacked_runs import Attack
from evaluation.papers import cgsv_artefacts, descent_bounds, submodel_bounds
from evaluation.papers.artefact import APART, BY_ALONE, beside
from evaluation.papers.dealt_sites import alone_and_final, reputations, site_dice_of
from evaluation.papers.needs import Compared, WrongMasks
from evaluation.papers.printed_tables import Published
from evaluation.papers.production import PAPERS
from evaluation.papers.study import Deal, Study
from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS
from fedmerit.records.results import Row, read_results

ARTEFACTS = {f"{name}-{one.name}": one for name, paper in PAPERS.items() for one in paper.artefacts}


@dataclass(frozen=True)
class Made_up:
    """A finished training that nobody trained."""

    label: str
    seed: int
    folder: Path
    finished: bool = True


def made_up_run(folder, label, seed, names=SITES):
    """Every row that a paper's artefact reads, beside those of `make_run`."""
    method, *settings = label.split(":")
    parameters = dict(setting.split("=") for setting in settings if not (APART + BY_ALONE).count(f":{setting}"))
    make_run(folder, method=method, seed=seed, sites=names, rounds=4, parameters=parameters)
    random = np.random.default_rng([seed, *label.encode()])
    head = (folder.name, method, seed)
    rows = []
    for place, site in enumerate(names):
        for number in range(4):
            rows.append(Row(*head, number, site, "cosine_to_mean", float(random.uniform(0.1, 1))))
            rows.append(Row(*head, number, site, "quota", 0.5 + 0.1 * place))
            rows.append(Row(*head, number, site, "server_seconds", 1.0 + 0.5 * (method == "eci")))
            rows += [
                Row(*head, number, site, f"{what}_distance", 0.1 * place) for what in ("model", "output", "reward")
            ]
            rows.append(Row(*head, number, site, "held", 0.2 * place))
        if method == "cycle":
            held = [(number, holder) for number in range(1, 4) for holder in names if holder != site]
            rows += [
                Row(*head, number, site, "peer_reputation", 0.2 * place + 0.01 * number, coalition=holder)
                for number, holder in held
            ]
        level = (
            0.7
            if METHODS[method].about.download == "global model" and not label.endswith(APART)
            else 0.5 + 0.05 * place + random.uniform(0, 0.02)
        )
        for tester in names:
            for case in range(2):
                rows.append(Row(*head, 3, site, "dice", level, "union", f"{tester}/{case:03d}", "prostate"))
    add_rows(folder, rows)


@pytest.fixture
def study(sites, tmp_path, monkeypatch):
    """A study whose comparisons are made up."""
    study = Study(tmp_path / "out", sites, 4, [0, 1], into=5)
    study.has_server_set = True
    study.sites_of = lambda deal: sites
    losses = pd.Series([0.5, 0.4, 0.3, 0.2, 0.1], [f"site-{number}" for number in range(1, 6)])
    monkeypatch.setattr(cgsv_artefacts, "final_losses", lambda run, sites: losses)
    return study


@pytest.fixture(scope="session")
def made_up(tmp_path_factory):
    """What gives the folder of a made-up run, the same for every way of dealing; each is made once."""
    out = tmp_path_factory.mktemp("made-up")

    def folder_of(label, seed, names):
        folder = out / str(len(names)) / f"{label}-{seed}"
        if not folder.exists():
            made_up_run(folder, label, seed, names)
        return folder

    return folder_of


@pytest.fixture
def pretend(made_up):
    """What gives every comparison that an artefact needs its runs."""

    def given(study, artefact):
        for need in (one for one in artefact.needs if isinstance(one, Compared)):
            names = SITES if need.deal is None else [f"site-{number}" for number in range(1, 6)]
            study.trainings[need] = [
                Made_up(label, seed, made_up(label, seed, names)) for label in need.labels for seed in study.seeds
            ]

    return given


def test_table_1_stands_beside_the_papers_means(study, pretend):
    artefact = ARTEFACTS["fedce-table1"]
    pretend(study, artefact)
    ours, *theirs = artefact.make(study, artefact).tables
    assert ours.headings == ["Method", *SITES, "Avg.", "Std."] + [
        f"{what}, {task}" for task in ("retinal fundus", "prostate MRI") for what in ("Avg.", "Std.")
    ]
    row = ours.frame.set_index("Method").loc["fedce:combine=plus"]
    assert row[["Avg., retinal fundus", "Avg., prostate MRI"]].to_list() == [82.92, 88.22]
    assert row["Avg."] == pytest.approx(row[list(SITES)].mean())
    assert [table.name for table in theirs] == ["table1-published-1", "table1-published-2"]


def test_the_site_with_wrong_masks_stands_apart(study, tmp_path, pretend):
    artefact = ARTEFACTS["cycle-table7"]
    pretend(study, artefact)
    (need,) = (need for need in artefact.needs if isinstance(need, WrongMasks))
    names = [f"site-{number}" for number in range(1, 6)]
    attacks = []
    for kind in ("honest", *need.kinds):
        folder = tmp_path / kind
        made_up_run(folder, "cycle", 0, names)
        attacks.append(Attack("cycle", kind, "" if kind == "honest" else "site-5", 0, folder))
    for attack in attacks:
        torch.save({"round": 99}, attack.folder / "checkpoint.pt")
    study.trainings[need] = attacks
    ours, theirs = artefact.make(study, artefact).tables
    frame = ours.frame.set_index("Masks")
    assert list(frame.index) == ["standalone", "honest", *(kind.replace(":share=", ", ") for kind in need.kinds)]
    row = frame.loc["honest"]
    assert row["Mean of the others"] == pytest.approx(row[names[:-1]].mean())
    assert row["Reputation of site-5"] == pytest.approx(0.8 + 0.03)
    assert row["Reputation of the others"] == pytest.approx(0.3 + 0.03)
    assert math.isnan(frame.loc["standalone", "Reputation of site-5"])
    assert theirs.frame.loc[4, "5"] == 10.75
    maps = ARTEFACTS["cycle-figure5"]
    (drawn,) = maps.make(study, maps).drawn
    assert len([panel for panel in drawn.figure.axes if panel.images]) == 3 * (1 + len(need.kinds))


def test_methods_by_training_alone_stand_beside_the_papers(study, pretend):
    artefact = ARTEFACTS["fedsac-table6"]
    artefact = replace(artefact, needs=artefact.needs[:1])
    pretend(study, artefact)
    frame = artefact.make(study, artefact).tables[0].frame.set_index("Method")
    assert list(frame.columns) == ["POW, 20 sites", "POW, 20 sites, CIFAR-10", "POW, 20 sites, Fashion MNIST"]
    assert frame.loc["cgsv:contributions=standalone"].iloc[1:].to_list() == [46.29, 87.21]
    assert frame.loc["fedsac"].iloc[1:].to_list() == [48.60, 87.60]


def test_theorem_1_of_fedsac_is_asked_of_its_runs(study, monkeypatch, pretend):
    """Reputations and what is held both rise with a site's place; Dice does in the mean."""
    monkeypatch.setattr(submodel_bounds, "orders", lambda: pd.DataFrame({"L / mu": [1.0], "Pairs": [2]}))
    artefact = ARTEFACTS["fedsac-theorem1"]
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


def test_figure_5_compares_renormalised_weights(study, tmp_path, pretend):
    artefact = ARTEFACTS["fedce-figure5"]
    pretend(study, artefact)
    fewer = []
    for left_out in SITES:
        rest = [site for site in SITES if site != left_out]
        folder = tmp_path / f"without-{left_out}"
        made_up_run(folder, "fedce", 0, rest)
        fewer.append(coalition(frozenset(rest), folder))
    study.trainings[artefact.needs[1]] = fewer
    made = artefact.make(study, artefact)
    frame = made.tables[0].frame
    assert frame.groupby("Without")[["Share with all [%]", "Share without it [%]"]].sum().to_numpy() == pytest.approx(
        np.full((4, 2), 100.0)
    )
    assert (frame["Without"] != frame["Site"]).all()
    runs = [read_results(one.folder) for one in study.trainings[artefact.needs[0]]]
    weights = [run[(run["quantity"] == "weight") & (run["round"] == 3)].set_index("site")["value"] for run in runs]
    mean = (weights[0] + weights[1]) / 2
    row = frame[(frame["Without"] == "Alder") & (frame["Site"] == "Birch")].iloc[0]
    assert row["Share with all [%]"] == pytest.approx(100 * mean["Birch"] / mean.drop("Alder").sum())


def coalition(members, folder):
    made = Made_up("fedce", 0, folder)
    object.__setattr__(made, "coalition", members)
    return made
