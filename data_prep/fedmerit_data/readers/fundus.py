"""Readers of photographs of the optic disc: one section per data set, with its layout in the comment."""

import re
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import (
    Decoded,
    RawCase,
    RawSite,
    add_left_out,
    find_one_site,
    find_site_folders,
    require_same_shape,
)
from fedmerit_data.readers.kind import disc_kind, fundus_kind
from fedmerit_data.spatial.photographs import EYE, binarise_mask, decode_rings, load, load_levels, load_mask, make_case


def decode_binary(case: RawCase) -> Decoded:
    """One photograph as a case of one slice, a label for each mask file: its grey levels above 127.

    JPEG blurs the edges of masks (DRIONS-DB). Soft maps (Drishti-GS1) are 0, 64, 128, 191 and 255 for none to all of
    four experts: the pixels that at least half of them marked.
    """
    image = load(case.image, "RGB")
    masks = (binarise_mask(path, load_mask(case, path, image)) for path in (case.label, *case.more))
    return make_case(image, *masks)


# The DoFE/FedDG fundus layout: ``<site>/{train,test}/ROIs/{image,mask}/*.png``

ROIS_LAYOUT = "{train,test}/ROIs/{image,mask}/*.png"
ROIS_FILE = re.compile(r"(train|test)/ROIs/(?P<part>image|mask)/[^/]+")


def find_fundus_rois(source: Path) -> list[RawSite]:
    """Every site below ``source`` sorted by name; the release's own train and test folders are pooled."""
    folders, strays = find_site_folders(source, f"one folder per site with {ROIS_LAYOUT}")
    sites = [
        find_one_site(folder, name=folder.name, expected=ROIS_LAYOUT, role=_rois_role, patient=partial(EYE.sub, ""))
        for folder in folders
    ]
    return add_left_out([site for (site,) in sites], strays)


def _rois_role(path: Path) -> tuple[str, str]:
    match = ROIS_FILE.fullmatch(path.as_posix())
    if not match:
        return "", "not in {train,test}/ROIs/{image,mask}"
    return (match["part"], path.stem) if path.suffix.lower() == ".png" else ("", "not a .png")


FUNDUS_ROIS = fundus_kind(
    description="DoFE/FedDG fundus layout: <site>/{train,test}/ROIs/{image,mask}/*.png",
    find_sites=find_fundus_rois,
    decode=decode_rings,
    crops=("whole", "disc"),
    licence="research use; the terms of the data set that each site's images come from hold",
    citation="Wang et al., DoFE: domain-oriented feature embedding for generalizable fundus image segmentation on "
    "unseen datasets, IEEE TMI 2020",
)


# Drishti-GS1: ``Drishti-GS1_files/{Training/{Images,GT},Test/{Images,Test_GT}}`` and its soft maps

DRISHTI_LAYOUT = (
    "{Training,Test}/Images/drishtiGS_NNN.png and "
    "{Training/GT,Test/Test_GT}/drishtiGS_NNN/SoftMap/drishtiGS_NNN_{ODsegSoftmap,cupsegSoftmap}.png"
)
DRISHTI_FILE = re.compile(r"(?P<case>drishtiGS_\d+)(_(?P<map>OD|cup)segSoftmap)?\.png")
DRISHTI_PARTS = {None: "image", "OD": "disc", "cup": "cup"}


def _drishti_role(path: Path) -> tuple[str, str]:
    match = DRISHTI_FILE.fullmatch(path.name)
    return (DRISHTI_PARTS[match["map"]], match["case"]) if match else ("", "neither an image nor a soft map")


DRISHTI_GS1 = fundus_kind(
    description="Drishti-GS1: {Training,Test}/Images/*.png + {GT,Test_GT}/*/SoftMap; at least half of the experts",
    find_sites=partial(
        find_one_site, name="Drishti-GS1", expected=DRISHTI_LAYOUT, role=_drishti_role, masks=("disc", "cup")
    ),
    decode=decode_binary,
    licence="research use",
    citation="Sivaswamy et al., Drishti-GS: retinal image dataset for optic nerve head (ONH) segmentation, IEEE ISBI "
    "2014",
)


# REFUGE: Training400, Validation400 and Test400, masks below ``Disc_Cup_Masks``; one site

REFUGE_LAYOUT = (
    "Training400/{Glaucoma,Non-Glaucoma}/*.jpg, REFUGE-Validation400/*.jpg or Test400/*.jpg, and their masks in "
    "{Annotation-Training400,REFUGE-Validation400-GT,REFUGE-Test-GT}/Disc_Cup_Masks"
)


def _refuge_role(path: Path) -> tuple[str, str]:
    suffix = path.suffix.lower()
    if "Disc_Cup_Masks" in path.parts:
        return ("mask", path.stem) if suffix in (".bmp", ".png") else ("", "not a .bmp or .png mask")
    return ("image", path.stem) if suffix == ".jpg" else ("", "neither a .jpg image nor below Disc_Cup_Masks")


