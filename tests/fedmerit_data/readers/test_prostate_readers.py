"""Readers of public prostate sets: their sites, the files left out, and what is drawn in their images."""

import numpy as np
import pytest
from layouts import box, save_nifti, save_png, volume
from layouts_fundus import disc_and_cup, nvflare, photo, write_datalist
from layouts_prostate import (
    OBLIQUE,
    flipped,
    found,
    i2cvb,
    msd_prostate,
    nci_isbi,
    promise12,
    prostate158,
    require_drawn,
    save_itk,
    save_segmentation,
    save_series,
    zones,
)

from fedmerit.errors import BadInput
from fedmerit_data.kinds import KINDS
from fedmerit_data.readers.prostate import NVFLARE_PROSTATE


def test_i2cvb_is_two_scanners_of_whole_series(tmp_path):
    i2cvb(tmp_path)
    sites = found("i2cvb", tmp_path)
    assert {name: [case.name for case in site.cases] for name, site in sites.items()} == {
        "GE": ["Patient_1"],
        "Siemens": ["Patient_2", "Patient_387"],
    }
    assert sites["GE"].left_out == (
        ("GE/Patient 1/GT/cap", "not the T2 series or the prostate ground truth"),
        ("GE/Patient_428260", "its ground truth lacks a slice"),
    )
    assert require_drawn("i2cvb", sites["GE"].cases[0], volume(9), box()) == ()
    assert require_drawn("i2cvb", sites["Siemens"].cases[1], volume(11), box()) == ()


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


def rim_and_cup(shift=0):
    """1 in the rim, 2 in the cup."""
    disc, cup = disc_and_cup(shift)
    return disc.astype(np.uint8) + cup


def test_nvflare_slices_run_by_number_not_by_text(tmp_path):
    nvflare(tmp_path)
    (site,) = NVFLARE_PROSTATE.find_sites(tmp_path)
    assert site.name == "MSD"
    assert [(case.name, case.patient) for case in site.cases] == [
        (f"prostate_0{number}", f"MSD-prostate_0{number}") for number in range(3)
    ]
    for case in site.cases:
        decoded = NVFLARE_PROSTATE.decode(case)
        assert decoded.spacing is None
        for position, number in enumerate((8, 9, 10, 11)):
            np.testing.assert_array_equal(decoded.label[position, 0], disc_and_cup(number)[0])
            np.testing.assert_array_equal(decoded.image[position, 0], photo(number)[..., 0])


def test_nvflare_cases_that_no_list_names_are_left_out(tmp_path):
    entries = nvflare(tmp_path)
    write_datalist(tmp_path, "MSD", [entry for entry in entries if "prostate_01" not in entry["image"]])
    (site,) = NVFLARE_PROSTATE.find_sites(tmp_path)
    assert [case.name for case in site.cases] == ["prostate_00", "prostate_02"]
    assert site.left_out == tuple((f"{part}/prostate_01", "not in client_MSD.json") for part in ("Image", "Mask"))


def test_nvflare_bad_input_is_named(tmp_path):
    nvflare(tmp_path)
    (site,) = NVFLARE_PROSTATE.find_sites(tmp_path)
    place = tmp_path / "dataset_2D" / "MSD"
    (place / "Image" / "prostate_00" / "x.png").write_bytes((place / "Image" / "prostate_00" / "8.png").read_bytes())
    with pytest.raises(BadInput, match=r"x.png: its mask is missing"):
        NVFLARE_PROSTATE.decode(site.cases[0])
    (place / "Mask" / "prostate_00" / "x.png").write_bytes((place / "Mask" / "prostate_00" / "8.png").read_bytes())
    with pytest.raises(BadInput, match=r"x.png: not named by the number of its slice"):
        NVFLARE_PROSTATE.decode(site.cases[0])
    save_png(place / "Mask" / "prostate_01" / "9.png", rim_and_cup()[:50])
    with pytest.raises(BadInput, match=r"9.png: of shape \(50, 120\), but 8.png has"):
        NVFLARE_PROSTATE.decode(site.cases[1])
    (place / "Image" / "prostate_02" / "8.png").unlink()
    with pytest.raises(BadInput, match=r"client_MSD.json: names MSD/Image/prostate_02/8.png, which is not in"):
        NVFLARE_PROSTATE.find_sites(tmp_path)
    write_datalist(tmp_path, "MSD", [])
    with pytest.raises(BadInput, match=r"client_MSD.json: names no case"):
        NVFLARE_PROSTATE.find_sites(tmp_path)
    (tmp_path / "datalist_2D" / "client_MSD.json").write_text("[]")
    with pytest.raises(BadInput, match=r"client_MSD.json: not a readable data list"):
        NVFLARE_PROSTATE.find_sites(tmp_path)


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


def test_prostatex_zones_and_segments(tmp_path):
    image = tmp_path / "Image"
    slices = {}
    for number in range(1, 6):
        slices[number] = save_series(image / f"ProstateX-010{number}" / "t2_tse_tra", volume(number))
    save_series(image / "ProstateX-0101" / "t2_tse_sag", volume(7))
    slices[3] = save_series(image / "ProstateX-0103" / "t2_tse_tra_again", volume(8))
    save_itk(tmp_path / "Mask" / "ProstateX-0101.nrrd", *flipped(zones(), OBLIQUE, 0, 2))
    save_segmentation(tmp_path / "Mask" / "ProstateX-0102.dcm", slices[2], zones())
    save_segmentation(tmp_path / "Mask" / "ProstateX-0103" / "300-SEG" / "1-1.dcm", slices[3], zones())
    # Twice as many columns, each half as wide: another grid.
    fine = OBLIQUE @ np.array([[0.5, 0, 0, -0.25], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    save_itk(tmp_path / "Mask" / "ProstateX-0104.nrrd", zones().repeat(2, axis=0), fine)
    (site,) = found("prostatex", tmp_path).values()
    assert [case.name for case in site.cases] == [f"ProstateX-010{number}" for number in range(1, 5)]
    assert site.left_out == (
        ("Image/ProstateX-0101/t2_tse_sag", "not the T2 series of the mask"),
        ("Image/ProstateX-0103/t2_tse_tra", "not the T2 series of the mask"),
        ("Image/ProstateX-0105", "no zones: no mask to learn from"),
    )
    gland = np.isin(zones(), (1, 2, 4))
    resampled = ("mask resampled (nearest) to the grid of its image",)
    drawn = ((volume(1), box(), ()), (volume(2), gland, ()), (volume(8), gland, ()), (volume(4), box(), resampled))
    for case, (pixels, label, remarks) in zip(site.cases, drawn, strict=True):
        assert require_drawn("prostatex", case, pixels, label) == remarks


def test_prostatex_mask_beyond_its_image(tmp_path):
    save_series(tmp_path / "Image" / "ProstateX-0101" / "t2_tse_tra", volume(1))
    far = OBLIQUE.copy()
    far[1, 3] += 30
    save_itk(tmp_path / "Mask" / "ProstateX-0101.nrrd", zones(), far)
    (site,) = found("prostatex", tmp_path).values()
    with pytest.raises(BadInput, match=r"ProstateX-0101.nrrd: marks voxels outside its image t2_tse_tra"):
        KINDS["prostatex"].decode(site.cases[0])


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
