"""Tiny site folders for the tests of detectors."""

import pytest
from run_factory import make_sites


@pytest.fixture(scope="session")
def sites(tmp_path_factory):
    """Three sites of a few patients: never change them."""
    return make_sites(tmp_path_factory.mktemp("detection") / "sites", ("site1", "site2", "site3"), size=16)
