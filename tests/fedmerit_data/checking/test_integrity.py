"""Integrity of site folders: every file present and unchanged, every array valid, no patient twice."""

import shutil

import numpy as np
import pytest
from site_folders import edit

from fedmerit.errors import BadInput
from fedmerit.files import sha256
from fedmerit_data.check import check


@pytest.fixture
def sites(two_hospitals, tmp_path):
    shutil.copytree(two_hospitals, tmp_path / "sites")
    return tmp_path / "sites"


def rewrite(sites, site, name, array):
    """Store another array and its checksum: what is wrong is then the array alone."""
    np.save(sites / site / name, array)
    edit(sites / site / "site.json", lambda info: info["checksums"].update({name: sha256(sites / site / name)}))


def messages(sites, **options):
    return [str(finding).removeprefix(f"{sites}/") for finding in check(sites, **options)]


@pytest.mark.parametrize("kind", ["image", "label"])
def test_a_missing_file(sites, kind):
    (sites / "HK" / "cases" / f"Case01_{kind}.npy").unlink()
    assert messages(sites) == [f"HK/cases/Case01_{kind}.npy: file not found; prepare the site again"]


def test_a_truncated_file(sites):
    path = sites / "HK" / "cases" / "Case01_image.npy"
    path.write_bytes(path.read_bytes()[:500])
    found = messages(sites)
    assert len(found) == 2
    assert all(text.startswith("HK/cases/Case01_image.npy: ") for text in found)
    assert "checksum differs" in found[0]
    assert "not a readable .npy array" in found[1]


def test_an_edited_label(sites):
    path = sites / "HK" / "cases" / "Case01_label.npy"
    label = np.load(path)
    label[0, 0, 0, 0] = 1
    np.save(path, label)
    assert messages(sites) == [
        "HK/cases/Case01_label.npy: changed since it was prepared (its checksum differs); prepare it again"
    ]


DEFECTS = {
    "label of another shape": ("label", lambda array: array[:-1], "uint8 of shape (3, 1, 24, 24); expected uint8"),
    "image of another size": ("image", lambda array: array[..., :20], "float32 of shape (4, 1, 24, 20); expected"),
    "image of another type": ("image", lambda array: array.astype(float), "float64 of shape"),
    "no axes": ("image", lambda array: array.sum(), "of shape ()"),
    "label outside the task": ("label", lambda array: array * 2, "holds the label 2"),
    "image not finite": ("image", lambda array: array * np.nan, "not finite"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_arrays(sites, defect):
    kind, change, message = DEFECTS[defect]
    name = f"cases/Case01_{kind}.npy"
    rewrite(sites, "HK", name, np.asarray(change(np.load(sites / "HK" / name))))
    (found,) = messages(sites)
    assert found.startswith(f"HK/{name}: ")
    assert message in found


def test_empty_masks_beyond_the_share(sites):
    name = "cases/Case01_label.npy"
    rewrite(sites, "HK", name, np.load(sites / "HK" / name) * 0)
    assert messages(sites) == [f"HK/{name}: no prostate in this mask, as in 1 of 5 cases, more than the 10% allowed"]
    assert messages(sites, max_empty=0.2) == []
    assert len(messages(sites, max_empty=0.19)) == 1
    with pytest.raises(BadInput, match="max_empty 20: expected a share"):
        check(sites, max_empty=20)


def test_a_patient_in_two_splits(sites):
    def change(lists):
        lists["testing"][0]["patient"] = lists["training"][0]["patient"]

    edit(sites / "HK" / "datalist.json", change)
    (found,) = messages(sites)
    assert found.startswith("HK/datalist.json: patient HK-Case0")
    assert found.endswith("is in testing and in training")


@pytest.fixture
def served(sites):
    """The sites, with a training case of HK set aside for the server."""

    def set_aside(lists):
        lists["server_validation"].append(lists["training"].pop())

    def count(info):
        for split, change in (("training", -1), ("server_validation", 1)):
            info["counts"][split]["cases"] += change

    edit(sites / "HK" / "datalist.json", set_aside)
    edit(sites / "HK" / "site.json", count)
    assert check(sites) == []
    return sites


def test_a_server_split_that_site_json_does_not_count(served):
    edit(served / "HK" / "datalist.json", lambda lists: lists.pop("server_validation"))
    found = messages(served)
    assert "HK/datalist.json: split server_validation lists 0 cases, site.json 1" in found
    assert len(found) == 3  # and its two files, which no list names
    edit(served / "HK" / "site.json", lambda info: info["counts"].pop("server_validation"))
    assert len(messages(served)) == 2


def test_a_patient_in_two_sites(sites):
    def change(lists):
        lists["testing"][0]["patient"] = "HK-Case00"

    edit(sites / "UCL" / "datalist.json", change)
    (found,) = messages(sites)
    assert found.startswith("UCL/datalist.json: patient HK-Case00 is in testing and in site HK (")


def test_one_image_under_two_names(sites):
    name = "cases/Case01_image.npy"
    rewrite(sites, "UCL", name, np.load(sites / "HK" / name))
    assert messages(sites) == [
        f"UCL/{name}: the same image as case Case01 of site HK: one patient under two names",
    ]


def test_a_case_listed_twice(sites):
    edit(sites / "HK" / "datalist.json", lambda lists: lists["testing"].append(lists["training"][0]))
    found = messages(sites)
    assert any("lists case" in text for text in found)
    assert any("is in testing and in training" in text for text in found)
    assert any("split testing lists 2 cases, site.json 1" in text for text in found)


def test_files_that_no_list_names(sites):
    (sites / "HK" / "cases" / "extra.npy").write_bytes(b"")
    assert messages(sites) == ["HK/cases/extra.npy: datalist.json does not list it; prepare the site again"]


def test_files_of_which_site_json_has_no_checksum(sites):
    name = "cases/Case01_image.npy"
    edit(sites / "HK" / "site.json", lambda info: info["checksums"].pop(name))
    assert messages(sites) == [f"HK/{name}: site.json has no checksum of it; prepare the site again"]
    edit(sites / "HK" / "site.json", lambda info: info["checksums"].update({"cases/gone.npy": "0"}))
    assert "HK/cases/gone.npy: datalist.json does not list it; prepare the site again" in messages(sites)


def test_an_empty_split(sites):
    edit(sites / "HK" / "datalist.json", lambda lists: lists.update(validation=[]))
    found = messages(sites)
    assert "HK/datalist.json: split validation is empty; add patients or prepare with other ratios" in found


def test_sites_prepared_differently(sites):
    edit(sites / "UCL" / "site.json", lambda info: info.update(spacing=[2.0, 2.0]))
    (found,) = messages(sites)
    assert found.startswith("UCL/site.json: spacing is [2.0, 2.0], but site HK has [1.0, 1.0]")


def test_a_renamed_folder(sites):
    (sites / "HK").rename(sites / "Ours")
    assert messages(sites) == ["Ours/site.json: names the site 'HK', but its folder is 'Ours'; rename the folder"]


def test_slices_beyond_the_volume(sites):
    edit(sites / "HK" / "datalist.json", lambda lists: lists["training"][0].update(slices=[0, 9]))
    (found,) = messages(sites)
    assert "lists slices beyond its 4" in found
