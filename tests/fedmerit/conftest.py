"""Whole runs that files of tests share, on sites that set images aside for the server."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def two_rounds(trained: Callable[..., Path], server_sites_data: Path) -> Callable[..., Path]:
    """A whole run of two rounds on sites that set images aside: never change it."""
    from rounds import SETTINGS

    def build(method: str, **changes: Any) -> Path:
        settings = (f"{key}={value}" for key, value in SETTINGS.get(method, {}).items())
        return trained(*settings, **{"method": method, "sites": server_sites_data, "rounds": 2, **changes})

    return build


@pytest.fixture(scope="session")
def own_server(server_sites_data: Path) -> Path:
    """A folder with a site folder of the server's own."""
    return server_sites_data.parent / "server"


@pytest.fixture(scope="session")
def contrary_sites(server_sites_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`server_sites_data`, but site3 has half the images and takes for organ what is none: its updates earn little."""
    import numpy as np

    from fedmerit.files import read_json, write_json
    from fedmerit.schema.site_folder import SiteFolder

    root = Path(shutil.copytree(server_sites_data, tmp_path_factory.mktemp("contrary") / "sites"))
    for file in {case.label_file for case in SiteFolder(root / "site3").cases("training")}:
        np.save(file, 1 - np.load(file))
    lists = read_json(root / "site3" / "datalist.json")
    write_json(root / "site3" / "datalist.json", lists | {"training": lists["training"][:1]})
    return root