REFUGE = fundus_kind(
    description="REFUGE: Training400, Validation400 and Test400 + Disc_Cup_Masks, as one site",
    find_sites=partial(find_one_site, name="REFUGE", expected=REFUGE_LAYOUT, role=_refuge_role),
    decode=decode_rings,
    licence="research use",
    citation="Orlando et al., REFUGE challenge: a unified framework for evaluating automated methods for glaucoma "
    "assessment from fundus photographs, Medical Image Analysis 2020",
)


# RIM-ONE r3: stereo pairs of which the left half is annotated, and the average of two experts' masks

RIM_ONE_LAYOUT = (
    "{Healthy,Glaucoma and suspects}/Stereo Images/{N,G,S}-k-{L,R}.jpg and Average_masks/N-1-L-{Disc,Cup}-Avg.png"
)
RIM_ONE_FILE = re.compile(r"(?P<case>[NGS]-\d+-[LR])(\.jpg|-(?P<mask>Disc|Cup)-Avg\.png)", re.IGNORECASE)


def _rim_one_role(path: Path) -> tuple[str, str]:
    if match := RIM_ONE_FILE.fullmatch(path.name):
        return (match["mask"] or "image").lower(), match["case"].upper()
    return "", "neither a stereo pair nor an average mask"


def decode_rim_one(case: RawCase) -> Decoded:
    """The left half of a stereo pair as a case of one slice, labels disc and cup."""
    image = load(case.image, "RGB")
    height, width = image.shape[:2]
    if width <= height:
        raise BadInput(f"{case.image}: {width} x {height} pixels; expected a stereo pair as released, 2144 x 1424")
    disc, cup = (binarise_mask(path, _left(load_mask(case, path, image))) for path in (case.label, *case.more))
    return make_case(_left(image), disc, cup)


def _left(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return pixels[:, : pixels.shape[1] // 2]


RIM_ONE_R3 = fundus_kind(
    description="RIM-ONE r3: {Healthy,Glaucoma and suspects}/Stereo Images + Average_masks; left halves",
    find_sites=partial(
        find_one_site,
        name="RIM-ONE-r3",
        expected=RIM_ONE_LAYOUT,
        role=_rim_one_role,
        masks=("disc", "cup"),
        patient=partial(EYE.sub, ""),
    ),
    decode=decode_rim_one,
    licence="the terms of the RIM-ONE r3 release hold",
    citation="Fumero et al., Interactive tool and database for optic disc and cup segmentation of stereo and "
    "monocular retinal fundus images, WSCG 2015",
)


# DRIONS-DB: ``{train,test}/{image,groundtruth}/image_NNN.jpg``, only the disc; one site

DRIONS_LAYOUT = "{train,test}/{image,groundtruth}/image_NNN.jpg"
DRIONS_ROLES = {"image": "image", "groundtruth": "mask"}


def _drions_role(path: Path) -> tuple[str, str]:
    if path.suffix.lower() != ".jpg" or path.parent.name not in DRIONS_ROLES:
        return "", "not a .jpg in a folder image or groundtruth"
    return DRIONS_ROLES[path.parent.name], path.stem


DRIONS_DB = disc_kind(
    description="DRIONS-DB, only the disc: {train,test}/{image,groundtruth}/image_NNN.jpg",
    find_sites=partial(find_one_site, name="DRIONS-DB", expected=DRIONS_LAYOUT, role=_drions_role),
    decode=decode_binary,
    licence="research use",
    citation="Carmona et al., Identification of the optic nerve head with genetic algorithms, Artificial Intelligence "
    "in Medicine 2008",
)


# iChallenge in VOC folders: ``JPEGImages/*.jpg`` and ``Annotations/*.png``, only the disc; one site

ICHALLENGE_LAYOUT = "JPEGImages/*.jpg and Annotations/*.png"
ICHALLENGE_ROLES = {("JPEGImages", ".jpg"): "image", ("Annotations", ".png"): "mask"}


def _ichallenge_role(path: Path) -> tuple[str, str]:
    part = ICHALLENGE_ROLES.get((path.parent.name, path.suffix.lower()))
    return (part, path.stem) if part else ("", "neither JPEGImages/*.jpg nor Annotations/*.png")


def decode_ichallenge(case: RawCase) -> Decoded:
    """One photograph as a case of one slice, label disc: the palette indices or levels of the mask above 0."""
    image, (index, _) = load(case.image, "RGB"), load_levels(case.label, ())
    require_same_shape(case, image[..., 0], index)
    values = np.unique(index)
    if values.size > 2 or (values.size == 2 and values[0] != 0):
        raise BadInput(f"{case.label}: holds the values {values[:4].tolist()}; expected 0 and one other, the disc")
    return make_case(image, index != 0)


ICHALLENGE = disc_kind(
    description="iChallenge, only the disc: JPEGImages/*.jpg + Annotations/*.png",
    find_sites=partial(find_one_site, name="iChallenge", expected=ICHALLENGE_LAYOUT, role=_ichallenge_role),
    decode=decode_ichallenge,
    licence="research use",
)
