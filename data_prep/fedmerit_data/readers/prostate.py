"""Readers of prostate MRI in NIfTI and MetaImage files: one section per data set, with its layout in the comment."""

import re
from functools import partial
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import (
    Decoded,
    RawCase,
    RawSite,
    add_left_out,
    find_one_site,
    find_site_folders,
    group_by_site,
    list_files,
    list_visible,
    note_file,
    pair_files,
    require_folder,
)
from fedmerit_data.readers.image_files import read_volume
from fedmerit_data.readers.kind import prostate_kind
from fedmerit_data.spatial.geometry import slice_axially
from fedmerit_data.spatial.volumes import read_nifti


def decode(case: RawCase, zones: int | None = None, channel: int | None = None) -> Decoded:
    """The T2 slices, which may be a ``channel``, and the gland, its zones merged, oriented by `slice_axially`."""
    image = read_volume(case.image) if channel is None else read_nifti(case.image, channel)
    return slice_axially(case, image, read_volume(case.label), zones=zones)


# The multi-site prostate MRI release: ``<site>/CaseNN.nii.gz`` + ``CaseNN_segmentation.nii.gz``

MULTISITE_NAMES = ("BIDMC", "BMC", "HK", "I2CVB", "RUNMC", "UCL")
MULTISITE_ALIASES = {"ISBI": "RUNMC", "ISBI_1.5": "BMC", "HCRUDB": "I2CVB", **{name: name for name in MULTISITE_NAMES}}
MULTISITE_FILE = re.compile(r"(?P<case>case\d+)(?P<mask>[ _-]*segmentation)?\.nii(\.gz)?", re.IGNORECASE)


def find_multisite(source: Path) -> list[RawSite]:
    """Every site below ``source``, its images and masks paired, sorted by name."""
    folders, strays = find_site_folders(source, "one folder per site with CaseNN.nii.gz and CaseNN_segmentation.nii.gz")
    sites: dict[str, tuple[Path, RawSite]] = {}
    for folder in folders:
        site = _read_multisite(folder)
        if site.name in sites:
            raise BadInput(f"{folder}: {sites[site.name][0]} is site {site.name} under another name; keep one of them")
        sites[site.name] = (folder, site)
    return add_left_out([sites[name][1] for name in sorted(sites)], strays)


def _read_multisite(folder: Path) -> RawSite:
    name = MULTISITE_ALIASES.get(folder.name.upper(), folder.name)
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    left_out = []
    for path in list_visible(folder):
        match = MULTISITE_FILE.fullmatch(path.name)
        if match:
            note_file(masks if match["mask"] else images, match["case"].capitalize(), path)
        else:
            left_out.append((path.name, "not named CaseNN.nii.gz or CaseNN_segmentation.nii.gz"))
    # Case numbers start again at some sites, so a patient is a site and a number.
    cases = (RawCase(case, f"{name}-{case}", image, mask) for case, image, mask in pair_files(images, masks, folder))
    return RawSite(name, tuple(cases), tuple(left_out))


PROSTATE_MULTISITE = prostate_kind(
    description="multi-site prostate MRI release: <site>/CaseNN.nii.gz + CaseNN_segmentation.nii.gz",
    find_sites=find_multisite,
    decode=decode,
    licence="research use; the terms of PROMISE12, NCI-ISBI 2013 and I2CVB hold for their cases",
    citation="Liu et al., MS-Net: multi-site network for improving prostate segmentation with heterogeneous MRI "
    "data, IEEE TMI 2020",
)


# PROMISE12: ``CaseNN.mhd/.raw`` + ``CaseNN_segmentation.mhd/.raw``, split into its hospitals

# As the multi-site release lists the cases; those it does not list, of 00 to 49, are RUNMC's.
HOSPITALS = {"BIDMC": {0, *range(2, 13)}, "UCL": {1, *range(26, 38)}, "HK": {*range(38, 50)}}
REST, CASES = "RUNMC", range(50)
PROMISE12_FILE = re.compile(r"(?P<case>case\d+)(?P<mask>_segmentation)?\.(?P<suffix>mhd|z?raw)", re.IGNORECASE)


