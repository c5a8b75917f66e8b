"""Reader of PROMISE12: ``CaseNN.mhd/.raw`` + ``CaseNN_segmentation.mhd/.raw``, split into its hospitals."""

import re
from pathlib import Path

from fedmerit.errors import BadInput
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
from fedmerit_data.readers.kind import prostate_kind
from fedmerit_data.spatial.geometry import slice_axially
from fedmerit_data.spatial.volumes import read_itk

# As the multi-site release lists the cases; those it does not list, of 00 to 49, are RUNMC's.
HOSPITALS = {"BIDMC": {0, *range(2, 13)}, "UCL": {1, *range(26, 38)}, "HK": {*range(38, 50)}}
REST, CASES = "RUNMC", range(50)
FILE = re.compile(r"(?P<case>case\d+)(?P<mask>_segmentation)?\.(?P<suffix>mhd|z?raw)", re.IGNORECASE)


def find_sites(source: Path) -> list[RawSite]:
    """The hospitals that cases below ``source`` come from, at any depth, sorted by name."""
    require_folder(source, "CaseNN.mhd and CaseNN_segmentation.mhd with their .raw files")
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    voxels: dict[Path, Path] = {}
    left_out = []
    for path in list_files(source):
        match = FILE.fullmatch(path.name)
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


def decode(case: RawCase) -> Decoded:
    """The T2 slices and the whole gland, oriented by `slice_axially`."""
    return slice_axially(case, read_itk(case.image), read_itk(case.label))


KIND = prostate_kind(
    description="PROMISE12, split into its hospitals: CaseNN.mhd/.raw + CaseNN_segmentation.mhd/.raw",
    find_sites=find_sites,
    decode=decode,
    licence="research use; cite the challenge",
    citation="Litjens et al., Evaluation of prostate segmentation algorithms for MRI: the PROMISE12 challenge, "
    "Medical Image Analysis 2014",
)
