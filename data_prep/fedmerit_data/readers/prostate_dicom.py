"""Readers of prostate MRI in DICOM series: one section per data set, with its layout in the comment."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import (
    Decoded,
    RawCase,
    RawSite,
    add_left_out,
    group_by_site,
    list_files,
    list_visible,
    note_file,
    pair_files,
    require_few_labels,
    require_folder,
)
from fedmerit_data.readers.kind import prostate_kind
from fedmerit_data.spatial.dicom import is_slice, read_series
from fedmerit_data.spatial.geometry import resample_mask, slice_volume
from fedmerit_data.spatial.heads import read_head
from fedmerit_data.spatial.segmentations import read_segmentation
from fedmerit_data.spatial.volumes import read_itk


def select_series(folders: Collection[Path], name: re.Pattern[str], uid: str | None = None) -> Path:
    """Return the folder of the series ``uid``.

    Without a uid the only one of a patient's series, or the one that has ``name``.

    Raises:
        BadInput: several series match, or none.
    """
    several = sorted(folders)
    if uid is not None:
        several = [folder for folder in several if _series_uid(folder) == uid]
    elif len(several) > 1:
        several = [folder for folder in several if name.search(folder.name)] or several
    if len(several) != 1:
        raise BadInput(
            f"{min(folders).parent}: {len(several)} of its {len(folders)} series could be the T2 series of its mask; "
            "keep only that one"
        )
    return several[0]


def _series_uid(folder: Path) -> str:
    head = read_head(next(path for path in list_visible(folder) if is_slice(path)))
    return head.series if head else ""


def list_outside(series: Iterable[Path], left_out: Iterable[tuple[Path, str]], source: Path) -> list[tuple[str, str]]:
    """Return files and folders left out, by path in ``source``, except those within a series, which belong to its
    case.
    """
    folders = set(series)
    found = []
    for path, reason in left_out:
        if any(folder != path and folder.is_relative_to(path) for folder in folders):  # only its own files
            found += [(entry, reason) for entry in list_visible(path) if entry.is_symlink() or not entry.is_dir()]
        elif folders.isdisjoint((path, *path.parents)):
            found.append((path, reason))
    return [(path.relative_to(source).as_posix(), reason) for path, reason in found]


# NCI-ISBI 2013: DICOM ``{Prostate-3T,PROSTATE-DIAGNOSIS}/<ID>/*/*`` + masks ``<ID>.nrrd`` (zones 1, 2)

NCI_ISBI_SITES = ("PROSTATE-DIAGNOSIS", "Prostate-3T")
NCI_ISBI_DROPPED = {"ProstateDx-01-0055": "its mask has 23 slices, its image 34"}
NCI_ISBI_MASK = re.compile(r"(?P<case>Prostate(Dx|3T)-\d+-\d+)(?P<corrected>_correctedLabels)?(_truth)?\.nrrd")
NCI_ISBI_T2 = re.compile("t2", re.IGNORECASE)


def find_nci_isbi(source: Path) -> list[RawSite]:
    """Return the collections, whichever of the two ``source`` holds at any depth, sorted by name.

    A corrected mask replaces the one that it corrects. Patients without a mask are not part of the challenge and are
    left out.
    """
    require_folder(source, "the manifest folder of the DICOM files and the masks of Training, Test and Leaderboard")
    series: dict[str, set[Path]] = defaultdict(set)
    collection: dict[str, str] = {}
    masks: dict[bool, dict[str, Path]] = {True: {}, False: {}}
    strays: list[tuple[Path, str]] = []
    left_out = []
    for path in list_files(source):
        parts = path.relative_to(source).parts
        match = NCI_ISBI_MASK.fullmatch(path.name)
        site = next((part for part in parts[:-2] if part in NCI_ISBI_SITES), None)
        if match:
            note_file(masks[bool(match["corrected"])], match["case"], path)
        elif site and is_slice(path):
            patient = parts[parts.index(site) + 1]
            collection[patient] = site
            series[patient].add(path.parent)
        else:
            strays.append((path, "neither a DICOM slice of a patient nor a mask"))
    for case in masks[True].keys() & masks[False].keys():
        strays.append((masks[False][case], "its corrected mask is used"))
    used = masks[False] | masks[True]
    for patient, reason in NCI_ISBI_DROPPED.items():
        if patient in series:
            left_out.append((f"{collection[patient]}/{patient}", reason))
        if patient in used:
            strays.append((used.pop(patient), reason))
    for patient in series.keys() - used.keys() - NCI_ISBI_DROPPED.keys():
        left_out.append((f"{collection[patient]}/{patient}", "no mask: no part of the challenge"))
    images = {patient: select_series(series[patient], NCI_ISBI_T2) for patient in sorted(series.keys() & used.keys())}
    for patient, chosen in images.items():
        strays += [(folder, "not the T2 series") for folder in series[patient] - {chosen}]
    cases = (
        (collection[case], RawCase(case, f"{collection[case]}-{case}", image, mask))
        for case, image, mask in pair_files(images, used, source)
    )
    return group_by_site(cases, [*left_out, *list_outside(images.values(), strays, source)])


def decode_nci_isbi(case: RawCase) -> Decoded:
    """Return the T2 slices and the gland, both zones merged, oriented by `slice_volume`."""
    return slice_volume(case, read_series(case.image), read_itk(case.label), zones=2)


NCI_ISBI = prostate_kind(
    description="NCI-ISBI 2013: DICOM {Prostate-3T,PROSTATE-DIAGNOSIS}/<ID>/*/* + <ID>.nrrd",
    find_sites=find_nci_isbi,
    decode=decode_nci_isbi,
    licence="research use; the terms of The Cancer Imaging Archive hold",
    citation="Bloch et al., NCI-ISBI 2013 challenge: automated segmentation of prostate structures, The Cancer "
    "Imaging Archive 2015, doi:10.7937/K9/TCIA.2015.zF0vlOPv",
)


# I2CVB as published: ``{GE,Siemens}/<patient>/{T2W,GT/prostate}``, each a DICOM series

I2CVB_SITES = ("GE", "Siemens")
I2CVB_DROPPED = {"Patient_428260": "its ground truth lacks a slice"}
I2CVB_LEFT = "not the T2 series or the prostate ground truth"


def find_i2cvb(source: Path) -> list[RawSite]:
    """Return the scanners that ``source`` holds, patients sorted; other series are left out by folder."""
    require_folder(source, "GE and Siemens")
    folders = [path for path in list_visible(source) if path.name in I2CVB_SITES and path.is_dir()]
    if not folders:
        raise BadInput(f"{source}: no folder GE or Siemens in it; --source has to be the folder that contains them")
    sites = [_read_i2cvb(folder) for folder in folders]
    other = tuple((path.name, "not the folder GE or Siemens") for path in list_visible(source) if path not in folders)
    return add_left_out(sites, other)


def _read_i2cvb(folder: Path) -> RawSite:
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    left_out = []
    for patient in list_visible(folder):
        name = patient.name.replace(" ", "_")
        place = f"{folder.name}/{patient.name}"
        if name in I2CVB_DROPPED or not patient.is_dir():
            left_out.append((place, I2CVB_DROPPED.get(name, "not the folder of a patient")))
            continue
        image, mask = patient / "T2W", patient / "GT" / "prostate"
        for found, series in ((images, image), (masks, mask)):
            if series.is_dir():
                note_file(found, name, series)
        masked = patient / "GT"
        others = [*list_visible(patient), *(list_visible(masked) if masked.is_dir() else ())]
        left_out += [
            (path.relative_to(folder.parent).as_posix(), I2CVB_LEFT)
            for path in others
            if path not in (image, mask, masked)
        ]
        if name not in images and name not in masks:
            raise BadInput(f"{patient}: neither T2W nor GT/prostate in it; add them or move it out of the source")
    cases = (
        RawCase(name, f"{folder.name}-{name}", image, mask) for name, image, mask in pair_files(images, masks, folder)
    )
    return RawSite(folder.name, tuple(cases), tuple(left_out))


def decode_i2cvb(case: RawCase) -> Decoded:
    """Return the T2 slices and the gland, all ground truth above 0, oriented by `slice_volume`."""
    label = read_series(case.label)
    require_few_labels(case.label, label.voxels)
    return slice_volume(case, read_series(case.image), replace(label, voxels=(label.voxels > 0).astype("float32")))


I2CVB = prostate_kind(
    description="I2CVB as published: DICOM {GE,Siemens}/<patient>/{T2W,GT/prostate}",
    find_sites=find_i2cvb,
    decode=decode_i2cvb,
    licence="research use; the terms of I2CVB hold",
    citation="Lemaitre et al., Computer-aided detection and diagnosis for prostate cancer based on mono and "
    "multi-parametric MRI: a review, Computers in Biology and Medicine 2015",
)


# PROSTATEx: ``Image/<ID>/<series>/*.dcm`` + zones in ``Mask/<ID>.nrrd`` or a DICOM-SEG below ``Mask``

PROSTATEX_ZONES = 4  # of the NRRD files: all of them are gland
PROSTATEX_SEGMENTS = (1, 2, 4)  # of the DICOM-SEG files that are gland
PROSTATEX_PATIENT = re.compile(r"ProstateX-\d+", re.IGNORECASE)
PROSTATEX_T2 = re.compile("t2.*tra", re.IGNORECASE)


def find_prostatex(source: Path) -> list[RawSite]:
    """Return the one site that the set is; patients without zones, which are most of the set, are left out.

    A DICOM-SEG file may lie in a folder of its patient at any depth.
    """
    require_folder(source, "Image and Mask")
    series: dict[str, set[Path]] = defaultdict(set)
    masks: dict[str, Path] = {}
    left_out = []
    for path in list_files(source):
        folder, *inner = path.relative_to(source).parts
        match = PROSTATEX_PATIENT.match(inner[0]) if inner else None
        if match and folder == "Image" and len(inner) > 1 and is_slice(path):
            series[inner[0]].add(path.parent)
        elif match and folder == "Mask" and path.suffix.lower() in (".nrrd", ".dcm"):
            note_file(masks, match[0], path)
        else:
            left_out.append((path, "neither a DICOM slice of a patient nor a mask"))
    for patient in series.keys() - masks.keys():
        left_out.append((source / "Image" / patient, "no zones: no mask to learn from"))
    images = {}
    for patient in sorted(series.keys() & masks.keys()):
        head = read_head(masks[patient])
        named = next(iter(head.refers), None) if head else None
        images[patient] = select_series(series[patient], PROSTATEX_T2, named)
        for other in series[patient] - {images[patient]}:
            left_out.append((other, "not the T2 series of the mask"))
    cases = (RawCase(case, f"PROSTATEx-{case}", image, mask) for case, image, mask in pair_files(images, masks, source))
    return [RawSite("PROSTATEx", tuple(cases), tuple(sorted(list_outside(images.values(), left_out, source))))]


def decode_prostatex(case: RawCase) -> Decoded:
    """Return the T2 slices and the gland, its zones merged, oriented by `slice_volume`.

    The mask may lie on another grid than the image: it is brought onto the image's by nearest neighbour, with a
    remark where that moved voxels.
    """
    image = read_series(case.image)
    if case.label.suffix.lower() == ".nrrd":
        label, remarks = resample_mask(image, read_itk(case.label))
    else:
        regions = read_segmentation(case.label)
        gland = [number for number in PROSTATEX_SEGMENTS if number in regions.names]
        if not gland:
            raise BadInput(
                f"{case.label}: segments {sorted(regions.names)}; expected some of {list(PROSTATEX_SEGMENTS)}"
            )
        label, remarks = regions.draw(image, gland)
    return slice_volume(case, image, label, zones=PROSTATEX_ZONES, remarks=remarks)


PROSTATEX = prostate_kind(
    description="PROSTATEx: DICOM Image/<ID>/<series> + zones Mask/<ID>.nrrd or DICOM-SEG",
    find_sites=find_prostatex,
    decode=decode_prostatex,
    licence="research use; the terms of The Cancer Imaging Archive hold",
    citation="Litjens et al., Computer-aided detection of prostate cancer in MRI, IEEE TMI 2014; zones: Meyer et "
    "al., Towards patient-individual PI-RADS v2 sector map, IEEE ISBI 2019",
)
