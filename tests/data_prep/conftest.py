import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data():
    """Real images where they lie beside the checkout: never part of the project."""
    default = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("FEDMERIT_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real images at {folder} (set FEDMERIT_DATA)")
    return folder
