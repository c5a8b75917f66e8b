"""Implausible masks, images, label conventions and numbers of patients in valid site folders."""

import shutil

import numpy as np
import pytest
from one_in import one_in
from site_folders import CASES, LABELS, TASKS, change, edit, found, load, space

from fedmerit_data.check import check, examine
from fedmerit_data.checking.findings import Severity


@pytest.mark.parametrize("defect", one_in(2, LABELS))
def test_masks(clean, tmp_path, defect):
    task, how, *kinds = LABELS[defect]
    sites = shutil.copytree(clean / task, tmp_path / "sites")
    change(sites, "validation2", "label", how)
    assert found(sites) == [(kind, "HK", "validation", "002") for kind in kinds]
    assert check(sites) == []


@pytest.mark.parametrize("sites", ["fundus"], indirect=True)
def test_a_site_whose_labels_are_swapped(sites):
    for split, count in CASES.items():
        for number in range(count):
            change(sites, f"{split}{number}", "label", lambda label: label[:, ::-1])
    assert found(sites) == [("label convention", "HK", "", "")]
    (finding,) = check(sites)
    assert finding.detail == "cup not within disc in 14 of 14 cases"


@pytest.mark.parametrize("distance", [0.3, 90.0])
def test_volumes_in_millilitres(sites, distance):
    space(sites, [distance, 2.5, 2.5])
    (finding,) = examine(sites).findings
    assert (finding.kind, finding.split, finding.position) == ("implausible volume", "training", "000")
    millilitres = load(sites, "HK", "training0", "label").sum() * distance * 2.5 * 2.5 / 1000
    assert finding.detail == f"prostate of {millilitres:.3g} ml, expected 5 to 500"
    assert check(sites) == []


IMAGES = {
    "upside down": (lambda image: image[:, :, ::-1], "flipped"),
    "slices reversed": (lambda image: image[::-1], "flipped"),
    "saturated": (lambda image: np.where(image > np.percentile(image, 90), 3, -0.3).astype(np.float32),
                  "unusual intensities"),
    "flat": (np.zeros_like, "flat image"),
    "dark": (lambda image: np.where(image > np.percentile(image, 99), image, -0.3), "mostly flat image"),
}  # fmt: skip


@pytest.mark.parametrize("defect", IMAGES)
def test_images(sites, defect):
    how, kind = IMAGES[defect]
    change(sites, "testing1", "image", how)
    assert found(sites) == [(kind, "HK", "testing", "001")]


@pytest.mark.parametrize(
    "spacing", [None, [2.5, 2.5], [0, 2.5, 2.5], ["3", 2.5, 2.5], [float("nan"), 2.5, 2.5], "none"]
)
def test_volumes_are_not_judged_where_the_spacing_is_not_known(sites, spacing):
    space(sites, spacing)
    (finding,) = examine(sites).findings
    assert (finding.kind, finding.severity, finding.site) == ("unknown volume", Severity.note, "HK")
    assert finding.detail == "1 of 14 cases"


@pytest.mark.parametrize("sites", TASKS, indirect=True)
def test_nothing_is_found_on_clean_sites(sites):
    assert found(sites) == []
    (sites / "overview").mkdir()  # the pictures of `prepare`
    assert found(sites) == []


def test_few_patients(sites):
    def same(lists):
        for entry in lists["testing"]:
            entry["patient"] = "Mustermann"

    edit(sites / "HK" / "datalist.json", same)
    assert found(sites) == [("few patients", "HK", "testing", "")]
    assert check(sites) == []
