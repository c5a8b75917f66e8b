"""Tiny site folders for the tests of free riders."""

from pathlib import Path

import pytest
from run_factory import make_sites


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites of a few patients: never change them."""
    return make_sites(tmp_path_factory.mktemp("riders") / "sites", ("site1", "site2", "site3"), size=16)
