"""Folders as hospitals and public sets have them: which mask belongs to which image, and what is refused."""

import csv
import shutil
import unicodedata
from functools import partial

import numpy as np
import pytest
from layouts import AXIAL, box, save_nifti, save_png, volume
from layouts_dicom import save_structures
from layouts_prostate import OBLIQUE, save_series
from pydicom import dcmread

from fedmerit.errors import BadInput
from fedmerit_data.preparation import Preparation
from fedmerit_data.prepare import write_pairs
from fedmerit_data.preparing.site_lists import find_sites
from fedmerit_data.readers import generic, inventory
from fedmerit_data.readers.channel_names import canonical
from fedmerit_data.readers.image_files import read_image
from fedmerit_data.readers.inventory import find_series, take_inventory
from fedmerit_data.readers.lists import ROWS
from fedmerit_data.readers.unlabelled import find_images

SQUARE = np.array([[5, 6], [9, 6], [9, 10], [5, 10]], float)


def files(root, *pairs):
    """Images and masks under these names."""
    for image, mask in pairs:
        save_nifti(root / image, volume(0))
        save_nifti(root / mask, box())


def found(root, **options):
    return {
        site.name: {case.name: (case.patient, [part.path.name for part in case.parts]) for case in site.cases}
        for site in generic.find_sites(root, **options)
    }


