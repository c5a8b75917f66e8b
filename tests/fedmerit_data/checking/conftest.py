import shutil
from pathlib import Path

import pytest
from site_folders import TASKS, write_site


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    root = tmp_path_factory.mktemp("hospital-share")
    for task in TASKS:
        for seed, site in enumerate(("HK", "UCL")):
            write_site(root / task / site, task, seed)
    return root


@pytest.fixture
def sites(clean, tmp_path, request):
    task = getattr(request, "param", "prostate")
    return Path(shutil.copytree(clean / task, tmp_path / "hospital-share" / task))
