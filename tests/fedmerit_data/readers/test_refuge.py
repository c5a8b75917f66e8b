import layouts_fundus as layouts
import numpy as np
from layouts_fundus import decoded, disc_and_cup, only, photo


def test_refuge_pools_its_parts(tmp_path):
    layouts.refuge(tmp_path)
    site = only("refuge", tmp_path)
    assert [case.name for case in site.cases] == ["T0001", "V0001", "g0001", "n0001"]
    assert site.left_out == (
        ("Annotation-Training400/Fovea_location.xlsx", "neither a .jpg image nor below Disc_Cup_Masks"),
    )
    for (name, case), shift in zip(sorted(decoded("refuge", tmp_path).items()), (3, 2, 0, 1), strict=True):
        np.testing.assert_array_equal(case.label[0], disc_and_cup(shift), err_msg=name)
        assert np.abs(case.image[0] - photo(shift).transpose(2, 0, 1)).mean() < 5
