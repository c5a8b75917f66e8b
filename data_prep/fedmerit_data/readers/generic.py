"""Reader of your own images: site folders, a ``dataset.json`` (Decathlon, MONAI, nnU-Net) or ``pairs.csv``."""

import os
import re
from codecs import BOM_UTF8
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedmerit.configuration.network_input import NORMALISATIONS
from fedmerit.errors import BadInput
from fedmerit.files import parse_json, read_bytes
from fedmerit_data.raw_cases import (
    RawCase,
    RawSite,
    add_left_out,
    find_site_folders,
    list_files,
    list_visible,
    note_file,
    pair_files,
    require_file,
)
from fedmerit_data.readers.image_files import KNOWN, READABLE, is_detached, is_readable, name_and_suffix
from fedmerit_data.readers.kind import Kind
from fedmerit_data.readers.label_map import ANY, IGNORE, LabelMap, require_labels
from fedmerit_data.readers.labelled_images import decode
from fedmerit_data.tables import read_table

EXPECTED = (
    "folders <site>/{images,masks}, a dataset.json of the Decathlon, MONAI or nnU-Net, or pairs.csv with "
    "site,patient,image,label"
)
COLUMNS = ("site", "patient", "image", "label")
PARTS = ("images", "masks")  # folders of a site
CHANNEL = re.compile(r"(?P<case>.+)_(?P<number>\d{4})")  # nnU-Net's image files, without suffix
MASK = re.compile(r"[_.-](mask|segmentation|seg|label)$", re.IGNORECASE)


def find_sites(source: Path, site: str | None = None) -> list[RawSite]:
    """The site of ``dataset.json``, named by it or its folder; those of ``pairs.csv``; or one per folder in ``source``.

    A ``source`` with folders images and masks of its own is one site, named ``site`` or as its folder. In site
    folders an image and its mask have the same name, except for an ending such as _mask or _seg of the mask, and each
    case is a patient; ``pairs.csv`` names the patients, with paths relative to it.

    Raises:
        BadInput: no site, an image or mask without the other, an unknown format, a list that cannot be read, or a
            ``site`` is named and the source is not the folder of one site.
    """
    lists = {name: source / name for name in ("dataset.json", "pairs.csv") if os.path.lexists(source / name)}
    if not lists and all((source / part).is_dir() for part in PARTS):
        return [_read_folder(source, site or source.resolve().name)]
    if site is not None:
        raise BadInput(f"{source}: --site {site} names a folder of one site, with images and masks in it; leave it out")
    for name, listing in lists.items():
        require_file(listing)
        sites = _read_dataset(listing) if name == "dataset.json" else _read_pairs(listing)
        return add_left_out(sites, _unlisted(listing, sites))
    folders, strays = find_site_folders(source, EXPECTED)
    return add_left_out([_read_folder(folder, folder.name) for folder in folders], strays)


def _read_folder(folder: Path, site: str) -> RawSite:
    found: dict[str, dict[str, Path]] = {part: {} for part in PARTS}
    left_out = [
        (path.name, "neither in images nor in masks")
        for path in list_visible(folder)
        if path.name not in found or not path.is_dir()
    ]
    unread: dict[str, dict[str, Path]] = {part: {} for part in PARTS}
    for part, files in found.items():
        for path in list_visible(folder / part) if (folder / part).is_dir() else ():
            stem = path.name if path.is_dir() else name_and_suffix(path)[0]
            own = part == "images" or stem in found["images"]  # images are read first
            case = stem if own else MASK.sub("", stem)
            if is_readable(path):
                note_file(files, case, path)
            elif not is_detached(path):
                unread[part].setdefault(case, path)
                left_out.append((f"{part}/{path.name}", "of no format that is read"))
    for part, other in (PARTS, PARTS[::-1]):
        # All that is here is of another format, or the other half of what is.
        for case in sorted(unread[part].keys() & ((found[other] | unread[other]).keys() - found[part].keys())):
            raise BadInput(f"{unread[part][case]}: is of no format that is read; expected one of {KNOWN}")
    cases = (
        RawCase(case, f"{site}-{case}", image, mask)
        for case, image, mask in pair_files(found["images"], found["masks"], folder)
    )
    return RawSite(site, tuple(cases), tuple(left_out))


