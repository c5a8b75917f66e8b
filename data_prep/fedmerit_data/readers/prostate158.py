"""Reader of Prostate158: ``{train,valid,test}/NNN/t2.nii.gz`` + ``t2_anatomy_reader1.nii.gz`` (zones 1, 2)."""

import re
from functools import partial
from pathlib import Path

from fedmerit_data.raw_cases import Decoded, RawCase, find_one_site
from fedmerit_data.readers.kind import prostate_kind
from fedmerit_data.spatial.geometry import slice_axially
from fedmerit_data.spatial.volumes import read_nifti

EXPECTED = "{train,valid,test}/NNN/t2.nii.gz and t2_anatomy_reader1.nii.gz"
SITE = "Prostate158"
FILE = re.compile(r"(?P<case>\d+)/t2(?P<mask>_anatomy_reader1)?\.nii(\.gz)?")


def _role(path: Path) -> tuple[str, str]:
    """The set numbers its patients through its own train, valid and test folders, which are pooled."""
    match = FILE.fullmatch(f"{path.parent.name}/{path.name}")
    if not match:
        return "", "not the T2 image or the first reader's anatomy"
    return "mask" if match["mask"] else "image", match["case"]


def decode(case: RawCase) -> Decoded:
    """The T2 slices and the gland, both zones merged, oriented by `slice_axially`."""
    return slice_axially(case, read_nifti(case.image), read_nifti(case.label), zones=2)


KIND = prostate_kind(
    description="Prostate158: {train,valid,test}/NNN/t2.nii.gz + t2_anatomy_reader1.nii.gz",
    find_sites=partial(find_one_site, name=SITE, expected=EXPECTED, role=_role),
    decode=decode,
    licence="research use",
    citation="Adams et al., Prostate158: an expert-annotated 3T MRI dataset and algorithm for prostate cancer "
    "detection, Computers in Biology and Medicine 2022",
)
