"""Reader of NCI-ISBI 2013: DICOM ``{Prostate-3T,PROSTATE-DIAGNOSIS}/<ID>/*/*`` + masks ``<ID>.nrrd`` (zones 1, 2)."""

import re
from collections import defaultdict
from pathlib import Path

from fedmerit_data.raw_cases import (
    Decoded,
    RawCase,
    RawSite,
    group_by_site,
    list_files,
    note_file,
    pair_files,
    require_folder,
)
from fedmerit_data.readers.dicom_series import list_outside, select_series
from fedmerit_data.readers.kind import prostate_kind
from fedmerit_data.spatial.dicom import is_slice, read_series
from fedmerit_data.spatial.geometry import slice_axially
from fedmerit_data.spatial.volumes import read_itk

SITES = ("PROSTATE-DIAGNOSIS", "Prostate-3T")
DROPPED = {"ProstateDx-01-0055": "its mask has 23 slices, its image 34"}
MASK = re.compile(r"(?P<case>Prostate(Dx|3T)-\d+-\d+)(?P<corrected>_correctedLabels)?(_truth)?\.nrrd")
T2 = re.compile("t2", re.IGNORECASE)


def find_sites(source: Path) -> list[RawSite]:
    """The collections, whichever of the two ``source`` holds at any depth, sorted by name.

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
        match = MASK.fullmatch(path.name)
        site = next((part for part in parts[:-2] if part in SITES), None)
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
    for patient, reason in DROPPED.items():
        if patient in series:
            left_out.append((f"{collection[patient]}/{patient}", reason))
        if patient in used:
            strays.append((used.pop(patient), reason))
    for patient in series.keys() - used.keys() - DROPPED.keys():
        left_out.append((f"{collection[patient]}/{patient}", "no mask: no part of the challenge"))
    images = {patient: select_series(series[patient], T2) for patient in sorted(series.keys() & used.keys())}
    for patient, chosen in images.items():
        strays += [(folder, "not the T2 series") for folder in series[patient] - {chosen}]
    cases = (
        (collection[case], RawCase(case, f"{collection[case]}-{case}", image, mask))
        for case, image, mask in pair_files(images, used, source)
    )
    return group_by_site(cases, [*left_out, *list_outside(images.values(), strays, source)])


def decode(case: RawCase) -> Decoded:
    """The T2 slices and the gland, both zones merged, oriented by `slice_axially`."""
    return slice_axially(case, read_series(case.image), read_itk(case.label), zones=2)


KIND = prostate_kind(
    description="NCI-ISBI 2013: DICOM {Prostate-3T,PROSTATE-DIAGNOSIS}/<ID>/*/* + <ID>.nrrd",
    find_sites=find_sites,
    decode=decode,
    licence="research use; the terms of The Cancer Imaging Archive hold",
    citation="Bloch et al., NCI-ISBI 2013 challenge: automated segmentation of prostate structures, The Cancer "
    "Imaging Archive 2015, doi:10.7937/K9/TCIA.2015.zF0vlOPv",
)
