"""Public releases of several hospitals whose site is in a name or in a table: one row of `Release` each."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import (
    Channel,
    Decoded,
    RawCase,
    RawSite,
    list_files,
    note_file,
    pair_files,
    require_folder,
)
from fedmerit_data.readers.kind import Kind, photo_kind, prostate_kind
from fedmerit_data.readers.label_map import LabelMap
from fedmerit_data.readers.labelled_images import decode
from fedmerit_data.spatial.geometry import slice_volume
from fedmerit_data.spatial.photographs import decode_binary
from fedmerit_data.spatial.volumes import read_volume
from fedmerit_data.tables import SPREADSHEETS, read_table

NIFTI = r"\.nii(\.gz)?"
PICTURE = r"\.(?i:png|jpe?g|tiff?|bmp)"
NO_PART = "not an image or mask of this release"
Table = Mapping[str, Mapping[str, str]]  # rows by case


@dataclass(frozen=True)
class Release:
    """A table of where the files of a release lie, and of which site each case is.

    Patterns are found in a file's path below the source, with "/" between its parts. Each has a group ``case``, which
    pairs them; the group ``channel`` of ``image`` names a channel if there are several.
    """

    expected: str
    image: str
    mask: str
    site: Callable[[str, str, Table], str]  # of a case by its name, the path of its image, and the table
    patient: Callable[[str], str] = str
    channels: tuple[str, ...] = ()  # in order; (): one
    table: tuple[str, ...] = ()  # names that the table of cases may have, also as a spreadsheet; (): there is none
    columns: tuple[str, ...] = ()  # of the table, whose values joined by _ are the case

    def find_sites(self, source: Path) -> list[RawSite]:
        """Return the sites below ``source``, sorted by name; the first lists what is left out.

        Raises:
            BadInput: there is no case, an image or mask lacks the other, or the table or one of its rows is missing.
        """
        require_folder(source, self.expected)
        images, masks = defaultdict[str, dict[str, Path]](dict), dict[str, Path]()
        left_out, files = list[tuple[str, str]](), [*list_files(source)]
        for path in files:
            name = path.relative_to(source).as_posix()
            if match := re.search(rf"(?:^|/){self.mask}$", name):
                note_file(masks, match["case"], path)
            elif match := re.search(rf"(?:^|/){self.image}$", name):
                note_file(images[match["case"]], match.groupdict().get("channel") or "", path)
            else:
                left_out.append((name, NO_PART))
        rows = self.read_rows(source, files)
        wanted = self.channels or ("",)
        for case, there in images.items():
            if missing := [name for name in wanted if name not in there]:
                raise BadInput(f"{min(there.values())}: case {case} lacks its image {missing[0]}; fetch it again")
        if not images and not masks:
            raise BadInput(f"{source}: has no cases in this layout; expected {self.expected}")
        found: dict[str, list[RawCase]] = defaultdict(list)
        for case, image, mask in pair_files({name: there[wanted[0]] for name, there in images.items()}, masks, source):
            site = self.site(case, image.relative_to(source).as_posix(), rows)
            parts = tuple(Channel(images[case][name], name) for name in self.channels)
            found[site].append(RawCase(case, f"{site}-{self.patient(case)}", image, mask, channels=parts))
        sites = [RawSite(site, tuple(found[site])) for site in sorted(found)]
        return [replace(sites[0], left_out=tuple(sorted(left_out))), *sites[1:]]

    def read_rows(self, source: Path, files: Sequence[Path]) -> Table:
        """Return the rows of the table of cases, by case; none if there is no table."""
        if not self.table:
            return {}
        stems = [name.removesuffix(".csv") for name in self.table]
        named = [path for path in files if path.stem in stems and path.suffix.lower() in (".csv", *SPREADSHEETS)]
        if not named:
            raise BadInput(f"{source}: has no {' or '.join(self.table)}, which states the site of each case; add it")
        return {"_".join(column(row, name) for name in self.columns): row for _, row in read_table(named[0], ())}


def column(row: Mapping[str, str], *names: str) -> str:
    """Return the value of the first of these columns that a row has, in any case of letters; "" if it has none."""
    folded = {name.casefold(): value for name, value in row.items()}
    return next((folded[name] for name in names if folded.get(name)), "")


def by_column(*names: str, prefix: str = "") -> Callable[[str, str, Table], str]:
    """Return what finds the site of a case in the columns ``names`` of the table."""
    return partial(_site_in_table, names=names, prefix=prefix)


def _site_in_table(case: str, path: str, table: Table, names: tuple[str, ...], prefix: str) -> str:
    site = column(table.get(case, {}), *names)
    if not site:
        raise BadInput(f"{path}: the table of the release has no {names[0]} of case {case}; complete it")
    return f"{prefix}{site}"


def by_name(pattern: str, names: Mapping[str, str] | None = None) -> Callable[[str, str, Table], str]:
    """Return what finds the site in the group ``site`` of a pattern of the image's path."""
    return partial(_site_in_path, pattern=pattern, names=names or {})


