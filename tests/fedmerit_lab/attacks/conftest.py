"""Tiny site folders and a made-up study for the tests of free riders."""

from pathlib import Path

import pytest
from ridden_study import ridden_study
from run_factory import make_sites

from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.attacked_runs import Attack


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites of a few patients: never change them."""
    return make_sites(tmp_path_factory.mktemp("riders") / "sites", ("site1", "site2", "site3"), size=16)


@pytest.fixture
def study() -> tuple[list[Attack], Results]:
    """Two seeds, A and B ride in turn by zeros; and A stands twice."""
    return ridden_study()