def find_promise12(source: Path) -> list[RawSite]:
    """The hospitals that cases below ``source`` come from, at any depth, sorted by name."""
    require_folder(source, "CaseNN.mhd and CaseNN_segmentation.mhd with their .raw files")
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    voxels: dict[Path, Path] = {}
    left_out = []
    for path in list_files(source):
        match = PROMISE12_FILE.fullmatch(path.name)
        if not match:
            left_out.append((path.relative_to(source).as_posix(), "not named CaseNN or CaseNN_segmentation .mhd, .raw"))
        elif match["suffix"].lower() == "mhd":
            note_file(masks if match["mask"] else images, match["case"].capitalize(), path)
        else:
            voxels[path.with_suffix("")] = path
    cases = []
    for case, image, mask in pair_files(images, masks, source):
        for header in (image, mask):
            voxels.pop(header.with_suffix(""), None)
        site = _hospital(case, image)
        cases.append((site, RawCase(case, f"{site}-{case}", image, mask)))
    left_out += [(path.relative_to(source).as_posix(), "its .mhd header is missing") for path in voxels.values()]
    return group_by_site(cases, left_out)


def _hospital(case: str, image: Path) -> str:
    number = int(case.removeprefix("Case"))
    if number not in CASES:
        raise BadInput(f"{image}: training cases are numbered 00 to 49; move it out of the source")
    return next((name for name, numbers in HOSPITALS.items() if number in numbers), REST)


PROMISE12 = prostate_kind(
    description="PROMISE12, split into its hospitals: CaseNN.mhd/.raw + CaseNN_segmentation.mhd/.raw",
    find_sites=find_promise12,
    decode=decode,
    licence="research use; cite the challenge",
    citation="Litjens et al., Evaluation of prostate segmentation algorithms for MRI: the PROMISE12 challenge, "
    "Medical Image Analysis 2014",
)


# MSD Task05: ``imagesTr/prostate_NN.nii.gz`` (T2, ADC) + ``labelsTr/prostate_NN.nii.gz`` (zones 1, 2)

MSD_SET = "Task05_Prostate"
MSD_PARTS = {"imagesTr": "image", "labelsTr": "mask"}
MSD_STRAY = "no prostate_NN.nii.gz of imagesTr or labelsTr"
MSD_T2 = 0  # the channel
MSD_FILE = re.compile(r"(?P<folder>imagesTr|labelsTr)/(?P<case>prostate_\d+)\.nii(\.gz)?")


def _msd_role(path: Path) -> tuple[str, str]:
    """By the path below the set's folder, which is the source or within it."""
    inner = path.relative_to(MSD_SET) if path.parts[0] == MSD_SET else path
    if match := MSD_FILE.fullmatch(inner.as_posix()):
        return MSD_PARTS[match["folder"]], match["case"]
    is_test = inner.parent.as_posix() == "imagesTs"
    return "", "a test image, whose labels are not published" if is_test else MSD_STRAY


MSD_PROSTATE = prostate_kind(
    description="Medical Segmentation Decathlon Task05: {imagesTr,labelsTr}/prostate_NN.nii.gz",
    find_sites=partial(find_one_site, name="MSD", expected="imagesTr and labelsTr", role=_msd_role),
    decode=partial(decode, zones=2, channel=MSD_T2),
    licence="CC BY-SA 4.0",
    citation="Antonelli et al., The Medical Segmentation Decathlon, Nature Communications 2022",
)


# Prostate158: ``{train,valid,test}/NNN/t2.nii.gz`` + ``t2_anatomy_reader1.nii.gz`` (zones 1, 2)

PROSTATE158_LAYOUT = "{train,valid,test}/NNN/t2.nii.gz and t2_anatomy_reader1.nii.gz"
PROSTATE158_FILE = re.compile(r"(?P<case>\d+)/t2(?P<mask>_anatomy_reader1)?\.nii(\.gz)?")


def _prostate158_role(path: Path) -> tuple[str, str]:
    """The set numbers its patients through its own train, valid and test folders, which are pooled."""
    match = PROSTATE158_FILE.fullmatch(f"{path.parent.name}/{path.name}")
    if not match:
        return "", "not the T2 image or the first reader's anatomy"
    return "mask" if match["mask"] else "image", match["case"]


PROSTATE158 = prostate_kind(
    description="Prostate158: {train,valid,test}/NNN/t2.nii.gz + t2_anatomy_reader1.nii.gz",
    find_sites=partial(find_one_site, name="Prostate158", expected=PROSTATE158_LAYOUT, role=_prostate158_role),
    decode=partial(decode, zones=2),
    licence="research use",
    citation="Adams et al., Prostate158: an expert-annotated 3T MRI dataset and algorithm for prostate cancer "
    "detection, Computers in Biology and Medicine 2022",
)
