import pytest
from layouts import box, volume
from layouts_prostate import found, i2cvb, require_drawn

from fedmerit.errors import BadInput


def test_i2cvb_is_two_scanners_of_whole_series(tmp_path):
    i2cvb(tmp_path)
    sites = found("i2cvb", tmp_path)
    assert {name: [case.name for case in site.cases] for name, site in sites.items()} == {
        "GE": ["Patient_1"],
        "Siemens": ["Patient_2", "Patient_387"],
    }
    assert sites["GE"].left_out == (
        ("GE/Patient 1/GT/cap", "not the T2 series or the prostate ground truth"),
        ("GE/Patient_428260", "its ground truth lacks a slice"),
    )
    assert require_drawn("i2cvb", sites["GE"].cases[0], volume(9), box()) == ()
    assert require_drawn("i2cvb", sites["Siemens"].cases[1], volume(11), box()) == ()


def test_i2cvb_without_a_mask(tmp_path):
    i2cvb(tmp_path)
    (tmp_path / "GE" / "Patient 1" / "GT" / "prostate").rename(tmp_path / "GE" / "Patient 1" / "GT" / "pz")
    with pytest.raises(BadInput, match="Patient 1/T2W: its mask is missing"):
        found("i2cvb", tmp_path)