def _site_in_path(case: str, path: str, table: Table, pattern: str, names: Mapping[str, str]) -> str:
    match = re.search(pattern, path)
    if not match:
        raise BadInput(f"{path}: no site of this release is in its name; move it out of the source")
    site = match["site"]
    return names.get(site, site)


def _pranet_site(case: str, path: str, table: Table) -> str:
    """Return the collection of a polyp image; of the training images those whose names begin with c are Kvasir's."""
    folder = path.split("/")
    if "TestDataset" in folder:
        return folder[folder.index("TestDataset") + 1]
    return "Kvasir" if case.startswith("c") else "CVC-ClinicDB"


def _first_words(case: str, count: int) -> str:
    return "_".join(case.split("_")[:count])


POLYPGEN = photo_kind(
    description="PolypGen 2021: data_C1 to data_C6, {images,masks}_CN, as six sites",
    task="polyp",
    labels=("polyp",),
    find_sites=Release(
        expected="data_C1 to data_C6 with images_CN/*.jpg and masks_CN/*_mask.jpg",
        image=rf"data_C\d/images_C\d/(?P<case>[^/]+){PICTURE}",
        mask=rf"data_C\d/masks_C\d/(?P<case>[^/]+?)_mask{PICTURE}",
        site=by_name(r"data_(?P<site>C\d)/"),
    ).find_sites,
    decode=decode_binary,
    licence="CC BY 4.0",
    citation="Ali et al., A multi-centre polyp detection and segmentation dataset for generalisability assessment, "
    "Scientific Data 2023",
)

POLYP_FIVE = photo_kind(
    description="PraNet's polyp folders: TrainDataset and TestDataset/COLLECTION, {images,masks}, as five sites",
    task="polyp",
    labels=("polyp",),
    find_sites=Release(
        expected="TrainDataset/{images,masks} and TestDataset/COLLECTION/{images,masks}",
        image=rf"(TrainDataset|TestDataset/[^/]+)/images/(?P<case>[^/]+){PICTURE}",
        mask=rf"(TrainDataset|TestDataset/[^/]+)/masks/(?P<case>[^/]+){PICTURE}",
        site=_pranet_site,
    ).find_sites,
    decode=decode_binary,
    licence="research use; the terms of each collection hold",
    notes={
        "CVC-ClinicDB": "its 612 frames are of 29 sequences: name these with --patient-table, or frames of one "
        "sequence are trained on and tested"
    },
    citation="Fan et al., PraNet: parallel reverse attention network for polyp segmentation, MICCAI 2020",
)

TCGA_LGG = photo_kind(
    description="TCGA-LGG by Buda: TCGA_SITE_PATIENT_DATE/*_N.tif + *_N_mask.tif, a site per TCGA code",
    task="glioma",
    labels=("tumour",),
    find_sites=Release(
        expected="folders TCGA_SITE_PATIENT_DATE with TCGA_SITE_PATIENT_DATE_N.tif and ..._N_mask.tif",
        image=rf"(?P<case>TCGA_[^/_]+_[^/_]+_\d+_\d+){PICTURE}",
        mask=rf"(?P<case>TCGA_[^/_]+_[^/_]+_\d+_\d+)_mask{PICTURE}",
        site=by_name(r"TCGA_(?P<site>[A-Z0-9]+)_[^/_]+_\d+_\d+\.[^/.]+$"),
        patient=partial(_first_words, count=3),
    ).find_sites,
    decode=decode_binary,
    licence="CC BY-NC-SA 4.0",
    citation="Buda et al., Association of genomic subtypes of lower-grade gliomas with shape features automatically "
    "extracted by a deep learning algorithm, Computers in Biology and Medicine 2019",
)

TUMOUR: LabelMap = {"whole_tumour": (1, 2, 4), "core": (1, 4), "enhancing": (4,)}
FETS = Kind(
    description="FeTS 2022: FeTS2022_NNNNN/*_{flair,t1,t1ce,t2,seg}.nii.gz, a site per partition of partitioning_1.csv",
    task="brain-tumour",
    labels=tuple(TUMOUR),
    channels=4,
    find_sites=Release(
        expected="folders FeTS2022_NNNNN and partitioning_1.csv",
        image=rf"(?P<case>FeTS2022_\d+)_(?P<channel>flair|t1|t1ce|t2){NIFTI}",
        mask=rf"(?P<case>FeTS2022_\d+)_seg{NIFTI}",
        channels=("t1", "t1ce", "t2", "flair"),
        table=("partitioning_1.csv",),
        columns=("subject_id",),
        site=by_column("partition_id", prefix="institution-"),
    ).find_sites,
    decode=partial(decode, labels=TUMOUR, channels=4),
    normalisation="mri_by_channel",
    field_of_view=None,
    licence="CC BY 4.0; terms of the challenge",
    citation="Pati et al., The federated tumor segmentation (FeTS) challenge, 2021",
)

