"""Reader of MSD Task05: ``imagesTr/prostate_NN.nii.gz`` (T2, ADC) + ``labelsTr/prostate_NN.nii.gz`` (zones 1, 2)."""

import re
from pathlib import Path

from fedmerit_data.raw_cases import Decoded, RawCase, RawSite, list_files, note_file, pair_files, require_folder
from fedmerit_data.readers.kind import prostate_kind
from fedmerit_data.spatial.geometry import slice_axially
from fedmerit_data.spatial.volumes import read_nifti

SITE = "MSD"
T2 = 0  # the channel
FILE = re.compile(r"(?P<folder>imagesTr|labelsTr)/(?P<case>prostate_\d+)\.nii(\.gz)?")


def find_sites(source: Path) -> list[RawSite]:
    """The one site that the set is; ``source`` is its folder or the one that holds it.

    Raises:
        BadInput: no case, an image or mask without the other, or a case twice.
    """
    require_folder(source, "imagesTr and labelsTr")
    root = source / "Task05_Prostate" if (source / "Task05_Prostate").is_dir() else source
    found: dict[str, dict[str, Path]] = {"imagesTr": {}, "labelsTr": {}}
    left_out = []
    for path in list_files(source):
        name = path.relative_to(source).as_posix()
        match = FILE.fullmatch(path.relative_to(root).as_posix()) if path.is_relative_to(root) else None
        if match:
            note_file(found[match["folder"]], match["case"], path)
        elif path.parent == root / "imagesTs":
            left_out.append((name, "a test image, whose labels are not published"))
        else:
            left_out.append((name, "no prostate_NN.nii.gz of imagesTr or labelsTr"))
    cases = (
        RawCase(case, f"{SITE}-{case}", image, mask)
        for case, image, mask in pair_files(found["imagesTr"], found["labelsTr"], source)
    )
    return [RawSite(SITE, tuple(cases), tuple(left_out))]


def decode(case: RawCase) -> Decoded:
    """The T2 slices and the gland, both zones merged, oriented by `slice_axially`.

    Raises:
        BadInput: a file is unreadable, image and mask differ in shape or geometry, or a label is not 0 to 2.
    """
    return slice_axially(case, read_nifti(case.image, channel=T2), read_nifti(case.label), zones=2)


KIND = prostate_kind(
    description="Medical Segmentation Decathlon Task05: {imagesTr,labelsTr}/prostate_NN.nii.gz",
    find_sites=find_sites,
    decode=decode,
    licence="CC BY-SA 4.0",
    citation="Antonelli et al., The Medical Segmentation Decathlon, Nature Communications 2022",
)
