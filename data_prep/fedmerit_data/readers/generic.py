"""Reader of your own images: folders of sites or of patients, or lists (`lists`).

A patient's folder has its images, a channel each, and one mask or a mask for each organ, as BraTS has them
(``P1/P1_t1.nii.gz``, ``P1/P1_flair.nii.gz``, ``P1/P1_seg.nii.gz``) and TotalSegmentator (``P1/ct.nii.gz``,
``P1/segmentations/liver.nii.gz``).
"""

import re
from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.data import NORMALISATIONS
from fedmerit_data.raw_cases import (
    Channel,
    RawCase,
    RawSite,
    add_left_out,
    find_site_folders,
    list_visible,
    note_file,
    pair_files,
    require_file,
)
from fedmerit_data.readers.image_files import DICOM, KNOWN, is_detached, is_readable, name_and_suffix
from fedmerit_data.readers.kind import Kind
from fedmerit_data.readers.label_map import ANY, IGNORE, LabelMap, named_organs, require_labels
from fedmerit_data.readers.labelled_images import Allowed, decode
from fedmerit_data.readers.lists import find_lists, read_list, unlisted

MASK = re.compile(r"(?:^|.*[_.-])(mask|segmentation|seg|label)s?", re.IGNORECASE)  # names of masks
UNNAMED = "an organ that --labels does not name"
MAX_NAMED = 5  # organs in an error


def is_patient(folder: Path) -> bool:
    """Return whether a folder is that of a patient: it has image files, other than the slices of a DICOM series."""
    return folder.is_dir() and any(
        path.is_file() and is_readable(path) and path.suffix.lower() != DICOM for path in list_visible(folder)
    )


def organ_files(folder: Path) -> dict[str, Path]:
    """Return the masks in a folder by the organ that each is named for."""
    return {name_and_suffix(path)[0]: path for path in list_visible(folder) if path.is_file() and is_readable(path)}


def choose_organs(masks: dict[str, Path], wanted: Collection[str], where: Path) -> tuple[tuple[str, ...], list[Path]]:
    """Return the masks of the wanted organs, and the files of the others.

    Raises:
        BadInput: none is wanted, and it is not clear which is meant.
    """
    chosen = tuple(sorted(masks.keys() & set(wanted)))
    if not chosen and len(masks) == 1:
        return (), []
    if not chosen:
        few = sorted(masks)[:MAX_NAMED]
        more = ", ..." if len(masks) > len(few) else ""
        raise BadInput(
            f"{where}: has masks of {len(masks)} organs ({', '.join(few)}{more}), and --labels names none of them; "
            f"expected such as --labels {few[0]}={few[0]}"
        )
    return chosen, [path for organ, path in masks.items() if organ not in chosen]


def read_patients(folders: Collection[Path], site: str, wanted: Collection[str]) -> RawSite:
    """Return the patients of a site, a folder each; ``wanted`` are the names of organs in the label map.

    Raises:
        BadInput: a patient has no mask, no image, or other images than the others.
    """
    cases, channels = [], dict[str, tuple[str, ...]]()
    left_out = list[tuple[str, str]]()
    for folder in folders:
        images, masks = dict[str, Path](), dict[str, Path]()
        for path in list_visible(folder):
            part = _part(folder, path)
            if is_readable(path) and not (path.is_dir() and MASK.fullmatch(part)):
                note_file(masks if MASK.fullmatch(part) or part in wanted else images, part, path)
            elif path.is_dir() and MASK.fullmatch(part):
                masks |= organ_files(path)
            elif not is_detached(path):
                left_out.append((f"{folder.name}/{path.name}", "of no format that is read"))
        for what, found in (("image", images), ("mask, such as seg.nii.gz,", masks)):
            if not found:
                raise BadInput(f"{folder}: has no {what} in it; add it or move the folder out of the source")
        organs, others = choose_organs(masks, wanted, folder)
        left_out += [(path.relative_to(folder.parent).as_posix(), UNNAMED) for path in others]
        first, *more = [masks[organ] for organ in organs] or list(masks.values())
        channels[folder.name] = tuple(sorted(images))
        parts = tuple(Channel(images[part], part) for part in sorted(images))
        name = folder.name
        cases.append(RawCase(name, f"{site}-{name}", parts[0].path, first, tuple(more), organs, parts))
    usual = Counter(channels.values()).most_common(1)[0][0]
    for folder in folders:
        if channels[folder.name] != usual:
            have, others_have = (", ".join(parts) for parts in (channels[folder.name], usual))
            raise BadInput(f"{folder}: has the images {have}, the other patients {others_have}; each needs the same")
    return RawSite(site, tuple(cases), tuple(left_out))


def _part(folder: Path, path: Path) -> str:
    """Return the name of a file or folder without that of its patient."""
    stem = path.name if path.is_dir() else name_and_suffix(path)[0]
    return stem.removeprefix(folder.name).lstrip("_-. ") or stem


EXPECTED = (
    "folders <site>/{images,masks}, a folder for each patient with images and masks, a dataset.json of the Decathlon, "
    "MONAI or nnU-Net, or pairs.csv with site,patient,image,label"
)
PARTS = ("images", "masks")  # folders of a site
ENDING = re.compile(r"[_.-](mask|segmentation|seg|label)$", re.IGNORECASE)


