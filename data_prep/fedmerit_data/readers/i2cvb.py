"""Reader of I2CVB as published: ``{GE,Siemens}/<patient>/{T2W,GT/prostate}``, each a DICOM series."""

from dataclasses import replace
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import (
    Decoded,
    RawCase,
    RawSite,
    add_left_out,
    list_visible,
    note_file,
    pair_files,
    require_few_labels,
    require_folder,
)
from fedmerit_data.readers.kind import prostate_kind
from fedmerit_data.spatial.dicom import read_series
from fedmerit_data.spatial.geometry import slice_axially

SITES = ("GE", "Siemens")
DROPPED = {"Patient_428260": "its ground truth lacks a slice"}
LEFT = "not the T2 series or the prostate ground truth"


def find_sites(source: Path) -> list[RawSite]:
    """The scanners that ``source`` holds, patients sorted; other series are left out by folder."""
    require_folder(source, "GE and Siemens")
    folders = [path for path in list_visible(source) if path.name in SITES and path.is_dir()]
    if not folders:
        raise BadInput(f"{source}: no folder GE or Siemens in it; --source has to be the folder that contains them")
    sites = [_read_site(folder) for folder in folders]
    other = tuple((path.name, "not the folder GE or Siemens") for path in list_visible(source) if path not in folders)
    return add_left_out(sites, other)


def _read_site(folder: Path) -> RawSite:
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    left_out = []
    for patient in list_visible(folder):
        name = patient.name.replace(" ", "_")
        place = f"{folder.name}/{patient.name}"
        if name in DROPPED or not patient.is_dir():
            left_out.append((place, DROPPED.get(name, "not the folder of a patient")))
            continue
        image, mask = patient / "T2W", patient / "GT" / "prostate"
        for found, series in ((images, image), (masks, mask)):
            if series.is_dir():
                note_file(found, name, series)
        masked = patient / "GT"
        others = [*list_visible(patient), *(list_visible(masked) if masked.is_dir() else ())]
        left_out += [
            (path.relative_to(folder.parent).as_posix(), LEFT) for path in others if path not in (image, mask, masked)
        ]
        if name not in images and name not in masks:
            raise BadInput(f"{patient}: neither T2W nor GT/prostate in it; add them or move it out of the source")
    cases = (
        RawCase(name, f"{folder.name}-{name}", image, mask) for name, image, mask in pair_files(images, masks, folder)
    )
    return RawSite(folder.name, tuple(cases), tuple(left_out))


def decode(case: RawCase) -> Decoded:
    """The T2 slices and the gland, all ground truth above 0, oriented by `slice_axially`."""
    label = read_series(case.label)
    require_few_labels(case.label, label.voxels)
    return slice_axially(case, read_series(case.image), replace(label, voxels=(label.voxels > 0).astype("float32")))


KIND = prostate_kind(
    description="I2CVB as published: DICOM {GE,Siemens}/<patient>/{T2W,GT/prostate}",
    find_sites=find_sites,
    decode=decode,
    licence="research use; the terms of I2CVB hold",
    citation="Lemaitre et al., Computer-aided detection and diagnosis for prostate cancer based on mono and "
    "multi-parametric MRI: a review, Computers in Biology and Medicine 2015",
)
