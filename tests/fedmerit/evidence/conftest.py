"""Keys and certificates that tests of signatures share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of "root", an authority, of "server" issued by it, and of "stranger", another authority."""
    from certificates import issue

    folder = tmp_path_factory.mktemp("keys")
    issue(folder, "root")
    issue(folder, "server", "root")
    issue(folder, "stranger")
    return folder
