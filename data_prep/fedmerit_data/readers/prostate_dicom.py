"""Readers of prostate MRI in DICOM series: where files of a release lie as a table, and its decoder."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True)
class SeriesLayout:
    """A table of where the DICOM series and the masks of a release lie.

    Patterns are of a file's path below the source, with "/" between its parts. Both have a group ``case``, which pairs
    them; that of slices a group ``folder``, in which patients lie; that of masks perhaps a group ``corrected``, which
    says that the file replaces another one.
    """

    expected: str  # the layout in words, for messages
    slices: str  # pattern of slices, whose folder is a series
    mask: str  # pattern of masks
    t2: str  # pattern within the name of the series to take of several, if the mask names none
    unmasked: str  # why patients without a mask are left out
    others: str  # why further series of a patient are
    site: str = ""  # the only site; "": each ``folder`` is one
    dropped: Mapping[str, str] = field(default_factory=dict)  # why a case is left out, by its name

    def find_sites(self, source: Path) -> list[RawSite]:
        """Return the sites below ``source``, sorted by name; the first also lists what is left out of all.

        Raises:
            BadInput: there is no case, the image of a mask is missing, or several series could be that of a mask.
        """
        require_folder(source, self.expected)
        series: dict[str, set[Path]] = defaultdict(set)
        folder_of: dict[str, str] = {}
        masks: dict[bool, dict[str, Path]] = {True: {}, False: {}}
        strays: list[tuple[Path, str]] = []
        for path in list_files(source):
            name = path.relative_to(source).as_posix()
            if match := re.fullmatch(self.mask, name, re.DOTALL):
                note_file(masks[bool(match.groupdict().get("corrected"))], match["case"], path)
            elif (match := re.fullmatch(self.slices, name, re.DOTALL)) and is_slice(path):
                folder_of[match["case"]] = match["folder"]
                series[match["case"]].add(path.parent)
            else:
                strays.append((path, "neither a DICOM slice of a patient nor a mask"))
        used = masks[False] | masks[True]
        strays += [(path, "its corrected mask is used") for case, path in masks[False].items() if path != used[case]]
        strays += [(used.pop(case), reason) for case, reason in self.dropped.items() if case in used]
        unused = [
            (f"{folder_of[case]}/{case}", self.dropped.get(case, self.unmasked)) for case in series.keys() - used.keys()
        ]
        images = {case: self._choose(series[case], used[case]) for case in sorted(series.keys() & used.keys())}
        strays += [(other, self.others) for case, chosen in images.items() for other in series[case] - {chosen}]
        cases = []
        for case, image, mask in pair_files(images, used, source):
            site = self.site or folder_of[case]
            cases.append((site, RawCase(case, f"{site}-{case}", image, mask)))
        return group_by_site(cases, [*unused, *_list_outside(images.values(), strays, source)])

    def _choose(self, folders: Collection[Path], mask: Path) -> Path:
        """Return the folder of the series that a mask names, else the only one, or the only one that is named T2."""
        several, head = sorted(folders), read_head(mask)
        if head and head.refers:
            several = [folder for folder in several if _series_uid(folder) == head.refers[0]]
        elif len(several) > 1:
            several = [folder for folder in several if re.search(self.t2, folder.name, re.IGNORECASE)] or several
        if len(several) != 1:
            raise BadInput(
                f"{min(folders).parent}: {len(several)} of its {len(folders)} series could be the T2 series of its "
                "mask; keep only that one"
            )
        return several[0]


def _series_uid(folder: Path) -> str:
    head = read_head(next(path for path in list_visible(folder) if is_slice(path)))
    return head.series if head else ""


def _list_outside(series: Iterable[Path], left_out: Iterable[tuple[Path, str]], source: Path) -> list[tuple[str, str]]:
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


def decode_nci_isbi(case: RawCase) -> Decoded:
    """Return the T2 slices and the gland, both zones merged, oriented by `slice_volume`."""
    return slice_volume(case, read_series(case.image), read_itk(case.label), zones=2)


NCI_ISBI = prostate_kind(
    description="NCI-ISBI 2013: DICOM {Prostate-3T,PROSTATE-DIAGNOSIS}/<ID>/*/* + <ID>.nrrd",
    find_sites=SeriesLayout(
        expected="the manifest folder of the DICOM files and the masks of Training, Test and Leaderboard",
        slices="(.*?/)??(?P<folder>PROSTATE-DIAGNOSIS|Prostate-3T)/(?P<case>[^/]+)/.+",
        mask=r"(.*/)?(?P<case>Prostate(Dx|3T)-\d+-\d+)(?P<corrected>_correctedLabels)?(_truth)?\.nrrd",
        t2="t2",
        unmasked="no mask: no part of the challenge",
        others="not the T2 series",
        dropped={"ProstateDx-01-0055": "its mask has 23 slices, its image 34"},
    ).find_sites,
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
    find_sites=SeriesLayout(
        expected="Image and Mask",
        slices=r"(?P<folder>Image)/(?P<case>(?i:ProstateX-\d+)[^/]*)/.+",
        mask=r"Mask/(?P<case>(?i:ProstateX-\d+)).*\.(?i:nrrd|dcm)",  # a DICOM-SEG may be in a folder of its patient
        t2="t2.*tra",
        unmasked="no zones: no mask to learn from",  # most of the set
        others="not the T2 series of the mask",
        site="PROSTATEx",
    ).find_sites,
    decode=decode_prostatex,
    licence="research use; the terms of The Cancer Imaging Archive hold",
    citation="Litjens et al., Computer-aided detection of prostate cancer in MRI, IEEE TMI 2014; zones: Meyer et "
    "al., Towards patient-individual PI-RADS v2 sector map, IEEE ISBI 2019",
)
