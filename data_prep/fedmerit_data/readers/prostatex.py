"""Reader of PROSTATEx: ``Image/<ID>/<series>/*.dcm`` + zones in ``Mask/<ID>.nrrd`` or a DICOM-SEG below ``Mask``."""

import re
from collections import defaultdict
from pathlib import Path

from fedmerit_data.raw_cases import Decoded, RawCase, RawSite, list_files, note_file, pair_files, require_folder
from fedmerit_data.readers.dicom_series import list_outside, select_series
from fedmerit_data.readers.kind import prostate_kind
from fedmerit_data.spatial.dicom import is_slice, read_referenced_series, read_segmentation, read_series
from fedmerit_data.spatial.geometry import resample_mask, slice_axially
from fedmerit_data.spatial.volumes import read_itk

SITE = "PROSTATEx"
ZONES = 4  # of the NRRD files: all of them are gland
SEGMENTS = (1, 2, 4)  # of the DICOM-SEG files that are gland
PATIENT = re.compile(r"ProstateX-\d+", re.IGNORECASE)
T2 = re.compile("t2.*tra", re.IGNORECASE)


def find_sites(source: Path) -> list[RawSite]:
    """The one site that the set is; patients without zones, which are most of the set, are left out.

    A DICOM-SEG file may lie in a folder of its patient at any depth.
    """
    require_folder(source, "Image and Mask")
    series: dict[str, set[Path]] = defaultdict(set)
    masks: dict[str, Path] = {}
    left_out = []
    for path in list_files(source):
        folder, *inner = path.relative_to(source).parts
        match = PATIENT.match(inner[0]) if inner else None
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
        named = read_referenced_series(masks[patient]) if masks[patient].suffix.lower() == ".dcm" else None
        images[patient] = select_series(series[patient], T2, named)
        for other in series[patient] - {images[patient]}:
            left_out.append((other, "not the T2 series of the mask"))
    cases = (RawCase(case, f"{SITE}-{case}", image, mask) for case, image, mask in pair_files(images, masks, source))
    return [RawSite(SITE, tuple(cases), tuple(sorted(list_outside(images.values(), left_out, source))))]


def decode(case: RawCase) -> Decoded:
    """The T2 slices and the gland, its zones merged, oriented by `slice_axially`.

    The mask may lie on another grid than the image: it is brought onto the image's by nearest neighbour, with a
    remark where that moved voxels.
    """
    image = read_series(case.image)
    if case.label.suffix.lower() == ".nrrd":
        label, remarks = resample_mask(image, read_itk(case.label))
    else:
        label, remarks = resample_mask(image, read_segmentation(case.label, SEGMENTS))
    return slice_axially(case, image, label, zones=ZONES, remarks=remarks)


KIND = prostate_kind(
    description="PROSTATEx: DICOM Image/<ID>/<series> + zones Mask/<ID>.nrrd or DICOM-SEG",
    find_sites=find_sites,
    decode=decode,
    licence="research use; the terms of The Cancer Imaging Archive hold",
    citation="Litjens et al., Computer-aided detection of prostate cancer in MRI, IEEE TMI 2014; zones: Meyer et "
    "al., Towards patient-individual PI-RADS v2 sector map, IEEE ISBI 2019",
)
