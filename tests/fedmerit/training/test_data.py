"""Site folders: what a site may be called."""

import json
import shutil

import pytest

from fedmerit.errors import BadInput
from fedmerit.training.data import SiteFolder


@pytest.mark.parametrize("name", ["=1+1", "+A", "-B", "@C", "", "a\x1b[2J", "a\nb", "a" * 101, 7, None])
def test_names_that_tables_or_terminals_would_compute(sites, tmp_path, name):
    folder = shutil.copytree(sites / "site1", tmp_path / "site1")
    info = json.loads((folder / "site.json").read_text())
    (folder / "site.json").write_text(json.dumps(info | {"name": name}))
    with pytest.raises(BadInput, match=r"site\.json: the site's name is"):
        SiteFolder(folder)


@pytest.mark.parametrize("name", ["A$x_{$", "Universitätsklinikum 2", "I2CVB", "a-b"])
def test_other_names_may_be(sites, tmp_path, name):
    folder = shutil.copytree(sites / "site1", tmp_path / "site1")
    info = json.loads((folder / "site.json").read_text())
    (folder / "site.json").write_text(json.dumps(info | {"name": name}))
    assert SiteFolder(folder).name == name
