"""What readers share: files found, values that no mask has."""

import os

import numpy as np
import pytest

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import (
    RawSite,
    add_left_out,
    find_site_folders,
    list_files,
    list_visible,
    require_few_labels,
    require_file,
    require_folder,
    require_whole,
)


@pytest.fixture
def source(tmp_path):
    for name in ("b/2.dcm", "b/1.dcm", "b/inner/0.dcm", "a.txt", ".hidden/c", "b/.DS_Store", "_notes/d"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    return tmp_path


def test_files_are_found_in_order_without_hidden_ones_and_links_are_not_followed(source):
    assert [path.name for path in list_visible(source)] == ["_notes", "a.txt", "b", "link"]
    names = [path.relative_to(source).as_posix() for path in list_files(source)]
    assert names == ["_notes/d", "a.txt", "b/1.dcm", "b/2.dcm", "b/inner/0.dcm", "link"]
    for find in (list_visible, lambda folder: list(list_files(folder))):
        with pytest.raises(BadInput, match="missing: not a readable folder"):
            find(source / "missing")


def test_sites_are_folders_and_what_lies_beside_them_is_reported(source):
    folders, strays = find_site_folders(source, "one per site")
    assert [folder.name for folder in folders] == ["b", "link"]
    assert strays == (("_notes", "not the folder of a site"), ("a.txt", "not the folder of a site"))
    first, second = add_left_out([RawSite("b", (), (("x", "odd"),)), RawSite("link", ())], strays)
    assert (first.left_out, second.left_out) == ((*strays, ("x", "odd")), ())
    with pytest.raises(BadInput, match="inner: no site folders in it; expected one per site"):
        find_site_folders(source / "b" / "inner", "one per site")
    for require in (find_site_folders, require_folder):
        with pytest.raises(BadInput, match=r"a.txt: no such folder; --source has to be the folder with scans"):
            require(source / "a.txt", "scans")


@pytest.mark.parametrize("name", ["b", "missing", "pipe"])
def test_what_is_no_file_is_not_read(source, name):
    os.mkfifo(source / "pipe")
    require_file(source / "a.txt")
    with pytest.raises(BadInput, match=rf"{name}: not a readable scan \((file not found|not a regular file)\)"):
        require_file(source / name, "scan")


@pytest.mark.parametrize("values", [np.arange(128), np.arange(128) + 0.5, np.tile([-1.0, 1e6], 500)])
def test_a_mask_tells_128_labels_apart_and_no_more(tmp_path, values):
    require_few_labels(tmp_path / "mask.png", values)
    with pytest.raises(BadInput, match=r"mask.png: has more than 128 different values, as an image has"):
        require_whole(tmp_path / "mask.png", np.concatenate([values, np.arange(200, 329)]))
    with pytest.raises(BadInput, match=r"mask.png: has more than 128 different values, as an image has"):
        require_few_labels(tmp_path / "mask.png", np.concatenate([values, np.arange(200, 329)]))
