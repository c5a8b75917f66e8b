"""Every prostate layout, generated with its quirks, gives back voxel by voxel what the generator drew."""

import numpy as np
import pytest
from layouts import SHAPE, box, save_nifti, volume
from layouts_prostate import (
    OBLIQUE,
    flipped,
    i2cvb,
    msd_prostate,
    nci_isbi,
    promise12,
    prostate158,
    save_itk,
    save_segmentation,
    save_series,
    zones,
)

from data_prep.kinds import KINDS
from data_prep.volumes import read_itk, read_nifti, read_series
from fedmerit.errors import BadInput


def found(kind, source):
    return {site.name: site for site in KINDS[kind].find_sites(source)}


def require_drawn(kind, case, image, label):
    """The decoded case is what was drawn: slices from foot to head, rows to the back, columns to the left."""
    decoded = KINDS[kind].decode(case)
    np.testing.assert_array_equal(decoded.label[:, 0], label.transpose(2, 1, 0))
    np.testing.assert_array_equal(decoded.image[:, 0], image.transpose(2, 1, 0))
    np.testing.assert_allclose(decoded.spacing, (0.75, 0.5), atol=1e-6)
    return decoded.remarks


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


@pytest.mark.parametrize("defect", ["number", "mask", "truncated"])
def test_promise12_that_is_not_whole(tmp_path, defect):
    promise12(tmp_path, (50,) if defect == "number" else (3,))
    if defect == "number":
        with pytest.raises(BadInput, match=r"Case50.mhd: training cases are numbered 00 to 49"):
            found("promise12", tmp_path)
    elif defect == "mask":
        (tmp_path / "Case03_segmentation.mhd").unlink()
        with pytest.raises(BadInput, match=r"Case03.mhd: its mask is missing"):
            found("promise12", tmp_path)
    else:
        (tmp_path / "Case03.raw").write_bytes((tmp_path / "Case03.raw").read_bytes()[:100])
        with pytest.raises(BadInput, match=r"Case03.mhd: not a readable volume"):
            KINDS["promise12"].decode(found("promise12", tmp_path)["BIDMC"].cases[0])


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


def test_nci_isbi_mask_without_its_image(tmp_path):
    nci_isbi(tmp_path)
    save_itk(tmp_path / "Mask" / "Test" / "ProstateDx-03-0001.nrrd", box())
    with pytest.raises(BadInput, match=r"ProstateDx-03-0001.nrrd: the image of this mask is missing"):
        found("nci-isbi-2013", tmp_path)


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


def test_i2cvb_without_a_mask(tmp_path):
    i2cvb(tmp_path)
    (tmp_path / "GE" / "Patient 1" / "GT" / "prostate").rename(tmp_path / "GE" / "Patient 1" / "GT" / "pz")
    with pytest.raises(BadInput, match="Patient 1/T2W: its mask is missing"):
        found("i2cvb", tmp_path)


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
    with pytest.raises(BadInput, match=r"labelsTr/prostate_00.nii.gz: holds label 4; expected 0 to 2"):
        KINDS["msd-prostate"].decode(site.cases[0])


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
    with pytest.raises(BadInput, match="already stands for case 022"):
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
    with pytest.raises(BadInput, match=r"ProstateX-0101.nrrd: marks voxels outside of its image t2_tse_tra"):
        KINDS["prostatex"].decode(site.cases[0])


def test_multisite_takes_every_spelling(tmp_path):
    for folder, mask in (("isbi_1.5", "_Segmentation"), ("Bidmc", "_SEGMENTATION"), ("HK", "-segmentation")):
        save_nifti(tmp_path / folder / "case00.nii.gz", volume(0), OBLIQUE)
        save_nifti(tmp_path / folder / f"Case00{mask}.nii.gz", box() * 3, OBLIQUE)
    (tmp_path / "HK" / "older").mkdir()
    sites = found("prostate-multisite", tmp_path)
    assert list(sites) == ["BIDMC", "BMC", "HK"]
    assert [name for name, _ in sites["HK"].left_out] == ["older"]
    for site in sites.values():
        assert require_drawn("prostate-multisite", site.cases[0], volume(0), box()) == ("labels up to 3 clipped to 1",)


LAYOUTS = ("promise12", "nci-isbi-2013", "i2cvb", "msd-prostate", "prostatex", "prostate158")


@pytest.mark.parametrize("kind", LAYOUTS)
def test_no_source_and_no_cases(tmp_path, kind):
    with pytest.raises(BadInput, match="missing: no such folder"):
        found(kind, tmp_path / "missing")
    with pytest.raises(BadInput, match=r"no cases in this site folder|no folder GE or Siemens in it"):
        found(kind, tmp_path)


# The release's folder, and the millilitres of gland and the slices that show it as measured on its real cases.
REAL = {
    "promise12": ("PROMISE12", [(26.6, 12), (51.9, 14)]),
    "prostatex": ("PROSTATEx", [(160.8, 18)]),
    "prostate158": ("Prostate158", [(57.0, 18), (70.7, 17)]),
}


def read_file(path):
    if path.is_dir():
        return read_series(path)
    return read_itk(path) if path.suffix in (".mhd", ".nrrd") else read_nifti(path)


@pytest.mark.parametrize("kind", REAL)
def test_real_cases_as_released(real_data, kind):
    folder, expected = REAL[kind]
    (source, *_) = [path for path in sorted(real_data.glob(f"**/{folder}")) if path.is_dir()] or [None]
    if source is None:
        pytest.skip(f"no {folder} among the real images")
    seen = []
    for site in KINDS[kind].find_sites(source):
        assert site.left_out == ()
        for case in site.cases:
            decoded = KINDS[kind].decode(case)
            assert decoded.remarks == ()
            areas = decoded.label.sum(axis=(1, 2, 3))
            files = {path: read_file(path) for path in (case.image, case.label)}
            voxel = abs(np.linalg.det(files[case.image].affine))
            seen.append((round(float(areas.sum() * voxel / 1000), 1), np.count_nonzero(areas)))
            # Nothing marked is lost; one run of slices, with the gland in the middle half of them.
            assert areas.sum() == np.count_nonzero(files[case.label].voxels)
            assert (np.diff(np.flatnonzero(areas)) == 1).all()
            middle = np.argwhere(decoded.label[:, 0].any(axis=0)).mean(axis=0) / decoded.label.shape[2:]
            assert ((middle > 0.25) & (middle < 0.75)).all()
    assert sorted(seen) == expected


def test_shape_is_what_the_flips_need():
    """No flip or swap of axes maps what is drawn onto itself: else the comparisons above would prove little."""
    drawn = zones()
    assert drawn.shape == SHAPE
    for axes in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
        assert not np.array_equal(np.flip(box(), axes), box())
    assert len(set(SHAPE)) == 3
    assert set(np.unique(drawn)) == {0, 1, 2, 3, 4}
