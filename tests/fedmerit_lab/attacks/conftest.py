"""Tiny site folders and a synthetic study for the tests of attacks."""

import pytest
from attack_study import make_study
from run_factory import make_sites


@pytest.fixture(scope="session")
def sites(tmp_path_factory):
    """Three sites of a few patients: never change them."""
    return make_sites(tmp_path_factory.mktemp("attacks") / "sites", ("site1", "site2", "site3"), size=16)


@pytest.fixture
def study():
    """Attacks and results of two seeds: A and B send zeros in turn, and A takes part twice."""
    return make_study()
