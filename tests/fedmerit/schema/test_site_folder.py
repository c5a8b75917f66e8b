"""Site folders: what a site may be called, and threads that read arrays."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
from run_factory import prepare_again

from fedmerit.errors import BadInput
from fedmerit.schema.scores import SPLITS
from fedmerit.schema.site_folder import SiteFolder, load_array, open_sites, read_site_digests, require_same_preparation
from fedmerit.trainers.monai.samples import Slices
from fedmerit.trainers.monai.trainer import read_holdings


@pytest.mark.parametrize(
    "name",
    [
        "=1+1", "+A", "-B", "@C", "", "a\x1b[2J", "a\n", "a" * 64, "A=B", "St Mary", "Köln", "a.b", 7, None,
        "Server", "all"
    ],
)  # fmt: skip
def test_names_that_no_engine_takes(sites, tmp_path, name):
    folder = shutil.copytree(sites / "site1", tmp_path / "site1")
    info = json.loads((folder / "site.json").read_text())
    (folder / "site.json").write_text(json.dumps(info | {"name": name}))
    with pytest.raises(BadInput, match=r"site\.json: the site's name is"):
        SiteFolder(folder)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["case"], "datalist.json: training.0='case'"),
        ([["case"]], r"datalist.json: training.0=\['case'\]: expected a table"),
        ([{"case": "a", "patient": "a", "image": "a\0.npy", "label": "a.npy"}], "lies outside the site folder"),
    ],
)
def test_lists_that_list_no_cases(own_sites, entries, message):
    (own_sites / "site1" / "datalist.json").write_text(json.dumps(dict.fromkeys(SPLITS, entries)))
    with pytest.raises(BadInput, match=message):
        SiteFolder(own_sites / "site1")


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("image", lambda array: array.astype(float)),
        ("image", lambda array: array.sum()),
        ("image", lambda array: array[..., 1:]),
        ("label", lambda array: array.astype(bool)),
        ("label", lambda array: array[1:]),
    ],
)
def test_arrays_that_are_none_of_prepared_ones(own_sites, kind, spoil):
    site = SiteFolder(own_sites / "site1")
    site.require_arrays()
    case = site.cases("testing")[0]
    file = case.image_file if kind == "image" else case.label_file
    np.save(file, spoil(np.load(file)))
    with pytest.raises(BadInput, match=rf"{file.name}: .* of shape .*, expected (float32|uint8) of shape"):
        SiteFolder(own_sites / "site1").require_arrays()


def test_sites_that_are_not_what_they_were_are_named(own_sites, tmp_path):
    digests = read_site_digests(open_sites(own_sites))
    moved = shutil.move(own_sites, tmp_path / "elsewhere")
    require_same_preparation(open_sites(moved), digests, tmp_path / "run")
    require_same_preparation([], {}, tmp_path / "run")
    prepare_again(moved / "site2")
    with pytest.raises(BadInput, match=r"elsewhere: site2 is not what .*run was started with; prepare the old folder"):
        require_same_preparation(open_sites(moved), digests, tmp_path / "run")
    shutil.rmtree(moved / "site3")
    with pytest.raises(BadInput, match="site2, site3 are not what"):
        require_same_preparation(open_sites(moved), digests, tmp_path / "run")


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


@pytest.mark.parametrize("array", [np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.zeros((0, 3), np.uint8)])
def test_an_array_that_is_mapped_keeps_no_file_open(tmp_path, array):
    """A process may have as few as 1,024 open, and a site more cases."""
    np.save(tmp_path / "case.npy", array)
    before = psutil.Process().num_fds()
    mapped = load_array(tmp_path / "case.npy")
    assert psutil.Process().num_fds() == before
    assert mapped.dtype == array.dtype
    np.testing.assert_array_equal(mapped, array)
    with pytest.raises(ValueError, match="read-only"):
        mapped[...] = 1


@pytest.fixture
def many(sites, tmp_path):
    """A site of forty training cases, each with arrays of its own."""
    folder = shutil.copytree(sites / "site1", tmp_path / "site1")
    lists = json.loads((folder / "datalist.json").read_text())
    (first, *_), lists["training"] = lists["training"], []
    for number in range(40):
        entry = first | {"case": f"case{number}"}
        for what in ("image", "label"):
            entry[what] = f"{what}{number}.npy"
            shutil.copy(folder / first[what], folder / entry[what])
        lists["training"].append(entry)
    (folder / "datalist.json").write_text(json.dumps(lists))
    return folder


@pytest.mark.parametrize(
    ("spoiled", "left"), [((), 40), (("image7",), 39), (("image7", "label9"), 38), (("image7", "label9", "image0"), 40)]
)
def test_a_few_training_cases_that_cannot_be_read_are_left_out(many, capfd, spoiled, left):
    for name in spoiled:
        (many / f"{name}.npy").write_bytes(b"spoiled")
    site = SiteFolder(many)
    cases = site.cases("training")
    assert len(cases) == left
    reported = capfd.readouterr().err
    named = [f"trains without case case{name[5:]}: " in reported for name in spoiled]
    assert named == [left < 40] * len(spoiled)
    if left == 40 and spoiled:
        with pytest.raises(BadInput, match=r"image0\.npy"):
            len(Slices(cases))
        return
    site.require_arrays()
    holdings = read_holdings(site, left)
    assert (holdings.cases["training"], len(list(holdings.identities))) == (left, left)
