"""Tiny site folders for the tests of papers, and studies whose trainings are made up."""

from pathlib import Path

import pandas as pd
import pytest
from paper_runs import Made_up, made_up_run
from run_factory import SITES, make_sites

from fedmerit_lab.papers import cgsv_artefacts
from fedmerit_lab.papers.required_trainings import Compared
from fedmerit_lab.papers.study import Study


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sites of a few cases: never change them."""
    return make_sites(tmp_path_factory.mktemp("papers") / "sites", size=16)


@pytest.fixture
def study(sites, tmp_path):
    """A study of nothing yet."""
    study = Study(tmp_path / "out", sites, 4, [0, 1], into=5)
    study.has_server_set = True
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
def pretend(made_up, monkeypatch):
    """What gives every comparison that an artefact needs its runs, on sites that nobody deals."""
    losses = pd.Series([0.5, 0.4, 0.3, 0.2, 0.1], [f"site-{number}" for number in range(1, 6)])
    monkeypatch.setattr(cgsv_artefacts, "final_losses", lambda run, sites: losses)

    def given(study, artefact):
        study.open_partition = lambda new: study.sites
        for need in (one for one in artefact.needs if isinstance(one, Compared)):
            names = SITES if need.partition is None else [f"site-{number}" for number in range(1, 6)]
            study.trainings[need] = [
                Made_up(label, seed, made_up(label, seed, names)) for label in need.labels for seed in study.seeds
            ]

    return given