PICAI = prostate_kind(
    description="PI-CAI: PATIENT/PATIENT_STUDY_t2w.mha + an AI's gland masks, a site per center of marksheet.csv",
    find_sites=Release(
        expected="PATIENT/PATIENT_STUDY_t2w.mha, whole_gland/AI/Bosma22b/PATIENT_STUDY.nii.gz and marksheet.csv",
        image=r"(?P<case>\d+_\d+)_t2w\.mha",
        mask=rf"whole_gland/AI/Bosma22b/(?P<case>\d+_\d+){NIFTI}",
        patient=partial(_first_words, count=1),
        table=("marksheet.csv",),
        columns=("patient_id", "study_id"),
        site=by_column("center"),
    ).find_sites,
    decode=partial(decode, labels={"prostate": ()}, channels=1),
    licence="CC BY-NC 4.0; its masks of the gland are an AI's, not experts'",
    notes={"": "masks of the gland are an AI's, not experts'; 328 of the cases of the release are PROSTATEx's"},
    citation="Saha et al., Artificial intelligence and radiologists in prostate cancer detection on MRI (PI-CAI), "
    "Lancet Oncology 2024",
)

MAMA_MIA = Kind(
    description="MAMA-MIA: images/ID/ID_000N.nii.gz + segmentations/expert/ID.nii.gz, a site per collection",
    task="breast-tumour",
    labels=("tumour",),
    channels=1,
    find_sites=Release(
        expected="images/ID/ID_0001.nii.gz, the first phase after contrast, and segmentations/expert/ID.nii.gz",
        image=rf"(?i:images/[^/]+/(?P<case>[^/]+)_0001{NIFTI})",
        mask=rf"(?i:segmentations/expert/(?P<case>[^/]+){NIFTI})",
        site=by_name(r"(?i:/(?P<site>[a-z]+[12]?)[_-]?[^/]*_0001\.nii(\.gz)?$)"),
    ).find_sites,
    decode=partial(decode, labels={"tumour": ()}, channels=1),
    normalisation="mri",
    field_of_view=None,
    licence="CC BY-NC 4.0",
    citation="Garrucho et al., A large-scale multicenter breast cancer DCE-MRI benchmark dataset with expert "
    "segmentations, Scientific Data 2025",
)

HEART: LabelMap = {"left_ventricle": (1,), "myocardium": (2,), "right_ventricle": (3,)}
MNMS_TABLES = ("211230_M&Ms_Dataset_information_diagnosis_opendataset.csv", "mnms_dataset_info.csv")
TIMES = ("ed", "es")  # the two times of a heartbeat that have masks, columns of the table


def find_mnms(source: Path) -> list[RawSite]:
    """Return the sites of M&Ms, a centre each: of every patient the two times that have masks as a case each.

    Raises:
        BadInput: as `Release.find_sites`, or the table lacks the number of a time.
    """
    release = Release(
        expected="ID/ID_sa.nii.gz and ID_sa_gt.nii.gz, and the table of the data set as CSV",
        image=rf"(?P<case>[^/]+)_sa{NIFTI}",
        mask=rf"(?P<case>[^/]+)_sa_gt{NIFTI}",
        table=MNMS_TABLES,
        columns=("external code",),
        site=by_column("centre", "center", prefix="centre-"),
    )
    rows = release.read_rows(source, [*list_files(source)])
    return [replace(site, cases=_times(site, rows)) for site in release.find_sites(source)]


def _times(site: RawSite, rows: Table) -> tuple[RawCase, ...]:
    cases = []
    for case in site.cases:
        for name in TIMES:
            number = column(rows[case.name], name)
            if not number.isdigit():
                raise BadInput(f"{case.image}: the table has no number in column {name.upper()} of case {case.name}")
            parts = (Channel(case.image, index=int(number)),)
            cases.append(replace(case, name=f"{case.name}_{name}", channels=parts))
    return tuple(cases)


def decode_mnms(case: RawCase) -> Decoded:
    """Decode one time of a patient, with its mask of the same time."""
    index = case.parts[0].index
    image, mask = read_volume(case.image, index), read_volume(case.label, index)
    parts = [
        slice_volume(case, image, replace(mask, voxels=(mask.voxels == value).astype(np.float32)))
        for (value,) in HEART.values()
    ]
    return replace(parts[0], label=np.concatenate([part.label for part in parts], axis=1))


MNMS = Kind(
    description="M&Ms: ID/ID_sa.nii.gz + ID_sa_gt.nii.gz of two times each, a site per centre of its table",
    task="heart",
    labels=tuple(HEART),
    channels=1,
    find_sites=find_mnms,
    decode=decode_mnms,
    normalisation="mri",
    field_of_view=None,
    licence="CC BY-SA 4.0",
    citation="Campello et al., Multi-centre, multi-vendor and multi-disease cardiac segmentation: the M&Ms challenge, "
    "IEEE TMI 2021",
)
