"""Reader of your own images: folders of sites or of patients, or lists (`lists`)."""

import re
from collections.abc import Collection
from functools import partial
from pathlib import Path

from fedmerit.configuration.network_input import NORMALISATIONS
from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import (
    RawCase,
    RawSite,
    add_left_out,
    find_site_folders,
    list_visible,
    note_file,
    pair_files,
    require_file,
)
from fedmerit_data.readers.image_files import KNOWN, is_detached, is_readable, name_and_suffix
from fedmerit_data.readers.kind import Kind
from fedmerit_data.readers.label_map import ANY, IGNORE, LabelMap, named_organs, require_labels
from fedmerit_data.readers.labelled_images import Allowed, decode
from fedmerit_data.readers.lists import find_lists, read_list, unlisted
from fedmerit_data.readers.patient_folders import UNNAMED, choose_organs, is_patient, organ_files, read_patients

EXPECTED = (
    "folders <site>/{images,masks}, a folder for each patient with images and masks, a dataset.json of the Decathlon, "
    "MONAI or nnU-Net, or pairs.csv with site,patient,image,label"
)
PARTS = ("images", "masks")  # folders of a site
MASK = re.compile(r"[_.-](mask|segmentation|seg|label)$", re.IGNORECASE)


def find_sites(source: Path, site: str | None = None, labels: LabelMap = ANY) -> list[RawSite]:
    """The sites of a list in ``source``; its patients' folders as one site; or a site per folder in it.

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
            case = stem if own else MASK.sub("", stem)
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
    """The kind of your own images, with a label map: name and mask values of each label.

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
