import pytest
from layouts import box, save_nifti, volume
from layouts_prostate import found, prostate158, require_drawn

from fedmerit.errors import BadInput


def test_prostate158_pools_its_folders(tmp_path):
    prostate158(tmp_path)
    (site,) = found("prostate158", tmp_path).values()
    assert [(case.name, case.patient) for case in site.cases] == [
        (name, f"Prostate158-{name}") for name in ("005", "022", "024")
    ]
    assert [name for name, _ in site.left_out] == [
        f"{part}/t2_anatomy_reader2.nii.gz" for part in ("test/005", "train/024", "valid/022")
    ]
    assert require_drawn("prostate158", site.cases[1], volume(22), box()) == ()
    save_nifti(tmp_path / "train" / "022" / "t2.nii.gz", volume(1))
    with pytest.raises(BadInput, match="case 022 already has the file"):
        found("prostate158", tmp_path)
