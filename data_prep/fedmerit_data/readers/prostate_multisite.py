"""Reader of the multi-site prostate MRI release: ``<site>/CaseNN.nii.gz`` + ``CaseNN_segmentation.nii.gz``."""

import re
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import (
    Decoded,
    RawCase,
    RawSite,
    add_left_out,
    find_site_folders,
    list_visible,
    note_file,
    pair_files,
)
from fedmerit_data.readers.kind import prostate_kind
from fedmerit_data.spatial.geometry import slice_axially
from fedmerit_data.spatial.volumes import read_nifti

SITES = ("BIDMC", "BMC", "HK", "I2CVB", "RUNMC", "UCL")
ALIASES = {"ISBI": "RUNMC", "ISBI_1.5": "BMC", "HCRUDB": "I2CVB", **{name: name for name in SITES}}
FILE = re.compile(r"(?P<case>case\d+)(?P<mask>[ _-]*segmentation)?\.nii(\.gz)?", re.IGNORECASE)


def find_sites(source: Path) -> list[RawSite]:
    """Every site below ``source``, its images and masks paired, sorted by name."""
    folders, strays = find_site_folders(source, "one folder per site with CaseNN.nii.gz and CaseNN_segmentation.nii.gz")
    sites: dict[str, tuple[Path, RawSite]] = {}
    for folder in folders:
        site = _read_site(folder)
        if site.name in sites:
            raise BadInput(f"{folder}: {sites[site.name][0]} is site {site.name} under another name; keep one of them")
        sites[site.name] = (folder, site)
    return add_left_out([sites[name][1] for name in sorted(sites)], strays)


def _read_site(folder: Path) -> RawSite:
    name = ALIASES.get(folder.name.upper(), folder.name)
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    left_out = []
    for path in list_visible(folder):
        match = FILE.fullmatch(path.name)
        if match:
            note_file(masks if match["mask"] else images, match["case"].capitalize(), path)
        else:
            left_out.append((path.name, "not named CaseNN.nii.gz or CaseNN_segmentation.nii.gz"))
    # Case numbers start again at some sites, so a patient is a site and a number.
    cases = (RawCase(case, f"{name}-{case}", image, mask) for case, image, mask in pair_files(images, masks, folder))
    return RawSite(name, tuple(cases), tuple(left_out))


def decode(case: RawCase) -> Decoded:
    """The T2 slices and the whole gland, oriented by `slice_axially`; labels above 1 count as 1."""
    return slice_axially(case, read_nifti(case.image), read_nifti(case.label))


KIND = prostate_kind(
    description="multi-site prostate MRI release: <site>/CaseNN.nii.gz + CaseNN_segmentation.nii.gz",
    find_sites=find_sites,
    decode=decode,
    licence="research use; the terms of PROMISE12, NCI-ISBI 2013 and I2CVB hold for their cases",
    citation="Liu et al., MS-Net: multi-site network for improving prostate segmentation with heterogeneous MRI "
    "data, IEEE TMI 2020",
)
