import shutil

import pytest
from one_in import one_in
from site_folders import CASES, LABELS, change, edit, found, load, space

from fedmerit_data.check import check, examine


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
    assert finding.detail == "cup not within disc in 12 of 12 cases"


def test_a_site_whose_masks_are_inverted(sites):
    for split, count in CASES.items():
        for number in range(count):
            change(sites, f"{split}{number}", "label", lambda label: 1 - label)
    errors = check(sites)
    assert [(finding.kind, finding.site) for finding in errors] == [
        ("label convention", "HK"),
        ("label convention", "UCL"),
    ]
    assert "what is not its prostate read as prostate" in errors[0].detail
    assert "either may be the wrong one" in errors[0].message


@pytest.mark.parametrize("sites", ["fundus"], indirect=True)
def test_sites_of_other_labels_are_not_compared(sites):
    edit(sites / "HK" / "site.json", lambda info: info.update(labels=["disc"]))
    for split, count in CASES.items():
        for number in range(count):
            change(sites, f"{split}{number}", "label", lambda label: 1 - label[:, :1])
    kinds = {finding.kind for finding in check(sites)}
    assert kinds == {"unlike sites"}


@pytest.mark.parametrize("distance", [0.3, 90.0])
def test_volumes_in_millilitres(sites, distance):
    space(sites, [distance, 2.5, 2.5])
    (finding,) = examine(sites).findings
    assert (finding.kind, finding.split, finding.position) == ("implausible volume", "training", "000")
    millilitres = load(sites, "HK", "training0", "label").sum() * distance * 2.5 * 2.5 / 1000
    assert finding.detail == f"prostate of {millilitres:.3g} ml, expected 5 to 500"
    assert check(sites) == []
