import layouts_fundus as layouts
import numpy as np
import pytest
from layouts_fundus import SHAPE, decoded, disc_and_cup, only, photo
from PIL import Image

from fedmerit.errors import BadInput


def test_rim_one_is_the_left_half_and_both_eyes_are_one_patient(tmp_path):
    layouts.rim_one(tmp_path)
    site = only("rim-one-r3", tmp_path)
    assert [(case.name, case.patient) for case in site.cases] == [
        ("G-1-R", "RIM-ONE-r3-G-1"),
        ("N-1-L", "RIM-ONE-r3-N-1"),
        ("N-1-R", "RIM-ONE-r3-N-1"),
        ("N-2-L", "RIM-ONE-r3-N-2"),
        ("S-3-L", "RIM-ONE-r3-S-3"),
    ]
    assert {reason for _, reason in site.left_out} == {"neither a stereo pair nor an average mask"}
    assert len(site.left_out) == 10
    cases = decoded("rim-one-r3", tmp_path)
    for shift, name in enumerate(("N-1-L", "N-1-R", "N-2-L", "G-1-R", "S-3-L")):
        assert cases[name].image.shape == (1, 3, *SHAPE)
        np.testing.assert_array_equal(cases[name].label[0], disc_and_cup(shift))
        left = photo(shift, (SHAPE[0], 2 * SHAPE[1]))[:, : SHAPE[1]]
        assert np.abs(cases[name].image[0] - left.transpose(2, 0, 1)).mean() < 5


def test_rim_one_refuses_what_is_no_stereo_pair(tmp_path):
    layouts.rim_one(tmp_path, eyes=("N-1-L",))
    Image.fromarray(photo(0, (120, 90))).save(tmp_path / "Healthy" / "Stereo Images" / "N-1-L.jpg")
    with pytest.raises(BadInput, match=r"N-1-L.jpg: 90 x 120 pixels; expected a stereo pair"):
        decoded("rim-one-r3", tmp_path)
