"""Reader of the multi-site prostate release: names, orientation, zones and bad masks."""

import numpy as np
import pytest
from layouts import box, prostate_site, save_nifti, volume
from layouts_prostate import OBLIQUE, found, require_drawn

from fedmerit.errors import BadInput
from fedmerit_data.readers.releases import PROSTATE_MULTISITE


def only(source):
    (site,) = PROSTATE_MULTISITE.find_sites(source)
    return site


def test_folders_of_older_copies_carry_the_names_of_the_release(tmp_path):
    for alias in ("ISBI", "ISBI_1.5", "HCRUDB", "UCL"):
        prostate_site(tmp_path / alias)
    assert [site.name for site in PROSTATE_MULTISITE.find_sites(tmp_path)] == ["BMC", "I2CVB", "RUNMC", "UCL"]
    prostate_site(tmp_path / "RUNMC")
    with pytest.raises(BadInput, match=r"RUNMC: .*site RUNMC under another name"):
        PROSTATE_MULTISITE.find_sites(tmp_path)


def test_rows_run_from_front_to_back_and_columns_from_right_to_left(tmp_path):
    prostate_site(tmp_path / "UCL")
    case = only(tmp_path).cases[0]
    decoded = PROSTATE_MULTISITE.decode(case)
    np.testing.assert_array_equal(decoded.label[:, 0], box().transpose(2, 1, 0))
    np.testing.assert_array_equal(decoded.image[:, 0], volume([0, 0]).transpose(2, 1, 0))
    assert decoded.spacing == (1.0, 1.0)
    assert decoded.remarks == ()


def test_multisite_takes_every_spelling(tmp_path):
    for folder, mask in (("isbi_1.5", "_Segmentation"), ("Bidmc", "_SEGMENTATION"), ("HK", "-segmentation")):
        save_nifti(tmp_path / folder / "case00.nii.gz", volume(0), OBLIQUE)
        save_nifti(tmp_path / folder / f"Case00{mask}.nii.gz", box() * 3, OBLIQUE)
    (tmp_path / "HK" / "older").mkdir()
    (tmp_path / "HK" / "older" / "case00.nii.gz").touch()
    sites = found("prostate-multisite", tmp_path)
    assert list(sites) == ["BIDMC", "BMC", "HK"]
    assert [name for name, _ in sites["HK"].left_out] == ["older/case00.nii.gz"]
    for site in sites.values():
        assert require_drawn("prostate-multisite", site.cases[0], volume(0), box()) == (
            "labels up to 3 merged into one",
        )
