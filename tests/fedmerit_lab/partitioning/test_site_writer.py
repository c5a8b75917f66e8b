"""One site folder of a partition: linked arrays, changed arrays, lists and origin."""

import os

import numpy as np
import pytest
from run_factory import make_sites
from site_folders import edit

from fedmerit.errors import BadInput
from fedmerit.files import read_json, sha256
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit_lab.partitioning import site_writer
from fedmerit_lab.partitioning.assignment import pool_patients
from fedmerit_lab.partitioning.label_noise import Disturbed
from fedmerit_lab.partitioning.site_writer import link_or_copy, write_site

SAID = {
    "A": {"licence": "CC BY", "seed": 0, "spacing": [1.0, 1.0], "citation": "one", "shrunk_by": 2},
    "B": {"licence": "own", "seed": 3, "spacing": [1.0, 1.0], "citation": "one"},
}


@pytest.fixture
def two(tmp_path):
    """Sites A and B, with checksums; the second training case of A trains on two of its three slices."""
    root = make_sites(tmp_path / "sites", ("A", "B"), size=16)
    for name, said in SAID.items():
        sums = {path.name: sha256(path) for path in (root / name).glob("*.npy")}
        remarks = [{"case": "training0", "remark": "clipped"}, {"case": "scan_0", "remark": "odd"}]
        edit(root / name / "site.json", lambda info, said=said, more={"checksums": sums, "remarks": remarks}:
             info.update(said | more))  # fmt: skip
    edit(root / "A" / "datalist.json", lambda lists: lists["training"][1].update(slices=[0, 2], spacing=[3, 1, 1]))
    return root


def patients(two, *names):
    return [one for one in pool_patients(open_sites(two), "source") if one.name in names]


def test_arrays_are_links_but_for_the_masks_that_are_wrong(two, tmp_path):
    label = np.ones((3, 1, 16, 16), np.uint8)
    wrong = {"A-training1": Disturbed(label, (0,)), "B-training0": Disturbed(label, (0,))}  # not of this site
    chosen = patients(two, "A-training-0", "A-training-1", "A-testing-3")
    before = {path: sha256(path) for path in two.rglob("*") if path.is_file()}
    write_site(tmp_path / "site-1", chosen, wrong, {"by": "uniform"})
    assert {path: sha256(path) for path in two.rglob("*") if path.is_file()} == before
    site = SiteFolder(tmp_path / "site-1")
    sums = site.info["checksums"]
    assert sums == {path.relative_to(site.path).as_posix(): sha256(path) for path in (site.path / "cases").iterdir()}
    linked = {name for name in sums for old in two.rglob("*.npy") if os.path.samefile(site.path / name, old)}
    assert set(sums) - linked == {"cases/A-training1_label.npy"}
    assert (np.load(site.path / "cases" / "A-training1_label.npy") == label).all()
    assert os.path.samefile(site.path / "cases" / "A-scan_3_image.npy", two / "A" / "scan_3_image.npy")


def test_images_of_a_source_with_bright_and_dark_exchanged(two, tmp_path):
    chosen = patients(two, "A-training-0", "B-training-0", "B-testing-3")
    write_site(tmp_path / "site-1", chosen, {}, {}, inverted=["B"])
    site = SiteFolder(tmp_path / "site-1")
    sums = site.info["checksums"]
    assert sums == {path.relative_to(site.path).as_posix(): sha256(path) for path in (site.path / "cases").iterdir()}
    linked = {name for name in sums for old in two.rglob("*.npy") if os.path.samefile(site.path / name, old)}
    assert set(sums) - linked == {"cases/B-training0_image.npy", "cases/B-scan_3_image.npy"}
    was, now = np.load(two / "B" / "training0_image.npy"), np.load(site.path / "cases" / "B-training0_image.npy")
    assert now.dtype == was.dtype
    assert was.any()
    assert (now == -was).all()


def test_lists_and_counts(two, tmp_path):
    chosen = patients(two, "A-training-0", "A-training-1", "A-testing-3")
    write_site(tmp_path / "site-1", chosen[::-1], {}, {"by": "uniform", "into": 3})
    lists, info = (read_json(tmp_path / "site-1" / name) for name in ("datalist.json", "site.json"))
    assert [entry["case"] for entry in lists["training"]] == ["A-training0", "A-training1"]
    assert lists["training"][1] == {
        "case": "A-training1", "patient": "A-training-1", "origin": "A", "slices": [0, 2], "spacing": [3, 1, 1],
        "image": "cases/A-training1_image.npy", "label": "cases/A-training1_label.npy",
    }  # fmt: skip
    assert info["counts"] == {
        "training": {"cases": 2, "patients": 2, "slices": 3 + 2},
        "validation": {"cases": 0, "patients": 0, "slices": 0},
        "testing": {"cases": 1, "patients": 1, "slices": 3},
        "server_validation": {"cases": 0, "patients": 0, "slices": 0},
    }
    assert (info["name"], info["used"]) == ("site-1", {"cases": 3, "files": 6})
    assert info["remarks"] == [{"case": "A-training0", "remark": "clipped"}]
    assert info["partition"] == {
        "by": "uniform",
        "into": 3,
        "origin": [
            {
                "site": "A",
                "site_json": sha256(two / "A" / "site.json"),
                "patients": {"training": 2, "validation": 0, "testing": 1, "server_validation": 0},
            }
        ],
    }


def test_what_sources_say_alike_stays_texts_are_joined_and_other_things_are_not_said(two, tmp_path):
    write_site(tmp_path / "site-1", patients(two, "A-training-0", "B-training-0"), {}, {})
    info = read_json(tmp_path / "site-1" / "site.json")
    assert {name: info[name] for name in SAID["A"]} == {
        "licence": "CC BY; own", "seed": None, "spacing": [1.0, 1.0], "citation": "one", "shrunk_by": None
    }  # fmt: skip
    assert [entry["site"] for entry in info["partition"]["origin"]] == ["A", "B"]
    assert [entry["case"] for entry in info["remarks"]] == ["A-training0", "B-training0"]


def test_an_array_that_is_not_there_or_has_no_checksum(two, tmp_path):
    chosen = patients(two, "A-training-0", "B-training-0")
    (two / "B" / "training0_label.npy").unlink()
    with pytest.raises(BadInput, match=r"B/training0_label.npy: file not found"):
        write_site(tmp_path / "site-1", chosen, {}, {})
    edit(two / "A" / "site.json", lambda info: info["checksums"].pop("training0_image.npy"))
    with pytest.raises(BadInput, match=r"A/site.json: has no checksum of training0_image.npy; prepare the site again"):
        write_site(tmp_path / "site-2", patients(two, "A-training-0"), {}, {})


def test_arrays_are_linked_to_the_file_itself_or_copied_where_there_are_no_links(tmp_path, monkeypatch):
    (tmp_path / "array.npy").write_bytes(b"numbers")
    (tmp_path / "link.npy").symlink_to(tmp_path / "array.npy")
    link_or_copy(tmp_path / "link.npy", tmp_path / "cases" / "a.npy")
    assert not (tmp_path / "cases" / "a.npy").is_symlink()
    assert os.path.samefile(tmp_path / "cases" / "a.npy", tmp_path / "array.npy")

    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(site_writer.os, "link", refuse)
    link_or_copy(tmp_path / "link.npy", tmp_path / "cases" / "b.npy")
    assert not os.path.samefile(tmp_path / "cases" / "b.npy", tmp_path / "array.npy")
    assert (tmp_path / "cases" / "b.npy").read_bytes() == b"numbers"
