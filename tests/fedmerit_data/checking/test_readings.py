"""What `prepare` noted on how it read each case, as `check` tells it."""

import numpy as np
import pytest
from layouts import prepare, save_nifti

from fedmerit.files import read_json
from fedmerit_data.check import examine
from fedmerit_data.spatial.readings import Reading, stated_readings, summarise

SPACING = {"axial": np.diag([-0.5, -0.5, 3.0, 1.0]), "sagittal": np.array([[0, 0, 3.0, 0], *np.eye(4)[[0, 1, 3]]])}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """CT: lesions that resizing loses at A, an organ that fills much of the frame at B, its slices sagittal in two."""
    root = tmp_path_factory.mktemp("readings")
    random = np.random.default_rng(0)
    for number in range(4):
        lesions = np.zeros((64, 64, 5), np.uint8)
        lesions[5:58:13, 5:7, 2], lesions[20:40, 20:40, 3] = 1, 1
        organ = np.zeros_like(lesions)
        organ[10:50, 12:50, 1:4] = 1
        affine = SPACING["sagittal" if number > 1 else "axial"]
        for site, mask, place in (("A", lesions, SPACING["axial"]), ("B", organ, affine)):
            image = random.normal(0, 40, mask.shape).astype(np.float32) - 1000.0 * (site == "B") * (1 - mask)
            save_nifti(root / "raw" / site / "images" / f"p{number}.nii.gz", image, place)
            save_nifti(root / "raw" / site / "masks" / f"p{number}.nii.gz", mask, place)
    (root / "raw" / "A" / "notes.txt").write_text("")
    prepare("generic", root / "sites", source=root / "raw", channels=1, size=16, modality="ct_soft_tissue")
    return root / "sites"


def test_site_json_says_how_each_case_was_read(hospitals):
    a, b = (stated_readings(read_json(hospitals / site / "site.json")) for site in "AB")
    assert [(one.plane, one.stored, one.spacing, one.spacing_from) for one in a] == [
        ("axial", "LPS", (3.0, 0.5, 0.5), "sform")
    ] * 4
    assert [one.plane for one in b] == ["axial", "axial", "sagittal", "sagittal"]
    assert {one.lost["mask"] for one in a} == {(4, 6)}
    assert all(one.lost["mask"] == (0, 1) and one.cut > 0.6 for one in b)
    image = np.load(hospitals / "B" / "cases" / "p0_label.npy")
    assert b[0].kept["mask"] == pytest.approx(image.sum() * 16 / (40 * 38 * 3), abs=1e-4)


def test_a_site_in_one_row():
    stated = {"case": "a", "plane": "axial", "stored": "LPS", "spacing": [3, 0.5, 0.5], "spacing_from": "qform"}
    first = Reading(**stated, cut=0.125, kept={"disc": 0.5}, lost={"disc": (3, 8)})
    second = first.model_copy(update={"spacing": (3, 0.6, 0.6), "stored": "RAS", "kept": {"disc": 0.9}, "lost": {}})
    assert list(summarise([first, second], ("disc", "cup")).values()) == [
        *("axial", "LPS 1, RAS 1", "3 x 0.5-0.6 x 0.5-0.6", "qform", "12.5%"),
        *("70%, lowest 50%; 3 of 8 pieces lost", "in no case"),
    ]
    assert summarise([Reading(case="photograph")], ())["mm"] == "not stated"


def test_check_finds_what_prepare_noted(hospitals):
    found = {(one.kind, one.site, one.detail) for one in examine(hospitals).findings}
    assert ("lost in resizing", "A", "4 of 6 pieces of mask") in found
    assert ("left out", "A", "1 files") in found
    assert ("another plane", "B", "sagittal, most are axial") in found
    assert any(kind == "values cut" and site == "B" for kind, site, _ in found)
    assert not any(kind in ("values cut", "another plane") and site == "A" for kind, site, _ in found)


def test_readings_of_another_form_are_none(hospitals):
    info = read_json(hospitals / "A" / "site.json")
    for spoilt in (None, 3, [{}], [{"case": "a", "kept": 3}], {"case": "a"}):
        assert stated_readings({**info, "readings": spoilt}) == []
