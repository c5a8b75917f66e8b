"""Reader of MSD Task05: ``imagesTr/prostate_NN.nii.gz`` (T2, ADC) + ``labelsTr/prostate_NN.nii.gz`` (zones 1, 2)."""

import re
from functools import partial
from pathlib import Path

from fedmerit_data.raw_cases import Decoded, RawCase, find_one_site
from fedmerit_data.readers.kind import prostate_kind
from fedmerit_data.spatial.geometry import slice_axially
from fedmerit_data.spatial.volumes import read_nifti

SITE, SET = "MSD", "Task05_Prostate"
LEFT = "no prostate_NN.nii.gz of imagesTr or labelsTr"
PARTS = {"imagesTr": "image", "labelsTr": "mask"}
T2 = 0  # the channel
FILE = re.compile(r"(?P<folder>imagesTr|labelsTr)/(?P<case>prostate_\d+)\.nii(\.gz)?")


def _role(path: Path) -> tuple[str, str]:
    """By the path below the set's folder, which is the source or within it."""
    inner = path.relative_to(SET) if path.parts[0] == SET else path
    if match := FILE.fullmatch(inner.as_posix()):
        return PARTS[match["folder"]], match["case"]
    return "", "a test image, whose labels are not published" if inner.parent.as_posix() == "imagesTs" else LEFT


def decode(case: RawCase) -> Decoded:
    """The T2 slices and the gland, both zones merged, oriented by `slice_axially`."""
    return slice_axially(case, read_nifti(case.image, channel=T2), read_nifti(case.label), zones=2)


KIND = prostate_kind(
    description="Medical Segmentation Decathlon Task05: {imagesTr,labelsTr}/prostate_NN.nii.gz",
    find_sites=partial(find_one_site, name=SITE, expected="imagesTr and labelsTr", role=_role),
    decode=decode,
    licence="CC BY-SA 4.0",
    citation="Antonelli et al., The Medical Segmentation Decathlon, Nature Communications 2022",
)
