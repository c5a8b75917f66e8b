"""Tiny site folders for the tests of papers."""

from pathlib import Path

import pytest
from run_factory import make_sites


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sites of a few cases: never change them."""
    return make_sites(tmp_path_factory.mktemp("papers") / "sites", size=16)
