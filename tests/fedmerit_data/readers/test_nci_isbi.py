import pytest
from layouts import box, volume
from layouts_prostate import found, nci_isbi, require_drawn, save_itk

from fedmerit.errors import BadInput


def test_nci_isbi_collections_and_every_naming_of_masks(tmp_path):
    nci_isbi(tmp_path)
    save_itk(tmp_path / "Mask" / "Training" / "ProstateDx-01-0006.nrrd", box() * 0)
    sites = found("nci-isbi-2013", tmp_path)
    assert {name: [case.name for case in site.cases] for name, site in sites.items()} == {
        "PROSTATE-DIAGNOSIS": ["ProstateDx-01-0006", "ProstateDx-02-0003"],
        "Prostate-3T": ["Prostate3T-01-0001", "Prostate3T-03-0002"],
    }
    assert sites["Prostate-3T"].left_out == ()
    assert dict(sites["PROSTATE-DIAGNOSIS"].left_out) == {
        "Mask/Training/ProstateDx-01-0006.nrrd": "its corrected mask is used",
        "Mask/Training/ProstateDx-01-0055.nrrd": "its mask has 23 slices, its image 34",
        "PROSTATE-DIAGNOSIS/ProstateDx-01-0055": "its mask has 23 slices, its image 34",
        "PROSTATE-DIAGNOSIS/ProstateDx-01-0099": "no mask: no part of the challenge",
        "manifest-1/LICENSE": "neither a DICOM slice of a patient nor a mask",
    }
    for site in sites.values():
        for case in site.cases:
            assert require_drawn("nci-isbi-2013", case, volume(18), box()) == ()


def test_nci_isbi_mask_without_its_image(tmp_path):
    nci_isbi(tmp_path)
    save_itk(tmp_path / "Mask" / "Test" / "ProstateDx-03-0001.nrrd", box())
    with pytest.raises(BadInput, match=r"ProstateDx-03-0001.nrrd: the image of this mask is missing"):
        found("nci-isbi-2013", tmp_path)
