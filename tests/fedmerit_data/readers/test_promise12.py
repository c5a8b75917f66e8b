import pytest
from layouts import box, volume
from layouts_prostate import found, promise12, require_drawn

from fedmerit.errors import BadInput
from fedmerit_data.kinds import KINDS


def test_promise12_is_its_four_hospitals(tmp_path):
    promise12(tmp_path / "TrainingData_Part1", (0, 1, 2, 12, 13, 25))
    promise12(tmp_path / "TrainingData_Part2", (26, 37, 38, 49))
    (tmp_path / "Case07.raw").write_bytes(b"")
    (tmp_path / "terms.pdf").write_text("")
    sites = found("promise12", tmp_path)
    assert {name: [case.name for case in site.cases] for name, site in sites.items()} == {
        "BIDMC": ["Case00", "Case02", "Case12"],
        "HK": ["Case38", "Case49"],
        "RUNMC": ["Case13", "Case25"],
        "UCL": ["Case01", "Case26", "Case37"],
    }
    assert [left for site in sites.values() for left in site.left_out] == [
        ("Case07.raw", "its .mhd header is missing"),
        ("terms.pdf", "not named CaseNN or CaseNN_segmentation .mhd, .raw"),
    ]
    case = sites["RUNMC"].cases[0]
    assert case.patient == "RUNMC-Case13"
    assert require_drawn("promise12", case, volume(13), box()) == ()


@pytest.mark.parametrize("defect", ["number", "mask", "truncated"])
def test_promise12_that_is_not_whole(tmp_path, defect):
    promise12(tmp_path, (50,) if defect == "number" else (3,))
    if defect == "number":
        with pytest.raises(BadInput, match=r"Case50.mhd: training cases are numbered 00 to 49"):
            found("promise12", tmp_path)
    elif defect == "mask":
        (tmp_path / "Case03_segmentation.mhd").unlink()
        with pytest.raises(BadInput, match=r"Case03.mhd: its mask is missing"):
            found("promise12", tmp_path)
    else:
        (tmp_path / "Case03.raw").write_bytes((tmp_path / "Case03.raw").read_bytes()[:100])
        with pytest.raises(BadInput, match=r"Case03.mhd: not a readable volume"):
            KINDS["promise12"].decode(found("promise12", tmp_path)["BIDMC"].cases[0])
