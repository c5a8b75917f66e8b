import pytest
from layouts import box, save_nifti, volume
from layouts_prostate import OBLIQUE, found, msd_prostate, require_drawn, zones

from fedmerit.errors import BadInput
from fedmerit_data.kinds import KINDS


@pytest.mark.parametrize("folder", ["", "Task05_Prostate"])
def test_msd_prostate_takes_t2_and_merges_zones(tmp_path, folder):
    msd_prostate(tmp_path)
    (site,) = found("msd-prostate", tmp_path / folder).values()
    assert (site.name, [case.name for case in site.cases]) == ("MSD", ["prostate_00", "prostate_01", "prostate_10"])
    assert sorted(reason for _, reason in site.left_out) == [
        "a test image, whose labels are not published",
        "no prostate_NN.nii.gz of imagesTr or labelsTr",
    ]
    assert require_drawn("msd-prostate", site.cases[0], volume(11), box()) == ()


def test_a_zone_that_the_layout_does_not_know(tmp_path):
    msd_prostate(tmp_path)
    save_nifti(tmp_path / "Task05_Prostate" / "labelsTr" / "prostate_00.nii.gz", zones(), OBLIQUE)
    (site,) = found("msd-prostate", tmp_path).values()
    with pytest.raises(BadInput, match=r"labelsTr/prostate_00.nii.gz: has label 4; expected 0 to 2"):
        KINDS["msd-prostate"].decode(site.cases[0])
