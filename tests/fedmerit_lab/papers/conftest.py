"""Tiny site folders for the tests of papers, and studies of synthetic trainings."""

import pytest
from paper_runs import SyntheticTraining, write_paper_run
from run_factory import SITES, make_sites

from fedmerit_lab.papers.study import Compared, Study


@pytest.fixture(scope="session")
def sites(tmp_path_factory):
    """Four sites of a few cases: never change them."""
    return make_sites(tmp_path_factory.mktemp("papers") / "sites", size=16)


@pytest.fixture
def study(sites, tmp_path):
    """A study without trainings."""
    study = Study(tmp_path / "out", sites, 4, [0, 1], into=5)
    study.has_server_set = True
    return study


@pytest.fixture(scope="session")
def paper_run(tmp_path_factory):
    """A function to the folder of a synthetic run, the same for every partition; each is written once."""
    out = tmp_path_factory.mktemp("paper-runs")

    def find(label, seed, names):
        folder = out / str(len(names)) / f"{label}-{seed}"
        if not folder.exists():
            write_paper_run(folder, label, seed, names)
        return folder

    return find


@pytest.fixture
def make(study, paper_run):
    """A function that makes an artefact from synthetic runs of every comparison that it needs."""
    names = [f"site-{number}" for number in range(1, 6)]
    study.open_partition = lambda partition: study.sites

    def make(artefact):
        for need in (one for one in artefact.needs if isinstance(one, Compared)):
            own = SITES if need.partition is None else names
            study.trainings[need] = [
                SyntheticTraining(label, seed, paper_run(label, seed, own))
                for label in need.labels
                for seed in study.seeds
            ]
        return artefact.make(study, artefact)

    return make