def _unlisted(listing: Path, sites: list[RawSite]) -> tuple[tuple[str, str], ...]:
    """The files beside a list that neither it nor a listed header names."""
    cases = [case for site in sites for case in site.cases]
    named = {path for case in cases for path in (case.image, case.label, *case.channels)}
    listed = {listing, *(listing.parent / file for site in sites for file, _ in site.left_out)}
    series = {os.path.normpath(path) for path in named if path.is_dir()}
    links = {folder for path in named for folder in path.parents}  # links to folders are not followed
    known = {os.path.normpath(path) for path in listed | named | links}
    return tuple(
        (path.relative_to(listing.parent).as_posix(), f"not in {listing.name}")
        for path in list_files(listing.parent)
        if os.path.normpath(path) not in known and os.path.normpath(path.parent) not in series and not is_detached(path)
    )


def _read_dataset(path: Path) -> list[RawSite]:
    """The one site of a dataset.json: lists of the Decathlon and MONAI, or nnU-Net's, which lists no files."""
    try:
        content = parse_json(read_bytes(path).removeprefix(BOM_UTF8))
        name = content.get("name") or path.resolve().parent.name
        listed = [*content.get("training", []), *content.get("validation", [])]
        lists_files = bool(listed) or "channel_names" not in content
        entries = [
            entry for entry in listed if (isinstance(entry, dict) and "label" in entry) or not isinstance(entry, dict)
        ]
        pairs = [(str(Path(entry["image"])), str(Path(entry["label"]))) for entry in entries]
        if lists_files and not pairs:
            raise KeyError("training")
        numbers = [] if lists_files else [int(number) for number in content["channel_names"]]
        without = [entry for entry in listed if entry not in entries]
        tests = [
            str(entry["image"] if isinstance(entry, dict) else entry)
            for entry in (*content.get("test", []), *content.get("testing", []), *without)
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadInput(
            f"{path}: not a readable list ({error!r}); expected training, a list of image and label each, or nnU-Net's "
            "channel_names with imagesTr and labelsTr beside it"
        ) from error
    if not (isinstance(name, str) and re.fullmatch(r"\w[\w .-]*", name)):
        raise BadInput(f"{path}: name {name!r} is not a valid site name; expected letters, digits, spaces, _, . or -")
    if not lists_files:
        return [_read_nnunet(path.parent, name, numbers)]
    cases = _cases(path, [(name, "", image, mask) for image, mask in pairs])
    left_out = tuple((Path(test).as_posix(), "listed as test, without a mask") for test in tests)
    return [RawSite(name, cases, left_out)]


def _read_nnunet(folder: Path, site: str, numbers: Sequence[int]) -> RawSite:
    """nnU-Net v2's ``imagesTr/CASE_0000.SUFFIX``, a file for each channel, and ``labelsTr/CASE.SUFFIX``."""
    images: dict[str, dict[str, Path]] = defaultdict(dict)
    masks: dict[str, Path] = {}
    left_out = []
    for path in list_visible(folder / "imagesTr"):
        stem, suffix = name_and_suffix(path)
        match = CHANNEL.fullmatch(stem)
        if match and suffix in READABLE:
            note_file(images[match["case"]], match["number"], path)
        elif not is_detached(path):
            left_out.append((f"imagesTr/{path.name}", "not named CASE_0000, with the number of its channel"))
    for path in list_visible(folder / "labelsTr"):
        stem, suffix = name_and_suffix(path)
        if suffix in READABLE:
            note_file(masks, stem, path)
    for case, files in images.items():
        if missing := sorted(f"{number:04d}" for number in numbers if f"{number:04d}" not in files):
            raise BadInput(f"{folder / 'imagesTr' / case}_{missing[0]}: no such file; dataset.json names this channel")
    cases = []
    for case, first, mask in pair_files({case: files[min(files)] for case, files in images.items()}, masks, folder):
        others = tuple(images[case][number] for number in sorted(images[case])[1:])
        cases.append(RawCase(case, f"{site}-{case}", first, mask, channels=others))
    return RawSite(site, tuple(cases), tuple(left_out))


def _read_pairs(path: Path) -> list[RawSite]:
    sites: dict[str, list[tuple[str, str, str, str]]] = defaultdict(list)
    for line, row in read_table(path, COLUMNS):
        if not all(row.values()) or not re.fullmatch(r"\w[\w .-]*", row["site"]):
            raise BadInput(f"{path}: line {line} lacks a value, or its site is not a plain name; correct the table")
        sites[row["site"]].append((row["site"], row["patient"], row["image"], row["label"]))
    if not sites:
        raise BadInput(f"{path}: has no rows; expected one row per image, with its mask")
    return [RawSite(site, _cases(path, sites[site])) for site in sorted(sites)]


def _cases(listing: Path, entries: list[tuple[str, str, str, str]]) -> tuple[RawCase, ...]:
    """Cases of (site, patient, image, mask), named by the image; without a patient each case is a patient.

    Images of several folders that have one name, such as ``P1/t2.nii.gz`` and ``P2/t2.nii.gz``, are ``P1-t2`` and
    ``P2-t2``.
    """
    listed = {_within(listing, image) for _, _, image, _ in entries}
    stems = Counter(name_and_suffix(image)[0] for image in listed)
    images: dict[str, Path] = {}
    cases = []
    for site, patient, image, mask in entries:
        files = listing.parent / image, listing.parent / mask
        for path in files:
            if not _exists(path):
                raise BadInput(f"{listing}: names {path}, file not found; correct the list or add the file")
            if not is_readable(path):
                raise BadInput(f"{listing}: names {path}, of no format that is read; expected one of {KNOWN}")
        case, within = name_and_suffix(files[0])[0], _within(listing, image)
        if stems[case] > 1:
            folders = [part for part in within.parent.parts if part not in (within.anchor, "..")]
            case = "-".join((*folders, case))
        note_file(images, case, files[0])
        cases.append(RawCase(case, f"{site}-{patient or case}", *files))
    return tuple(sorted(cases, key=lambda case: case.name))


def _within(listing: Path, image: str) -> Path:
    """The normalised path of a listed file, relative to the list's folder if it is within."""
    path, folder = (Path(os.path.abspath(one)) for one in (listing.parent / image, listing.parent))
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _exists(path: Path) -> bool:
    try:
        return path.is_file() or path.is_dir()
    except (OSError, ValueError):  # not a possible file name
        return False


def generic_kind(
    labels: LabelMap = ANY,
    channels: int = 3,
    task: str = "generic",
    modality: str | None = None,
    site: str | None = None,
) -> Kind:
    """The kind of your own images, with a label map: name and mask values of each label.

    Photographs have 1 (grey) or 3 channels, volumes the numbers of each voxel. Without a ``modality``, images of three
    channels are photographs, others MRI with each channel normalised separately. ``site`` names a source that is one
    site.

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
        description="your own images: <site>/{images,masks}, a dataset.json, or pairs.csv",
        task=task,
        labels=tuple(name for name in labels if name != IGNORE),
        channels=channels,
        find_sites=partial(find_sites, site=site),
        decode=partial(decode, labels=labels, channels=channels),
        normalisation=modality,
        field_of_view=None,
        licence="as the data's owner states",
        crops=("whole", "disc") if "disc" in labels else ("whole",),
    )
