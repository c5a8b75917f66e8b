import pytest
from layouts import volume
from layouts_prostate import found, nci_isbi, save_series

from fedmerit.errors import BadInput


def test_nci_isbi_takes_the_t2_of_several_series(tmp_path):
    nci_isbi(tmp_path)
    study = tmp_path / "manifest-1" / "Prostate-3T" / "Prostate3T-01-0001" / "study"
    save_series(study / "6-DCE", volume(5))
    sites = found("nci-isbi-2013", tmp_path)
    assert sites["Prostate-3T"].cases[0].image == study / "5-T2 AX"
    assert (f"{(study / '6-DCE').relative_to(tmp_path)}", "not the T2 series") in sites["PROSTATE-DIAGNOSIS"].left_out
    save_series(study / "7-T2 SAG", volume(5))
    with pytest.raises(BadInput, match="study: 2 of its 3 series could be the T2 series"):
        found("nci-isbi-2013", tmp_path)
