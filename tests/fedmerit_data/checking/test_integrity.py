"""Integrity of site folders: every file present and unchanged, every array valid, no patient twice."""

import shutil

import numpy as np
import pytest
from site_folders import edit

from fedmerit.errors import BadInput
from fedmerit.files import read_json, sha256
from fedmerit_data.check import check

IMAGE, LABEL = "cases/Case01_image.npy", "cases/Case01_label.npy"


@pytest.fixture
def sites(two_hospitals, tmp_path):
    shutil.copytree(two_hospitals, tmp_path / "sites")
    return tmp_path / "sites"


def rewrite(sites, site, name, array):
    """Store another array and its checksum: only the array is wrong then."""
    np.save(sites / site / name, array)
    edit(sites / site / "site.json", lambda info: info["checksums"].update({name: sha256(sites / site / name)}))


def messages(sites, **options):
    return [str(finding).removeprefix(f"{sites}/") for finding in check(sites, **options)]


@pytest.mark.parametrize("name", [IMAGE, LABEL])
def test_a_missing_file(sites, name):
    (sites / "HK" / name).unlink()
    assert messages(sites) == [f"HK/{name}: file not found; prepare the site again"]


def test_a_truncated_file(sites):
    path = sites / "HK" / IMAGE
    path.write_bytes(path.read_bytes()[:500])
    changed, unreadable = messages(sites)
    assert changed.startswith(f"HK/{IMAGE}: changed since it was prepared (its checksum differs)")
    assert unreadable.startswith(f"HK/{IMAGE}: not a readable .npy array")


def test_an_edited_label(sites):
    label = np.load(sites / "HK" / LABEL)
    label[0, 0, 0, 0] = 1
    np.save(sites / "HK" / LABEL, label)
    assert messages(sites) == [f"HK/{LABEL}: changed since it was prepared (its checksum differs); prepare it again"]


DEFECTS = {
    "label of another shape": (LABEL, lambda array: array[:-1], "uint8 of shape (3, 1, 24, 24); expected uint8"),
    "image of another size": (IMAGE, lambda array: array[..., :20], "float32 of shape (4, 1, 24, 20); expected"),
    "image of another type": (IMAGE, lambda array: array.astype(float), "float64 of shape"),
    "no axes": (IMAGE, lambda array: array.sum(), "of shape ()"),
    "label outside the task": (LABEL, lambda array: array * 2, "holds the label 2; expected 0 and 1"),
    "image not finite": (IMAGE, lambda array: array * np.nan, "not finite"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_arrays(sites, defect):
    name, change, message = DEFECTS[defect]
    rewrite(sites, "HK", name, np.asarray(change(np.load(sites / "HK" / name))))
    (found,) = messages(sites)
    assert found.startswith(f"HK/{name}: ")
    assert message in found


def test_empty_masks_beyond_the_share(sites):
    rewrite(sites, "HK", LABEL, np.load(sites / "HK" / LABEL) * 0)
    assert messages(sites) == [f"HK/{LABEL}: no prostate in this mask, as in 1 of 5 cases, more than the 10% allowed"]
    assert messages(sites, max_empty=0.2) == []
    assert len(messages(sites, max_empty=0.19)) == 1
    with pytest.raises(BadInput, match="max_empty 20: expected a share"):
        check(sites, max_empty=20)


def same_patient(lists):
    lists["testing"][0]["patient"] = lists["training"][0]["patient"]


LISTS = {  # site, file, change, what the only finding begins and ends with
    "patient in two splits": ("HK", "datalist.json", same_patient, "patient HK-Case0", "is in testing and in training"),
    "patient in two sites": (
        "UCL", "datalist.json", lambda lists: lists["testing"][0].update(patient="HK-Case00"),
        "patient HK-Case00 is in testing and in site HK (", ")",
    ),
    "other spacing": (
        "UCL", "site.json", lambda info: info.update(spacing=[2.0, 2.0]),
        "spacing is [2.0, 2.0], but site HK has [1.0, 1.0]", "; prepare both alike",
    ),
    "slices": (
        "HK", "datalist.json", lambda lists: lists["training"][0].update(slices=[0, 9]), "case", "beyond its 4"
    ),
}  # fmt: skip


@pytest.mark.parametrize("defect", LISTS)
def test_lists(sites, defect):
    site, file, change, begin, end = LISTS[defect]
    edit(sites / site / file, change)
    (found,) = messages(sites)
    assert found.startswith(f"{site}/{file}: {begin}")
    assert found.endswith(end)


def test_a_patient_of_the_server_split_in_training_and_a_split_that_site_json_counts_otherwise(sites):
    def set_aside(lists):
        lists["server_validation"].append(lists["training"].pop())
        lists["server_validation"][0]["patient"] = lists["training"][0]["patient"]

    edit(sites / "HK" / "datalist.json", set_aside)
    training, server, patient = messages(sites)
    assert training.startswith("HK/datalist.json: split training lists ")
    assert server == "HK/datalist.json: split server_validation lists 1 cases, site.json 0"
    assert patient.endswith("is in server_validation and in training")


def test_one_image_under_two_names(sites):
    rewrite(sites, "UCL", IMAGE, np.load(sites / "HK" / IMAGE))
    assert messages(sites) == [f"UCL/{IMAGE}: the same image as case Case01 of site HK: one patient under two names"]


def test_a_case_listed_twice(sites):
    edit(sites / "HK" / "datalist.json", lambda lists: lists["testing"].append(lists["training"][0]))
    found, there = messages(sites), len(read_json(sites / "HK" / "datalist.json")["testing"])
    counted = f"split testing lists {there} cases, site.json {there - 1}"
    for part in ("more than once", "is in testing and in training", counted):
        assert any(part in text for text in found)


def test_files_without_an_entry_or_a_checksum(sites):
    (sites / "HK" / "cases" / "extra.npy").write_bytes(b"")
    edit(sites / "HK" / "site.json", lambda info: info["checksums"].pop(IMAGE))
    edit(sites / "HK" / "site.json", lambda info: info["checksums"].update({"cases/gone.npy": "0"}))
    assert messages(sites) == [
        f"HK/{IMAGE}: site.json has no checksum of it; prepare the site again",
        "HK/cases/extra.npy: datalist.json does not list it; prepare the site again",
        "HK/cases/gone.npy: datalist.json does not list it; prepare the site again",
    ]


def test_an_empty_split(sites):
    edit(sites / "HK" / "datalist.json", lambda lists: lists.update(validation=[]))
    found = messages(sites)
    assert "HK/datalist.json: split validation is empty; add patients or prepare with other ratios" in found


def test_a_renamed_folder(sites):
    (sites / "HK").rename(sites / "Ours")
    assert messages(sites) == ["Ours/site.json: names the site 'HK', but its folder is 'Ours'; rename the folder"]


def test_releases_that_hold_the_same_patients_are_an_error(sites):
    folders = sorted(path.name for path in sites.iterdir() if path.is_dir())
    for folder, release in zip(folders, ("pi-cai", "prostatex"), strict=False):
        edit(sites / folder / "site.json", lambda info, release=release: info.update(source=release))
    assert any("328 cases of PI-CAI are PROSTATEx's; leave one of the two out" in text for text in messages(sites))