BY_NAME = {  # image and mask; site, case and patient
    "capitals": ("H/Images/p.nii.gz", "H/Masks/p.nii.gz", ("H", "p", "H-p")),
    "singular": ("H/image/p.nii.gz", "H/label/p.nii.gz", ("H", "p", "H-p")),
    "centre in the folder": ("C1/images_C1/p.nii.gz", "C1/masks_C1/p_mask.nii.gz", ("C1", "p", "C1-p")),
    "splits": ("D/train/imgs/p.nii.gz", "D/train/mask/p.nii.gz", ("D", "p", "D-p")),
    "one folder": ("A/volume-7.nii", "A/segmentation-7.nii", ("A", "volume-7", "A-volume-7")),
    "times": ("p01/p01_frame01.nii.gz", "p01/p01_frame01_gt.nii.gz", ("raw", "p01_frame01", "raw-p01")),
    "no list": ("imagesTr/p_0000.nii.gz", "labelsTr/p.nii.gz", ("raw", "p", "raw-p")),
    "bids": (
        "sub-01/anat/sub-01_T2w.nii.gz",
        "derivatives/labels/sub-01/anat/sub-01_T2w_label-organ_mask.nii.gz",
        ("raw", "sub-01_T2w", "raw-sub-01"),
    ),
    "bids, sessions": (
        "sub-01/ses-2/anat/sub-01_ses-2_T2w.nii.gz",
        "derivatives/manual_masks/sub-01/ses-2/anat/sub-01_ses-2_T2w_lesion-manual.nii.gz",
        ("raw", "sub-01_ses-2_T2w", "raw-sub-01"),
    ),
    "other folders": ("images/10/10_77_t2w.nii.gz", "masks/10_77.nii.gz", ("raw", "10_77", "raw-10")),
    "bids, labels that images lack": (
        "sub-01/ses-1/anat/sub-01_ses-1_space-MNI_T1w.nii.gz",
        "sub-01/ses-1/anat/sub-01_ses-1_space-MNI_label-L_desc-T1lesion_mask.nii.gz",
        ("raw", "sub-01_ses-1_space-MNI", "raw-sub-01"),
    ),
    "bids, derivatives of no pipeline": (
        "rawdata/sub-01/sub-01_ct.nii.gz",
        "derivatives/sub-01/sub-01_seg-vert_msk.nii.gz",
        ("raw", "sub-01", "raw-sub-01"),
    ),
    "roles at the end of folder names": ("test-image/p1.nii.gz", "test-mask/p1.nii.gz", ("raw", "p1", "raw-p1")),
    "sites in names of folders": ("A_images/p1.nii.gz", "A_masks/p1.nii.gz", ("A", "p1", "A-p1")),
    "images in a folder of any name": ("Original/1.nii.gz", "Ground Truth/1.nii.gz", ("raw", "1", "raw-1")),
    "numbers without a separator": ("img/img01.nii.gz", "label/label01.nii.gz", ("raw", "img01", "raw-img01")),
    "pictures of a patient": ("A/P1/images/001.nii", "A/P1/masks/001.nii", ("A", "001", "A-P1")),
    "a hospital called Test": (
        "TestHospital/images/p.nii",
        "TestHospital/masks/p.nii",
        ("TestHospital", "p", "TestHospital-p"),
    ),
    "folders in a patient's": ("C1/P1/preprocessed/P1.nii.gz", "C1/P1/masks/consensus.nii.gz", ("C1", "P1", "C1-P1")),
    "role first": ("Image_01L.nii.gz", "Image_01L_1stHO.nii.gz", ("raw", "Image_01L", "raw-Image_01L")),
    "a word of its role with a number": ("img01.nii.gz", "img01_mask.nii.gz", ("raw", "img01", "raw-img01")),
    "a role glued to a number": ("1.nii.gz", "1seg.nii.gz", ("raw", "1", "raw-1")),
    "what is marked after the role": ("subset0/p1.nii.gz", "seg-lungs/p1.nii.gz", ("raw", "p1", "raw-p1")),
    "folders counted": ("1. Original Images/p1.nii.gz", "2. All Masks/p1.nii.gz", ("raw", "p1", "raw-p1")),
    "German": ("Bilder/p1.nii.gz", "Masken/p1.nii.gz", ("raw", "p1", "raw-p1")),
    "zeros before numbers": ("H1/images/p01.nii.gz", "H1/masks/p1.nii.gz", ("H1", "p01", "H1-p01")),
    "equal numbers": ("images/img_001.nii.gz", "labels/seg1.nii.gz", ("raw", "img_001", "raw-img_001")),
    "folders that repeat their patient": (
        "P2/P2_Dermoscopic_Image/P2.nii.gz",
        "P2/P2_lesion/P2_lesion.nii.gz",
        ("raw", "P2", "raw-P2"),
    ),
    "kits": ("case_00/imaging.nii.gz", "case_00/segmentation.nii.gz", ("raw", "case_00", "raw-case_00")),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_find_sites_pairs_names_that_go_together(tmp_path, name):
    image, mask, (site, case, patient) = BY_NAME[name]
    files(tmp_path / "raw", (image, mask))
    expected = {site: {case: (patient, [image.rpartition("/")[2]])}}
    assert found(tmp_path / "raw") == expected


NUMBERS = (1, 2)  # what {n} stands for
LABELLED = {"core": ("tumor",)}
CASES = {  # files; options; "SITE, CASE of PATIENT: images | masks"; files left out, and why if that is one reason
    "channels, zeros before numbers": (
        "images/case_00{n}_t1 images/case_00{n}_t2 labels/case_{n}", {},
        ["raw, case_00{n} of case_00{n}: images/case_00{n}_t1 images/case_00{n}_t2 | labels/case_{n}"], "", "",
    ),
    "folders in that of images are sites": (
        "images/A/{n} masks/A/{n} images/B/{n} masks/B/{n}", {},
        ["A, {n} of {n}: images/A/{n} | masks/A/{n}", "B, {n} of {n}: images/B/{n} | masks/B/{n}"], "", "",
    ),
    "or patients if they have numbers": (
        "images/P1/{n} masks/P1/{n} images/P2/{n} masks/P2/{n}", {},
        ["raw, P1-{n} of P1: images/P1/{n} | masks/P1/{n}", "raw, P2-{n} of P2: images/P2/{n} | masks/P2/{n}"], "", "",
    ),
    "lesions of one case, each in a file": (
        "a{n}/images/a{n} a{n}/masks/x7a{n} a{n}/masks/y8a{n}", {},
        ["raw, a{n} of a{n}: a{n}/images/a{n} | a{n}/masks/x7a{n} a{n}/masks/y8a{n}"], "", "",
    ),
    "names that differ only by case": (
        "A/images/p{n} A/masks/p{n} A/images/P{n} A/masks/P{n} a/images/p{n} a/masks/p{n}", {},
        ["A, p{n} of p{n}: A/images/p{n} | A/masks/p{n}", "A, P{n} of P{n}: A/images/P{n} | A/masks/P{n}",
         "a, p{n} of p{n}: a/images/p{n} | a/masks/p{n}"], "", "",
    ),
    "numbered lesions are joined": (
        "images/p{n} masks/p{n}_lesion1 masks/p{n}_lesion-2", {},
        ["raw, p{n} of p{n}: images/p{n} | masks/p{n}_lesion-2 masks/p{n}_lesion1"], "", "",
    ),
    "organs by what names of masks do not share": (
        "P{n}_nifti/P{n}_T1 P{n}_nifti/P{n}_tumor_segmentation P{n}_nifti/P{n}_brain_segmentation",
        {"labels": LABELLED},
        ["raw, P{n}_nifti of P{n}_nifti: P{n}_nifti/P{n}_T1 | P{n}_nifti/P{n}_tumor_segmentation"],
        "P{n}_nifti/P{n}_brain_segmentation", "an organ that --labels does not name",
    ),
    **{
        f"the organ {organ} by the name of a file": (
            "P{n}/T1 P{n}/Tumor_seg P{n}/brain_mask", {"labels": {"core": (organ,)}, "channels": 1},
            ["raw, P{n} of P{n}: P{n}/T1 | P{n}/Tumor_seg"],
            "P{n}/brain_mask", "an organ that --labels does not name",
        )
        for organ in ("tumor", "Tumor", "Tumor_seg", "tumor_seg")
    },
    "an organ that some patients lack is no channel": (
        "P{n}/ct P{n}/liver P2/spleen", {"labels": {"liver": ("liver",)}, "channels": 1},
        ["raw, P{n} of P{n}: P{n}/ct | P{n}/liver"], "P2/spleen", "",
    ),
    "an organ by the end of a name": (
        "p{n} p{n}_gland", {"labels": {"gland": ("gland",)}}, ["raw, p{n} of p{n}: p{n} | p{n}_gland"], "", "",
    ),
    "organs by the ends of names of masks": (
        "P{n}/P{n}_IMG_CT P{n}/P{n}_OAR_Parotid_L_seg P{n}/P{n}_OAR_Parotid_R_seg",
        {"labels": {"left": ("parotid_l",)}},
        ["raw, P{n} of P{n}: P{n}/P{n}_IMG_CT | P{n}/P{n}_OAR_Parotid_L_seg"],
        "P{n}/P{n}_OAR_Parotid_R_seg", "an organ that --labels does not name",
    ),
    "the mask of a patient beside those of instances": (
        "case_{n}/imaging case_{n}/segmentation case_{n}/instances/kidney_instance-1_annotation-1",
        {"labels": {"kidney": ("segmentation",)}},
        ["raw, case_{n} of case_{n}: case_{n}/imaging | case_{n}/segmentation"],
        "case_{n}/instances/kidney_instance-1_annotation-1", "an organ that --labels does not name",
    ),
    "masks of one name in several folders, as of DRIVE": (
        "images/2{n}_training 1st_manual/2{n}_manual1 mask/2{n}_training_mask", {"labels": {"a": ("1st_manual",)}},
        ["raw, 2{n} of 2{n}: images/2{n}_training | 1st_manual/2{n}_manual1"],
        "mask/2{n}_training_mask", "an organ that --labels does not name",
    ),
    "several folders of masks by number": (
        "ct_scans/cases_org_00{n} lung_mask/cases_00{n} infection_mask/cases_00{n}",
        {"labels": {"lung": ("lung_mask",)}},
        ["raw, cases_org_00{n} of cases_org_00{n}: ct_scans/cases_org_00{n} | lung_mask/cases_00{n}"],
        "infection_mask/cases_00{n}", "an organ that --labels does not name",
    ),
    "images in the folder of images first": (
        "images/{n} vessel-segmentations/{n}", {}, ["raw, {n} of {n}: images/{n} | vessel-segmentations/{n}"], "", "",
    ),
    "folders of cases called as channels are patients": (
        "H/02{n}/t2 H/02{n}/adc H/02{n}/t2_mask H/02{n}/adc_mask", {},
        ["H, 02{n}-t2 of 02{n}: H/02{n}/t2 | H/02{n}/t2_mask", "H, 02{n}-adc of 02{n}: H/02{n}/adc | H/02{n}/adc_mask"],
        "", "",
    ),
    "images of a patient with a mask each": (
        "p{n}/T2 p{n}/T2-label p{n}/ADC p{n}/ADC-label", {},
        ["raw, p{n}-T2 of p{n}: p{n}/T2 | p{n}/T2-label", "raw, p{n}-ADC of p{n}: p{n}/ADC | p{n}/ADC-label"], "", "",
    ),
    "of which one channel is asked for": (
        "p{n}/T2 p{n}/T2-label p{n}/ADC p{n}/ADC-label", {"channels": ("t2",)},
        ["raw, p{n}-T2 of p{n}: p{n}/T2 | p{n}/T2-label"], "p{n}/ADC", "a channel that --channels does not name",
    ),
    "of which one channel is asked for, in one folder": (
        "p{n}_T2 p{n}_T2_seg p{n}_adc p{n}_adc_seg", {"channels": ("t2",)},
        ["raw, p{n}_T2 of p{n}_T2: p{n}_T2 | p{n}_T2_seg"], "raw/p{n}_adc", "a channel that --channels does not name",
    ),
    "other images of a subject, and derivatives": (
        "sub-0{n}/anat/sub-0{n}_T1w sub-0{n}/func/sub-0{n}_task-rest_bold "
        "derivatives/prep/sub-0{n}/anat/sub-0{n}_desc-preproc_T1w derivatives/d/sub-0{n}/anat/sub-0{n}_label-a_mask",
        {},
        ["raw, sub-0{n} of sub-0{n}: sub-0{n}/anat/sub-0{n}_T1w | derivatives/d/sub-0{n}/anat/sub-0{n}_label-a_mask"],
        "derivatives/prep/sub-0{n}/anat/sub-0{n}_desc-preproc_T1w sub-0{n}/func/sub-0{n}_task-rest_bold", "",
    ),
    "the mask of another reader": (
        "P{n}/t2 P{n}/seg P1/seg_rater2", {}, ["raw, P{n} of P{n}: P{n}/t2 | P{n}/seg"],
        "P1/seg_rater2", "the mask of another reader",
    ),
    "equal names in training and test are two images": (
        "train/images/{n} train/masks/{n} test/images/{n} test/masks/{n}", {},
        ["raw, train-{n} of train-{n}: train/images/{n} | train/masks/{n}",
         "raw, test-{n} of test-{n}: test/images/{n} | test/masks/{n}"], "", "",
    ),
    "a folder that names begin with is no patient": (
        "ct_tr/ct_tr_{n}_image ct_tr/ct_tr_{n}_label", {},
        ["ct_tr, ct_tr_{n}_image of ct_tr_{n}_image: ct_tr/ct_tr_{n}_image | ct_tr/ct_tr_{n}_label"],
        "", "",
    ),
    "numbers of sites are no patients": (
        "1/images/{n} 1/masks/{n} 2/images/{n} 2/masks/{n}", {},
        ["1, {n} of {n}: 1/images/{n} | 1/masks/{n}", "2, {n} of {n}: 2/images/{n} | 2/masks/{n}"], "", "",
    ),
    "visits of one patient": (
        "ann/baseline/t2 ann/baseline/seg ann/2021-03-0{n}/t2 ann/2021-03-0{n}/seg bob/followup/t2 bob/followup/seg",
        {},
        ["raw, ann-2021-03-0{n}-t2 of ann: ann/2021-03-0{n}/t2 | ann/2021-03-0{n}/seg",
         "raw, ann-baseline-t2 of ann: ann/baseline/t2 | ann/baseline/seg",
         "raw, bob of bob: bob/followup/t2 | bob/followup/seg"], "", "",
    ),
    "visits of patients of sites": (
        "A/A_pat{n}/pre/T2 A/A_pat{n}/pre/T2_seg A/A_pat{n}/post/T2 A/A_pat{n}/post/T2_seg "
        "B/B_pat{n}/pre/T2 B/B_pat{n}/pre/T2_seg", {},
        ["A, A_pat{n}-post-T2 of A_pat{n}: A/A_pat{n}/post/T2 | A/A_pat{n}/post/T2_seg",
         "A, A_pat{n}-pre-T2 of A_pat{n}: A/A_pat{n}/pre/T2 | A/A_pat{n}/pre/T2_seg",
         "B, B_pat{n}-pre-T2 of B_pat{n}: B/B_pat{n}/pre/T2 | B/B_pat{n}/pre/T2_seg"], "", "",
    ),
    "channels by name beside the one that the mask is of": (
        "sub-0{n}/anat/sub-0{n}_T2w sub-0{n}/anat/sub-0{n}_acq-ax_T1w sub-01/anat/sub-01_FLAIR "
        "derivatives/labels/sub-0{n}/anat/sub-0{n}_T2w_seg-manual", {"channels": ("t1", "t2")},
        ["raw, sub-0{n}_T2w of sub-0{n}: sub-0{n}/anat/sub-0{n}_acq-ax_T1w sub-0{n}/anat/sub-0{n}_T2w | "
         "derivatives/labels/sub-0{n}/anat/sub-0{n}_T2w_seg-manual"],
        "anat/sub-01_FLAIR", "a channel that --channels does not name",
    ),
    "channels that some patients have and nobody names": (
        "P{n}/P{n}_t1 P{n}/P{n}_t2 P2/P2_flair P{n}/P{n}_seg", {"channels": ("t2", "t1")},
        ["raw, P{n} of P{n}: P{n}/P{n}_t2 P{n}/P{n}_t1 | P{n}/P{n}_seg"],
        "P2/P2_flair", "a channel that --channels does not name",
    ),
    **{
        f"a folder for each channel, {folder or 'beside masks'}": (
            f"{masks}masks/P{{n}} {folder}T1/P{{n}} {folder}T2w/P{{n}} {folder}FLAIR/P{{n}}",
            {"channels": ("t2", "t1")},
            [f"{site}, P{{n}} of P{{n}}: {folder}T2w/P{{n}} {folder}T1/P{{n}} | {masks}masks/P{{n}}"],
            "FLAIR/P{n}", "a channel that --channels does not name",
        )
        for folder in ("", "images/", "A/", "A/images/")
        for masks, site in [("A/", "A") if folder.startswith("A") else ("", "raw")]
    },
    "predictions of images with masks": (
        "imagesTr/p{n} labelsTr/p{n} predictions/p1", {}, ["raw, p{n} of p{n}: imagesTr/p{n} | labelsTr/p{n}"],
        "predictions/p1", "in a folder of images without masks",
    ),
    **{
        f"images without masks in {folder}": (
            f"A/images/p{{n}} A/masks/p{{n}} {folder}/q", {}, ["A, p{n} of p{n}: A/images/p{n} | A/masks/p{n}"],
            f"{folder}/q", "in a folder of images without masks",
        )
        for folder in ("images_test", "imagesTs", "unlabeled", "FLARE_Unlabeled/images", "test/images")
    },
    "folders that systems add": (
        "images/p{n} masks/p{n} __MACOSX/p{n} images/@eaDir/p{n} masks/lost+found/p{n}", {},
        ["raw, p{n} of p{n}: images/p{n} | masks/p{n}"], "", "",
    ),
    "masks of objects beside those of a class": (
        "JPEGImages/p{n} SegmentationClass/p{n} SegmentationObject/p{n}", {},
        ["raw, p{n} of p{n}: JPEGImages/p{n} | SegmentationClass/p{n}"],
        "SegmentationObject/p{n}", "in a folder without masks",
    ),
}  # fmt: skip


def expand(text):
    return {text.format(n=number) for number in NUMBERS}


def tree(root, names):
    """Volumes under these names, those with {n} for each number."""
    for name in set().union(*map(expand, names.split())):
        save_nifti(root / f"{name}.nii.gz", box())


def short(path, root):
    return path.relative_to(root).as_posix().removesuffix(".nii.gz")


@pytest.mark.parametrize("name", CASES)
def test_find_sites_gives_sites_cases_patients_images_and_masks(tmp_path, name):
    names, options, cases, left_out, reason = CASES[name]
    root = tmp_path / "raw"
    tree(root, names)
    sites = (generic.generic_kind if "channels" in options else partial(generic.find_sites, root))(**options)
    sites = sites if isinstance(sites, list) else sites.find_sites(root)
    assert {
        f"{site.name}, {case.name} of {case.patient.removeprefix(f'{site.name}-')}: "
        f"{' '.join(short(part.path, root) for part in case.parts)} | "
        f"{' '.join(short(path, root) for path in (case.label, *case.more))}"
        for site in sites
        for case in site.cases
    } == set().union(*map(expand, cases))
    found = [(file.removesuffix(".nii.gz"), why) for site in sites for file, why in site.left_out]
    assert {file for file, _ in found} == set().union(*map(expand, left_out.split()))
    assert {why for _, why in found} == {reason} or not reason


REFUSED = {  # files; labels; what is wrong
    "a number of several images": (
        "images/p1 images/p01 masks/p001", {},
        r"p001\.nii\.gz: its image is missing(.|\n)*no image is named as p001.nii.gz, as p01.nii.gz might be",
    ),
    "names that several cases have are organs": (
        "a{n}/images/a{n} a{n}/masks/x7 a{n}/masks/y8", {}, r"has masks of 2 organs \(x7, y8\)",
    ),
    "two masks of one number": (
        "ct_scans/cases_org_00{n} lung_mask/cases_00{n} infection_mask/cases_00{n} infection_mask/old_cases_001",
        {"lung": ("lung_mask",)}, "its image is missing",
    ),
    "a folder beside that of images": (
        "images/{n} vessel-segmentations/{n} arteries/{n}", {}, r"arteries/1.nii.gz: its mask is missing",
    ),
    "two masks whose names end so": (
        "P{n}/P{n}_IMG_CT P{n}/P{n}_OAR_Parotid_L_seg P{n}/P{n}_OAR_Parotid_R_seg", {"left": ("parotid",)},
        "names none of them",
    ),
    "the mask of a patient beside those of instances": (
        "case_{n}/imaging case_{n}/segmentation case_{n}/instances/kidney_instance-1_annotation-1", {"kidney": (1,)},
        "such as --labels segmentation='segmentation'",
    ),
    "masks of one name in several folders": (
        "images/2{n}_training 1st_manual/2{n}_manual1 mask/2{n}_training_mask", {},
        r"2 organs \(1st_manual, mask\).*--labels organ_1st_manual='1st_manual'",
    ),
    "no name of a mask": (
        "p{n} p{n}_wmh", {}, r"names end in wmh \(2\): if one is that of masks, --labels NAME=wmh",
    ),
    "masks of structures by their words": (
        "HCC_1/CT HCC_1/RTSTRUCT_GTV-{n}", {}, r"masks of 2 organs \(GTV_1, GTV_2\), .* --labels GTV_1='GTV_1'",
    ),
    "channels that some patients lack": (
        "P{n}/P{n}_t1 P{n}/P{n}_t2 P2/P2_flair P{n}/P{n}_seg", {},
        "each needs the same, or name those to use, such as --channels t1,t2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_find_sites_refuses_what_does_not_go_together(tmp_path, name):
    names, labels, message = REFUSED[name]
    tree(tmp_path, names)
    with pytest.raises(BadInput, match=message):
        generic.find_sites(tmp_path, labels=labels or generic.ANY)


def test_channels_of_series_in_one_folder_are_named_by_their_descriptions(tmp_path):
    folder = tmp_path / "P1" / "study"
    for number, name in enumerate(("t1 mprage", "t2 tse", "localizer")):
        save_series(tmp_path / "from" / str(number), volume(number))
        folder.mkdir(parents=True, exist_ok=True)
        for path in (tmp_path / "from" / str(number)).iterdir():
            slice_ = dcmread(path)
            slice_.SeriesDescription, slice_.StudyInstanceUID = name, "1.2.3"
            slice_.save_as(folder / f"{number}-{path.name}")
    shutil.rmtree(tmp_path / "from")
    save_nifti(tmp_path / "P1" / "seg.nii.gz", box())
    (site,) = generic.generic_kind(channels=("t2", "t1")).find_sites(tmp_path)
    assert site.cases[0].channel_names == ("t2", "t1")
    assert [len(part.files) for part in site.cases[0].parts] == [4, 4]
    (image,) = find_images([folder], 2, names=("t2", "t1"))
    assert [part.files for part in image.parts] == [part.files for part in site.cases[0].parts]


def test_series_are_proposed_by_the_names_that_choose_them(tmp_path):
    for number, name in enumerate(("tse tra", "ep2d")):
        save_series(tmp_path / "P1" / f"s{number}", volume(number))
        for path in (tmp_path / "P1" / f"s{number}").iterdir():
            slice_ = dcmread(path)
            slice_.SeriesDescription = name
            slice_.save_as(path)
    save_nifti(tmp_path / "P1" / "seg.nii.gz", box())
    with pytest.raises(BadInput, match="name them: --channels ep2d,tsetra"):
        generic.generic_kind(channels=2).find_sites(tmp_path)
    (site,) = generic.generic_kind(channels=("ep2d", "tsetra")).find_sites(tmp_path)
    assert [part.path.name for part in site.cases[0].parts] == ["s1", "s0"]


def test_folder_of_a_patient_with_several_patient_ids_is_no_site(tmp_path):
    for number in range(4):
        visit = tmp_path / f"P{number // 2}" / f"{2019 + number % 2}"
        save_series(visit / "series", volume(number))
        for path in (visit / "series").iterdir():
            slice_ = dcmread(path)
            slice_.PatientID = f"1.2.3.4.5.{number}"
            slice_.save_as(path)
        save_nifti(visit / "mask.nii.gz", box(), OBLIQUE)
    (site,) = generic.find_sites(tmp_path)
    assert len({case.patient for case in site.cases}) == 4
    assert site.remarks == (
        "2 folder(s), such as P0, hold images of several PatientIDs, which count as patients: if each is of one, name "
        "patients with --patient-table",
    )


def test_find_sites_pairs_masks_with_folders_of_their_number(tmp_path):
    for number in (1, 2, 10):
        image, mask = f"CT/PAT_{number:04d}/2015-1-3/ax.nii.gz", f"TCIA_labels-02-05-2017/label{number:04d}.nii.gz"
        files(tmp_path, (image, mask))
    (cases,) = found(tmp_path, site="A").values()
    (site,) = generic.find_sites(tmp_path, site="A")
    assert site.remarks == ("masks of 3 case(s) paired by number only, such as label0001.nii.gz of PAT_0001",)
    assert {name: patient for name, (patient, _) in cases.items()} == {
        f"PAT_{number:04d}": f"A-PAT_{number:04d}" for number in (1, 2, 10)
    }


def stack_of_pictures(root, names):
    """Two series of DICOM with a folder of pictures, the one of the second slice from the feet with a square."""
    for patient in "12":
        folder = root / "CT" / patient
        save_series(folder / "DICOM_anon", volume(1), suffix=".dcm")
        paths = sorted((folder / "DICOM_anon").iterdir(), key=lambda path: dcmread(path).ImagePositionPatient[2])
        for place, path in enumerate(paths):
            path.rename(path.with_name(f"x{place}.dcm"))
            pixels = np.zeros(volume(1).shape[1::-1], np.uint8)
            pixels[5:9, 4:8] = 255 * (place == 1)
            save_png(folder / "Ground" / names.format(place), pixels)


@pytest.mark.parametrize("names", ["x{}.png", "liver_GT_{:03d}.png"])
def test_find_sites_takes_a_picture_for_each_slice_as_a_mask(tmp_path, names):
    stack_of_pictures(tmp_path, names)
    kind = generic.generic_kind({"liver": (255,)}, channels=1)
    (site,) = kind.find_sites(tmp_path)
    case, _ = site.cases
    label = kind.decode(case).label
    assert (site.name, case.name, case.patient, case.label.name) == ("CT", "1", "CT-1", "Ground")
    assert [int(part.sum()) for part in label] == [0, 16, 0, 0]
    (tmp_path / "CT" / "1" / "Ground" / names.format(3)).unlink()
    with pytest.raises(BadInput, match="3 pictures, its image has 4 slices"):
        kind.decode(case)


def test_pictures_in_another_order_than_slices_are_refused(tmp_path):
    stack_of_pictures(tmp_path, "GT{}.png")
    folder = tmp_path / "CT" / "1" / "DICOM_anon"
    for name, other in (("x0", "y"), ("x2", "x0"), ("y", "x2")):
        (folder / f"{name}.dcm").rename(folder / f"{other}.dcm")
    kind = generic.generic_kind({"liver": (255,)}, channels=1)
    with pytest.raises(BadInput, match="name each picture as its slice"):
        kind.decode(kind.find_sites(tmp_path)[0].cases[0])


def test_find_sites_joins_numbered_parts_of_a_mask(tmp_path):
    for name, pixels in (("a (2)", 90), ("a (2)_mask", 255), ("a (2)_mask_1", 255)):
        array = np.zeros((20, 20), np.uint8)
        array[3:6, 3:6] = pixels * (name != "a (2)_mask_1")
        array[10:14, 10:14] = pixels * (name != "a (2)_mask")
        save_png(tmp_path / "benign" / f"{name}.png", array)
    kind = generic.generic_kind({"lesion": (255,)}, channels=1)
    (site,) = kind.find_sites(tmp_path)
    label = kind.decode(site.cases[0]).label
    assert (site.name, site.cases[0].name, int(label.sum())) == ("benign", "a (2)", 9 + 16)


def test_find_sites_pairs_names_in_both_forms_of_unicode(tmp_path):
    """A letter with its accent, or the accent after it, as macOS stores names."""
    for number in range(2):
        image, mask = (unicodedata.normalize(form, f"Müller_{number}") for form in ("NFC", "NFD"))
        files(tmp_path / "raw" / "A", (f"images/{image}.nii.gz", f"masks/{mask}.nii.gz"))
    (site,) = generic.find_sites(tmp_path / "raw")
    assert len(site.cases) == 2


def dicom(folder, seed, patient=None, name=None):
    slices = save_series(folder, volume(seed), suffix="")
    for path in sorted(folder.iterdir()):
        if name:
            path.rename(folder / f"{name}.{path.name}")
    return slices


LAYOUTS_OF_DICOM = {  # series and mask of patient N; the site
    "tcia": ("Coll/P{}/01-01-2010/3-t2", "Coll/P{}/01-01-2010/9-RTSTRUCT/1-1.dcm", "Coll"),
    "a folder a patient": ("P{}/CT", "P{}/RTSTRUCT/rs.dcm", "raw"),
    "planning export": ("A/images/P{}", "A/images/P{}/RS.dcm", "A"),
    "masks beside": ("A/images/P{}/st/se", "A/masks/P{}.dcm", "A"),
}


@pytest.mark.parametrize("name", LAYOUTS_OF_DICOM)
def test_find_sites_pairs_structures_with_the_series_that_they_refer_to(tmp_path, name):
    series, mask, site = LAYOUTS_OF_DICOM[name]
    for number in range(2):
        slices = dicom(tmp_path / "raw" / series.format(number), number, name="MR.1.2.840")
        save_structures(tmp_path / "raw" / mask.format(number), slices, {"CTV+5mm": [(2, SQUARE)]})
    kind = generic.generic_kind({"ctv": ("CTV+5mm",)}, channels=1)
    (one,) = kind.find_sites(tmp_path / "raw")
    assert (one.name, [case.patient for case in one.cases]) == (site, [f"{site}-P0", f"{site}-P1"])
    for number, case in enumerate(one.cases):
        decoded = kind.decode(case)
        np.testing.assert_array_equal(np.sort(decoded.image.ravel()), np.sort(volume(number).ravel()))
        assert decoded.label.sum() == 16


def test_refusal_shows_what_the_folder_holds_and_the_nearest_layout(tmp_path):
    files(tmp_path, ("A/images/p.nii.gz", "A/masks/p.nii.gz"), ("A/images/q.nii.gz", "A/masks/r.nii.gz"))
    with pytest.raises(BadInput) as refused:
        generic.find_sites(tmp_path)
    lines = str(refused.value).split("\n\t")
    assert "r.nii.gz: its image is missing; add it, rename q.nii.gz" in lines[0]
    assert "  A/images: 2 .nii.gz, 24 x 20 x 4 voxels of 1 x 1 x 3 mm" in lines
    assert "nearest layout: images and masks of equal names; 1 cases fit" in lines
    assert lines[-1].startswith("--describe writes pairs.csv")


def test_pairs_written_by_describe_are_read_back_and_can_be_corrected(tmp_path):
    source, table = tmp_path / "raw", tmp_path / "pairs.csv"
    files(source, ("A/images/p.nii.gz", "A/masks/p.nii.gz"), ("A/images/q.nii.gz", "A/masks/r.nii.gz"))
    asked = Preparation("generic", source=source, labels={"mask": ()}, channels=1)
    assert write_pairs(asked, table) == 3
    with table.open() as file:
        rows = list(csv.DictReader(file))
    with pytest.raises(BadInput, match=r"case r of site A .line 3. has no image"):
        generic.find_sites(source, pairs=table)
    corrected = [rows[0], rows[1] | {"image": rows[2]["image"], "patient": "x"}]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, ROWS)
        writer.writeheader()
        writer.writerows(corrected)
    (site,) = generic.find_sites(source, pairs=table)
    assert [(case.name, case.image.name, case.label.name, case.patient) for case in site.cases] == [
        ("p", "p.nii.gz", "p.nii.gz", "A-p"), ("r", "q.nii.gz", "r.nii.gz", "A-x")
    ]  # fmt: skip
    with pytest.raises(BadInput, match=r"pairs.csv: exists and is left unchanged"):
        write_pairs(asked, table)


def identified(asked):
    return [
        (site.name, case.name, case.patient, case.channel_names, case.paths)
        for site in find_sites(asked, asked.source)
        for case in site.cases
    ]


DESCRIBED = {  # images and masks, without endings, by number; options
    "sites by name": (("images/A{}_x", "masks/A{}_x"), {"site": "^([AB])"}),
    "name with spaces": (("Hospital (A)/images/p{}", "Hospital (A)/masks/p{}"), {}),
    "patients of slices": (("images/p1_slice_{}", "masks/p1_slice_{}"), {}),
    "a channel of a known name": (("P{0}/P{0}_t2w", "P{0}/P{0}_seg"), {}),
    "patients by pattern": (("images/p{}_b", "masks/p{}_b"), {"patient_table": "(p.)_"}),
}


@pytest.mark.parametrize("form", DESCRIBED)
def test_pairs_written_by_describe_give_the_same_cases(tmp_path, form):
    (image, mask), options = DESCRIBED[form]
    files(tmp_path / "raw", *((f"{image.format(n)}.nii.gz", f"{mask.format(n)}.nii.gz") for n in range(3)))
    given = {"source": tmp_path / "raw", "labels": {"mask": ()}, "channels": 1}
    asked = Preparation("generic", **given, **options)
    write_pairs(asked, tmp_path / "pairs.csv")
    assert identified(Preparation("generic", **given, pairs=tmp_path / "pairs.csv")) == identified(asked)


def test_pairs_name_a_folder_of_pictures_as_mask(tmp_path):
    save_series(tmp_path / "raw" / "P1" / "DICOM", volume(0))
    for path in (tmp_path / "raw" / "P1" / "DICOM").iterdir():
        save_png(tmp_path / "raw" / "P1" / "Ground" / f"{path.stem}.png", box()[..., 1].T)
    given = {"source": tmp_path / "raw", "labels": {"mask": ()}, "channels": 1}
    write_pairs(Preparation("generic", **given), tmp_path / "pairs.csv")
    again = Preparation("generic", **given, pairs=tmp_path / "pairs.csv")
    ((site,), whole) = find_sites(again, tmp_path / "raw"), box().shape[2] * box()[..., 1].sum()
    assert again.layout.decode(site.cases[0]).label.sum() == whole


def test_pairs_name_a_series_of_a_shared_folder(tmp_path):
    slices = dicom(tmp_path / "raw" / "mix", 1)
    other = save_series(tmp_path / "other", volume(2), suffix="", seed=5)
    for path in sorted((tmp_path / "other").iterdir()):
        shutil.move(path, tmp_path / "raw" / "mix" / f"x{path.name}")
    save_structures(tmp_path / "raw" / "rs.dcm", slices, {"a": [(2, SQUARE)]})
    rows = generic.propose_pairs(tmp_path / "raw", labels={"a": ("a",)})
    assert rows[0]["image"] == f"mix#{slices[0].SeriesInstanceUID}"
    item = find_series(tmp_path / "raw" / "mix", str(other[0].SeriesInstanceUID))
    assert len(item.files) == len(other)
    with pytest.raises(BadInput, match="has several series 1; it has"):
        find_series(tmp_path / "raw" / "mix", "1")


def test_find_images_of_a_model_with_named_channels_gives_them_in_its_order(tmp_path):
    for name in ("t1", "t1ce", "flair", "t2"):
        save_nifti(tmp_path / "P7" / f"P7_{name}.nii.gz", volume(0))
        save_nifti(tmp_path / "P8" / f"P8_{name.replace('t1ce', 't1c').replace('flair', 't2f')}.nii.gz", volume(0))
    names = ("t1", "t1ce", "t2", "flair")
    for patient in ("P7", "P8"):
        (image,) = find_images([tmp_path / patient], 4, None, names)
        assert [canonical(part.name) for part in image.parts] == list(names)
        (two,) = find_images([tmp_path / patient], 2, None, ("flair", "t1"))
        assert [canonical(part.name) for part in two.parts] == ["flair", "t1"]
    with pytest.raises(BadInput, match=r"P7: has no channel adc, but .*the model takes t1, adc"):
        find_images([tmp_path / "P7"], 2, None, ("t1", "adc"))


def test_find_images_of_a_model_with_one_named_channel_gives_no_other_channel(tmp_path):
    for patient in ("P1", "P2"):
        for name in ("t1n", "t2f", "t2w"):
            save_nifti(tmp_path / patient / f"{patient}-{name}.nii.gz", volume(0))
    assert [image.name for image in find_images([tmp_path], 1, None, ("flair",))] == ["P1-t2f", "P2-t2f"]
    assert [image.name for image in find_images([tmp_path / "P1"], 1, None, ("t2",))] == ["P1"]
    with pytest.raises(BadInput, match="has no channel adc, but t1, flair, t2"):
        find_images([tmp_path / "P1"], 1, None, ("adc",))
    save_nifti(tmp_path / "P1" / "CTres.nii.gz", volume(0))  # states no channel that is known
    assert [image.name for image in find_images([tmp_path / "P1"], 1, None, ("t2",))] == ["P1"]
    save_nifti(tmp_path / "P3" / "scan.nii.gz", volume(0))
    save_nifti(tmp_path / "P3" / "other.nii.gz", volume(0))
    assert [image.name for image in find_images([tmp_path / "P3"], 1, None, ("t2",))] == ["other", "scan"]


CHANNELS = {  # files of one patient; names of channels
    "BIDS": (("sub-01/anat/sub-01_T1w", "sub-01/dwi/sub-01_dwi", "sub-01/func/sub-01_bold"), ("dwi", "t1")),
    "nnU-Net": (("imagesTs/c_0001", "imagesTs/c_0000"), ("t2", "adc")),
    "folder for each channel": (("T2/p1", "T1/p1"), ("t1", "t2")),
    "folder in the name": (("p1/pre/FLAIR", "p1/pre/T1", "p1/orig/FLAIR", "p1/orig/T1"), ("preflair", "pret1")),
}


@pytest.mark.parametrize("form", CHANNELS)
def test_find_images_finds_named_channels_of_a_patient_in_each_form(tmp_path, form):
    files_of_patient, names = CHANNELS[form]
    for name in (*files_of_patient, *(f"derivatives/prep/{one}" for one in files_of_patient if form == "BIDS")):
        save_nifti(tmp_path / f"{name}.nii.gz", volume(0))
    if form == "nnU-Net":
        (tmp_path / "dataset.json").write_text('{"channel_names": {"0": "T2", "1": "ADC"}}')
    source = tmp_path / "imagesTs" if form == "nnU-Net" else tmp_path
    (image,) = find_images([source], 2, None, names)
    read = [part.path.relative_to(tmp_path).as_posix().removesuffix(".nii.gz") for part in image.parts]
    wanted = {"BIDS": (1, 0), "nnU-Net": (1, 0), "folder for each channel": (1, 0), "folder in the name": (0, 1)}
    assert read == [files_of_patient[place] for place in wanted[form]]


def test_series_of_several_patients_in_one_folder_are_named_by_patient(tmp_path):
    for number in (1, 2):
        save_series(tmp_path / "from" / str(number), volume(number))
        for path in (tmp_path / "from" / str(number)).iterdir():
            (tmp_path / "export").mkdir(exist_ok=True)
            slice_ = dcmread(path)
            slice_.PatientID = f"Q{number}"
            slice_.save_as(tmp_path / "export" / f"{number}-{path.name}")
    assert sorted(image.name for image in find_images([tmp_path / "export"], 1)) == ["Q1", "Q2"]


def test_find_images_gives_those_of_folders_series_and_channels(tmp_path):
    for name in ("a", "b"):
        save_nifti(tmp_path / "new" / f"{name}.nii.gz", volume(0))
        save_nifti(tmp_path / "P7" / f"P7_{name}.nii.gz", volume(0))
    assert [image.name for image in find_images([tmp_path / "new"], 1)] == ["a", "b"]
    files_of_channels = [tmp_path / "P7" / "P7_b.nii.gz", tmp_path / "P7" / "P7_a.nii.gz"]
    for given in ([tmp_path / "P7"], files_of_channels):
        (image,) = find_images(given, 2)
        assert (image.name, [part.name for part in image.parts]) == ("P7", ["a", "b"])
    with pytest.raises(BadInput, match="the model takes 3 channels"):
        find_images([tmp_path / "P7"], 3)
    with pytest.raises(BadInput, match=r"P7_b.nii.gz: has one channel, the model takes 2: give the files of one"):
        find_images(files_of_channels[:1], 2)
    dicom(tmp_path / "cd" / "DICOM" / "PA0", 1)
    (tmp_path / "cd" / "DICOMDIR").write_bytes(b"\0" * 128 + b"DICM")
    assert [image.name for image in find_images([tmp_path / "cd"], 1)] == ["cd"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="empty: holds no image"):
        find_images([tmp_path / "empty"], 1)


def test_heads_read_by_processes_and_from_the_cache_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number in range(2):
        dicom(tmp_path / "raw" / f"P{number}", number)
    expected = take_inventory(tmp_path / "raw")
    monkeypatch.setattr(inventory, "FEW_FILES", 3)
    assert take_inventory(tmp_path / "raw") == expected
    (stored,) = (tmp_path / "cache").rglob("*.json")
    assert stored.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(inventory, "_read_all", lambda paths: pytest.fail("read again"))
    assert take_inventory(tmp_path / "raw") == expected


def test_a_file_without_the_preamble_is_dicom_and_a_text_is_not(tmp_path):
    dicom(tmp_path / "P", 1)
    for path in sorted((tmp_path / "P").iterdir()):
        path.write_bytes(path.read_bytes()[132:])
    (tmp_path / "P" / "README").write_text("no image")
    (item,) = take_inventory(tmp_path).items
    assert item.slices == volume(1).shape[2]
    image = read_image([item.channel], 1).decoded.image
    np.testing.assert_array_equal(np.unique(image), np.unique(volume(1)))


def test_channels_on_other_grids_are_resampled_on_request(tmp_path):
    coarse = AXIAL @ np.diag([2.0, 2.0, 1.0, 1.0])
    ramp = np.broadcast_to(np.arange(24.0, dtype=np.float32)[:, None, None], (24, 20, 4))
    save_nifti(tmp_path / "P1" / "t2.nii.gz", volume(0))
    save_nifti(tmp_path / "P1" / "adc.nii.gz", np.ascontiguousarray(ramp[::2, ::2]), coarse)
    save_nifti(tmp_path / "P1" / "seg.nii.gz", box())
    for resample in (False, True):
        kind = generic.generic_kind(channels=2, resample=resample)
        (site,) = kind.find_sites(tmp_path)
        if not resample:
            with pytest.raises(BadInput, match=r"channel on another grid than .*--resample"):
                kind.decode(site.cases[0])
            continue
        decoded = kind.decode(site.cases[0])
        np.testing.assert_array_equal(decoded.label[:, 0], box().transpose(2, 1, 0))
        np.testing.assert_allclose(decoded.image[:, 0, :19, :23], ramp.transpose(2, 1, 0)[:, :19, :23], atol=1e-4)
        assert any(remark.startswith("channel adc resampled (linear)") for remark in decoded.remarks)


POLYGONS = {
    "a.json": '{"shapes": [{"points": [[1, 1]]}]}',
    "a.xml": "<annotations><polygon points='1,1;2,2'/></annotations>",
    "a.txt": "0 0.1 0.1 0.2 0.2 0.3 0.1\n",
}


@pytest.mark.parametrize("name", POLYGONS)
def test_refusal_says_that_polygons_are_not_read(tmp_path, name):
    save_png(tmp_path / "raw" / "images" / "a.png", np.zeros((20, 20), np.uint8))
    (tmp_path / "raw" / name).write_text(POLYGONS[name])
    with pytest.raises(BadInput, match=rf"{name}: polygons or boxes, which are not read; export masks as pictures"):
        generic.find_sites(tmp_path / "raw")


def test_refusal_lists_the_series_of_a_folder_whose_mask_names_none(tmp_path):
    dicom(tmp_path / "P1" / "mr", 1)
    save_series(tmp_path / "localizer", volume(2), suffix="")
    for path in sorted((tmp_path / "localizer").iterdir()):
        path.rename(tmp_path / "P1" / "mr" / f"l{path.name}")
    save_nifti(tmp_path / "P1" / "seg.nii.gz", box())
    with pytest.raises(BadInput, match=r"its mask names no series; it has mr: series 1, .*; name one in pairs\.csv"):
        generic.find_sites(tmp_path)


INSTEAD = {b"version https://git-lfs.github.com/spec/v1": "git lfs pull", b"<!DOCTYPE html>": "it is a web page"}


@pytest.mark.parametrize("first", INSTEAD)
@pytest.mark.parametrize("suffix", [".nii.gz", ".png"])
def test_file_that_was_not_fetched_is_named_as_such(tmp_path, first, suffix):
    (tmp_path / f"p{suffix}").write_bytes(first)
    with pytest.raises(BadInput, match=INSTEAD[first]):
        read_image(tmp_path / f"p{suffix}", 1)


def test_refusal_says_that_an_archive_is_to_be_unpacked(tmp_path):
    (tmp_path / "Task05.tar").write_bytes(b"x")
    with pytest.raises(BadInput, match=r"Task05\.tar: is an archive; unpack it"):
        generic.find_sites(tmp_path)


def test_refusal_names_a_table_that_names_the_files(tmp_path):
    files(tmp_path, ("data/x1.nii.gz", "data/y1.nii.gz"))
    (tmp_path / "list.csv").write_text("image,label\ndata/x1.nii.gz,data/y1.nii.gz\n")
    with pytest.raises(BadInput) as refused:
        generic.find_sites(tmp_path)
    assert f"list.csv names these files: --pairs {tmp_path / 'list.csv'} reads it" in str(refused.value)
