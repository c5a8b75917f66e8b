"""Reader of Prostate158: ``{train,valid,test}/NNN/t2.nii.gz`` + ``t2_anatomy_reader1.nii.gz`` (zones 1, 2)."""

import re
from pathlib import Path

from fedmerit_data.raw_cases import Decoded, RawCase, RawSite, list_files, note_file, pair_files, require_folder
from fedmerit_data.readers.kind import prostate_kind
from fedmerit_data.spatial.geometry import slice_axially
from fedmerit_data.spatial.volumes import read_nifti

SITE = "Prostate158"
FILE = re.compile(r"(?P<case>\d+)/t2(?P<mask>_anatomy_reader1)?\.nii(\.gz)?")


def find_sites(source: Path) -> list[RawSite]:
    """The one site that the set is; its own train, valid and test folders, at any depth, are pooled.

    Raises:
        BadInput: no case, an image or mask without the other, or a case twice.
    """
    require_folder(source, "{train,valid,test}/NNN/t2.nii.gz and t2_anatomy_reader1.nii.gz")
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    left_out = []
    for path in list_files(source):
        match = FILE.fullmatch(f"{path.parent.name}/{path.name}")
        if match:
            note_file(masks if match["mask"] else images, match["case"], path)
        else:
            left_out.append((path.relative_to(source).as_posix(), "not the T2 image or the first reader's anatomy"))
    # The set numbers its patients through its three folders.
    cases = (RawCase(case, f"{SITE}-{case}", image, mask) for case, image, mask in pair_files(images, masks, source))
    return [RawSite(SITE, tuple(cases), tuple(left_out))]


def decode(case: RawCase) -> Decoded:
    """The T2 slices and the gland, both zones merged, oriented by `slice_axially`.

    Raises:
        BadInput: a file is unreadable, image and mask differ in shape or geometry, or a label is not 0 to 2.
    """
    return slice_axially(case, read_nifti(case.image), read_nifti(case.label), zones=2)


KIND = prostate_kind(
    description="Prostate158: {train,valid,test}/NNN/t2.nii.gz + t2_anatomy_reader1.nii.gz",
    find_sites=find_sites,
    decode=decode,
    licence="research use",
    citation="Adams et al., Prostate158: an expert-annotated 3T MRI dataset and algorithm for prostate cancer "
    "detection, Computers in Biology and Medicine 2022",
)