def find_sites(source: Path, site: str | None = None, labels: LabelMap = ANY) -> list[RawSite]:
    """Return the sites of a list in ``source``; its patients' folders as one site; or a site per folder in it.

    A ``source`` with folders images and masks of its own, or with a folder for each patient, is one site, named
    ``site`` or as its folder. In site folders an image and its mask have the same name, except for an ending such as
    _mask or _seg of the mask, and each case is a patient.

    Raises:
        BadInput: no site, an image or mask without the other, an unknown format, a list that cannot be read, or a
            ``site`` is named and the source is not the folder of one site.
    """
    lists, wanted = find_lists(source), named_organs(labels)
    name = site or source.resolve().name
    if not lists and all((source / part).is_dir() for part in PARTS):
        return [_read_folder(source, name, wanted)]
    if not lists:
        folders, strays = find_site_folders(source, EXPECTED)
        if any(is_patient(folder) and not _has_parts(folder) for folder in folders):
            return add_left_out([read_patients(folders, name, wanted)], strays)
    if site is not None:
        raise BadInput(f"{source}: --site {site} names a folder of one site, with images and masks in it; leave it out")
    if not lists:
        return add_left_out([_read_site(folder, wanted) for folder in folders], strays)
    for listing in lists:
        require_file(listing)
    sites = [found for listing in lists for found in read_list(listing)]
    return add_left_out(sites, unlisted(lists, sites))


def _has_parts(folder: Path) -> bool:
    return any((folder / part).is_dir() for part in PARTS)


def _read_site(folder: Path, wanted: Collection[str]) -> RawSite:
    inner = [] if _has_parts(folder) else [path for path in list_visible(folder) if path.is_dir()]
    if not any(map(is_patient, inner)):
        return _read_folder(folder, folder.name, wanted)
    strays = tuple((path.name, "not the folder of a patient") for path in list_visible(folder) if path not in inner)
    return add_left_out([read_patients(inner, folder.name, wanted)], strays)[0]


def _read_folder(folder: Path, site: str, wanted: Collection[str]) -> RawSite:
    found: dict[str, dict[str, Path]] = {part: {} for part in PARTS}
    left_out = [
        (path.name, "neither in images nor in masks")
        for path in list_visible(folder)
        if path.name not in found or not path.is_dir()
    ]
    unread: dict[str, dict[str, Path]] = {part: {} for part in PARTS}
    organs: dict[str, dict[str, Path]] = {}  # by case
    for part, files in found.items():
        for path in list_visible(folder / part) if (folder / part).is_dir() else ():
            stem = path.name if path.is_dir() else name_and_suffix(path)[0]
            own = part == "images" or stem in found["images"]  # images are read first
            case = stem if own else ENDING.sub("", stem)
            if is_readable(path):
                note_file(files, case, path)
            elif part == "masks" and path.is_dir() and (masks := organ_files(path)):
                organs[case] = masks
                note_file(files, case, min(masks.values()))
            elif not is_detached(path):
                unread[part].setdefault(case, path)
                left_out.append((f"{part}/{path.name}", "of no format that is read"))
    for part, other in (PARTS, PARTS[::-1]):
        # All that is here is of another format, or the other half of what is.
        for case in sorted(unread[part].keys() & ((found[other] | unread[other]).keys() - found[part].keys())):
            raise BadInput(f"{unread[part][case]}: is of no format that is read; expected one of {KNOWN}")
    if not any(found.values()):
        raise BadInput(f"{folder}: no cases in this site folder; expected {EXPECTED}")
    for part in PARTS:
        if not (folder / part).is_dir():
            there = ", ".join(path.name for path in list_visible(folder) if path.is_dir())
            raise BadInput(f"{folder}: has no folder {part}, only {there}; expected {' and '.join(PARTS)}")
    cases = []
    for case, image, mask in pair_files(found["images"], found["masks"], folder):
        named, others = choose_organs(organs[case], wanted, mask.parent) if case in organs else ((), [])
        left_out += [(path.relative_to(folder).as_posix(), UNNAMED) for path in others]
        first, *more = [organs[case][organ] for organ in named] or [mask]
        cases.append(RawCase(case, f"{site}-{case}", image, first, tuple(more), named))
    return RawSite(site, tuple(cases), tuple(left_out))


def generic_kind(
    labels: LabelMap = ANY,
    channels: int = 3,
    task: str = "generic",
    modality: str | None = None,
    site: str | None = None,
    fill: float | None = None,
    resample: bool = False,
) -> Kind:
    """Return the kind of your own images, with a label map: name and mask values of each label.

    Photographs have 1 (grey) or 3 channels, volumes the numbers of each voxel. Without a ``modality``, images of three
    channels are photographs, others MRI with each channel normalised separately. ``site`` names a source that is one
    site. ``fill`` and ``resample`` are those of `Allowed`.

    Raises:
        BadInput: the map, the number of channels, the name of the task or the modality is not valid.
    """
    require_labels(labels)
    if not 1 <= channels <= 64:
        raise BadInput(f"channels {channels}: expected 1 (grey), 3 (colours) or the numbers of each voxel, up to 64")
    if not re.fullmatch(r"[A-Za-z][\w-]*", task):
        raise BadInput(f"task {task!r}: expected a letter, then letters, digits, _ or -")
    if modality is None:
        modality = {1: "mri", 3: "photo"}.get(channels, "mri_by_channel")
    if modality not in NORMALISATIONS:
        raise BadInput(f"modality {modality!r}: expected one of {', '.join(NORMALISATIONS)}")
    return Kind(
        description="your own images: <site>/{images,masks}, a folder per patient, a dataset.json, or pairs.csv",
        task=task,
        labels=tuple(name for name in labels if name != IGNORE),
        channels=channels,
        find_sites=partial(find_sites, site=site, labels=labels),
        decode=partial(decode, labels=labels, channels=channels, allowed=Allowed(fill, resample)),
        normalisation=modality,
        field_of_view=None,
        licence="as the data's owner states",
        crops=("whole", "disc") if "disc" in labels else ("whole",),
    )
