"""Public releases whose site is in a name or a table."""

import numpy as np
import pytest
import SimpleITK
from layouts import box, save_nifti, save_png, volume

from fedmerit.errors import BadInput
from fedmerit_data.kinds import KINDS

PIXELS = np.full((12, 12, 3), 90, np.uint8)
MASK = np.pad(np.full((4, 4), 255, np.uint8), 4)


def pictures(root, image, mask):
    save_png(root / image, PIXELS)
    save_png(root / mask, MASK)


def polypgen(root):
    for centre in (1, 2):
        folder = f"data_C{centre}"
        pictures(root, f"{folder}/images_C{centre}/a{centre}.png", f"{folder}/masks_C{centre}/a{centre}_mask.png")
        (root / folder / f"masks_C{centre}" / "a_mask_bbox.txt").write_text("")
    return {"C1": ["C1-a1"], "C2": ["C2-a2"]}


def pranet(root):
    for name in ("cju0", "7"):
        pictures(root, f"TrainDataset/images/{name}.png", f"TrainDataset/masks/{name}.png")
    for collection in ("CVC-300", "CVC-ColonDB"):  # two images of one name
        pictures(root, f"TestDataset/{collection}/images/149.png", f"TestDataset/{collection}/masks/149.png")
    return {
        "CVC-300": ["CVC-300-149"],
        "CVC-ColonDB": ["CVC-ColonDB-149"],
        "CVC-ClinicDB": ["CVC-ClinicDB-7"],
        "Kvasir": ["Kvasir-cju0"],
    }


def tcga(root):
    for number in (1, 2):
        stem = f"kaggle_3m/TCGA_CS_4941_19960909/TCGA_CS_4941_19960909_{number}"
        pictures(root, f"{stem}.tif", f"{stem}_mask.tif")
    return {"CS": ["CS-TCGA_CS_4941"] * 2}


def fets(root):
    for case in ("FeTS2022_00000", "FeTS2022_00001"):
        for part in ("flair", "t1", "t1ce", "t2"):
            save_nifti(root / case / f"{case}_{part}.nii.gz", volume(0))
        save_nifti(root / case / f"{case}_seg.nii.gz", box() * 4)
    (root / "partitioning_1.csv").write_text("Subject_ID,Partition_ID\nFeTS2022_00000,18\nFeTS2022_00001,1\n")
    return {"institution-1": ["institution-1-FeTS2022_00001"], "institution-18": ["institution-18-FeTS2022_00000"]}


def picai(root):
    for name, voxels in (
        ("images/10/10_77_t2w.mha", volume(0)),
        ("labels/anatomical_delineations/whole_gland/AI/Bosma22b/10_77.nii.gz", box()),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        SimpleITK.WriteImage(SimpleITK.GetImageFromArray(voxels.T), str(root / name))
    (root / "marksheet.csv").write_text("patient_id,study_id,mri_date,center\n10,77,2019,ZGT\n")
    return {"ZGT": ["ZGT-10"]}


def mama_mia(root):
    for case in ("DUKE_001", "ISPY1_1001"):
        for phase in range(2):
            save_nifti(root / "images" / case / f"{case}_000{phase}.nii.gz", volume(phase))
        save_nifti(root / "segmentations" / "expert" / f"{case}.nii.gz", box())
    return {"DUKE": ["DUKE-DUKE_001"], "ISPY1": ["ISPY1-ISPY1_1001"]}


def mnms(root):
    folder = root / "Training" / "Labeled" / "A0S9V9"
    save_nifti(folder / "A0S9V9_sa.nii.gz", np.stack([volume(time) for time in range(5)], axis=-1))
    empty = np.zeros_like(box())
    save_nifti(folder / "A0S9V9_sa_gt.nii.gz", np.stack([box(), empty, empty, 3 * box(), empty], axis=-1))
    (root / "mnms_dataset_info.csv").write_text("External code,Vendor,Centre,ED,ES\nA0S9V9,A,4,0,3\n")
    return {"centre-4": ["centre-4-A0S9V9"] * 2}


RELEASES = {
    "polypgen": polypgen, "polyp-pranet": pranet, "tcga-lgg": tcga, "fets-2022": fets, "pi-cai": picai,
    "mama-mia": mama_mia, "mnms": mnms,
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASES)
def test_release_gives_each_case_to_its_site_and_patient(tmp_path, name):
    expected, kind = RELEASES[name](tmp_path), KINDS[name]
    sites = kind.find_sites(tmp_path)
    assert {site.name: [case.patient for case in site.cases] for site in sites} == expected
    for case in (case for site in sites for case in site.cases):
        decoded = kind.decode(case)
        assert decoded.image.shape[1] == kind.channels
        assert decoded.label.shape[1] == len(kind.labels)
        assert decoded.label.any()


def test_mnms_takes_image_and_mask_of_one_time(tmp_path):
    mnms(tmp_path)
    (site,) = KINDS["mnms"].find_sites(tmp_path)
    first, second = (KINDS["mnms"].decode(case) for case in site.cases)
    np.testing.assert_array_equal(second.image[:, 0], volume(3).transpose(2, 1, 0))
    assert [bool(label.any()) for label in first.label.swapaxes(0, 1)] == [True, False, False]
    assert [bool(label.any()) for label in second.label.swapaxes(0, 1)] == [False, False, True]


def test_a_case_that_the_table_lacks_is_refused(tmp_path):
    fets(tmp_path)
    (tmp_path / "partitioning_1.csv").write_text("Partition_ID,Subject_ID\n1,FeTS2022_00000\n")
    with pytest.raises(BadInput, match="has no partition_id of case FeTS2022_00001; complete it"):
        KINDS["fets-2022"].find_sites(tmp_path)
    (tmp_path / "partitioning_1.csv").unlink()
    with pytest.raises(BadInput, match=r"has no partitioning_1\.csv, which states the site of each case"):
        KINDS["fets-2022"].find_sites(tmp_path)
