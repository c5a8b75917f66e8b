"""Site folders: what a site may be called, and threads that read arrays."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedmerit.errors import BadInput
from fedmerit.training.data import SiteFolder, load_array


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


def test_no_two_threads_parse_a_header_at_once(monkeypatch, tmp_path):
    """Of sites side by side: NumPy parses it by `ast`, in which threads spoil each other before CPython 3.11.8."""
    np.save(tmp_path / "array.npy", np.arange(6, dtype=np.float32))
    load, inside, most = np.load, [], []

    def slowly(*arguments, **options):
        inside.append(None)
        most.append(len(inside))
        time.sleep(0.005)
        inside.pop()
        return load(*arguments, **options)

    monkeypatch.setattr(np, "load", slowly)
    with ThreadPoolExecutor(4) as threads:
        arrays = list(threads.map(load_array, [tmp_path / "array.npy"] * 8))
    assert most == [1] * 8
    assert all(array.tolist() == [0, 1, 2, 3, 4, 5] for array in arrays)
