import layouts_fundus as layouts
import numpy as np
from layouts_fundus import decoded, only, photo


def test_drishti_is_what_at_least_half_of_four_experts_marked(tmp_path):
    discs, cups = layouts.drishti(tmp_path)
    site = only("drishti-gs1", tmp_path)
    assert site.name == "Drishti-GS1"
    assert [(case.name, case.patient) for case in site.cases] == [
        ("drishtiGS_001", "Drishti-GS1-drishtiGS_001"),
        ("drishtiGS_002", "Drishti-GS1-drishtiGS_002"),
        ("drishtiGS_004", "Drishti-GS1-drishtiGS_004"),
    ]
    assert len(site.left_out) == 6
    assert site.left_out[0] == (
        "Test/Test_GT/drishtiGS_001/AvgBoundary/drishtiGS_001_ODAvgBoundary.txt",
        "neither an image nor a soft map",
    )
    for name, case in decoded("drishti-gs1", tmp_path).items():
        np.testing.assert_array_equal(case.label[0, 0], discs.sum(0) >= 2)
        np.testing.assert_array_equal(case.label[0, 1], cups.sum(0) >= 2)
        np.testing.assert_array_equal(case.image[0], photo(int(name[-3:])).transpose(2, 0, 1))
        assert case.image.dtype == np.float32
        assert case.label.dtype == np.uint8
        assert case.spacing is None


def test_drishti_below_its_top_folder(tmp_path):
    layouts.drishti(tmp_path / "Drishti-GS1_files")
    assert [case.name for case in only("drishti-gs1", tmp_path).cases] == [
        "drishtiGS_001", "drishtiGS_002", "drishtiGS_004"
    ]  # fmt: skip
