"""Reader of your own images: lists, a table of pairs, or folders of any layout."""

import re
from collections import Counter
from functools import partial
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.files import read_bytes
from fedmerit.schema.configuration.data import NORMALISATIONS
from fedmerit_data.raw_cases import RawSite, add_left_out, require_file, require_folder
from fedmerit_data.readers.channel_names import Names, find_channels
from fedmerit_data.readers.image_files import KNOWN
from fedmerit_data.readers.inventory import OUTLINES, UNREAD, Inventory, take_inventory
from fedmerit_data.readers.kind import Kind
from fedmerit_data.readers.label_map import ANY, IGNORE, LabelMap, named_organs, require_labels
from fedmerit_data.readers.labelled_images import Allowed, decode
from fedmerit_data.readers.layouts import EQUAL_NAMES, Arrangement, arrange
from fedmerit_data.readers.lists import (
    ROWS,
    find_lists,
    listed_channels,
    name_in_list,
    pair_rows,
    read_list,
    read_pairs,
    unlisted,
)
from fedmerit_data.spatial.unread_forms import describe_unread

EXPECTED = (
    "images and masks with names that go together (HOSPITAL/{images,masks}, a folder for each patient, pairs in one "
    "folder, BIDS, DICOM with SEG or RTSTRUCT), a dataset.json of the Decathlon, MONAI or nnU-Net, or pairs.csv"
)
DOCUMENTS = (".txt", ".md", ".csv", ".json", ".pdf")
MAX_ENDINGS = 8  # endings of names in a message
MISSING = ("its image is missing", "its mask is missing")
HEAD = 4096  # bytes of a table
DESCRIBE = "--describe writes pairs.csv, which you can correct and give back with --pairs"


def find_sites(
    source: Path, site: str | None = None, labels: LabelMap = ANY, pairs: Path | None = None, by_name: bool = False
) -> list[RawSite]:
    """Return the sites of ``pairs``, of a list in ``source`` or in each of its folders, or of its folders.

    Args:
        site: Name of a source that is one site; by default that of its folder.
        labels: Their organs are names of masks.
        pairs: A table of pairs; its paths are relative to ``source``.
        by_name: Whether channels are chosen by name afterwards, as of `arrange`.

    Raises:
        BadInput: no case, an image or mask without the other, a list that cannot be read, or a ``site`` is named and
            the source has several.
    """
    if pairs is not None:
        return read_pairs(pairs, source)
    require_folder(source, EXPECTED)
    if lists := find_lists(source):
        if site is not None:
            raise BadInput(f"{source}: --site {site} names a folder of one site without a list; leave it out")
        for listing in lists:
            require_file(listing)
        sites = [found for listing in lists for found in read_list(listing)]
        return add_left_out(sites, unlisted(lists, sites))
    inventory, found = _arranged(source, site, labels, by_name)
    if found.faults or not found.sites:
        raise BadInput(*_reasons(source, inventory, found))
    return list(found.sites)


def _arranged(source: Path, site: str | None, labels: LabelMap, by_name: bool = False) -> tuple[Inventory, Arrangement]:
    inventory = take_inventory(source)
    name = site or source.resolve().name
    return inventory, arrange(inventory, name, named_organs(labels), site is not None, by_name)


def propose_pairs(source: Path, site: str | None = None, labels: LabelMap = ANY) -> list[dict[str, str]]:
    """Return the rows of a table of pairs for `fedmerit_data.readers.lists.read_pairs`, to be corrected.

    Images and masks without the other half get a row too, with the case that they would be.
    """
    if find_lists(source):
        found = Arrangement(tuple(find_sites(source, None, labels)), (), (), ())
    else:
        _, found = _arranged(source, site, labels)
    sites, unpaired = found.sites, found.unpaired
    rows = [row for one in sites for case in one.cases for row in pair_rows(source, one.name, case)]
    name = sites[0].name if sites else site or source.resolve().name
    for one in unpaired:
        part = "mask" if one.is_mask else "image"
        path = name_in_list(source, one.item.channel)
        rows.append(dict.fromkeys(ROWS, "") | {"site": name, "case": one.stem, part: path})
    return rows


def _reasons(source: Path, inventory: Inventory, found: Arrangement) -> list[str]:
    """Return why a folder cannot be read: what is wrong, what it holds, the nearest layout, and what to do."""
    outlines = [path for path, reason in inventory.others if reason == OUTLINES]
    if outlines and found.unpaired and not all(one.is_mask for one in found.unpaired):
        first = f"{outlines[0]}: {OUTLINES}"
    elif unread := _unread(inventory, found):
        path, reason = unread
        first = f"{path}: is {reason}; expected one of {KNOWN}" if reason == UNREAD else f"{path}: is {reason}"
    elif not found.faults:
        first = f"{source}: no case in it; expected {EXPECTED}"
    else:
        first = found.faults[0]
        if first.endswith(MISSING):
            other = [one.item.path.name for one in found.unpaired if one.is_mask == first.endswith(MISSING[1])]
            rename = f" rename {other[0]}, which has no image or mask," if len(other) == 1 else ""
            first = f"{first}; add it,{rename} or move the file out of the source"
    more = [f"and {len(found.faults) - 1} more such"] if len(found.faults) > 1 else []
    cases = sum(len(one.cases) for one in found.sites)
    single = {part: [one.item.path.name for one in found.unpaired if one.is_mask == part] for part in (True, False)}
    nearest = f"{found.rules[0]}; {cases} cases fit" if found.rules else "none"
    if not found.rules and all(single.values()):
        nearest = f"{EQUAL_NAMES}; but no image is named as {single[True][0]}, as {single[False][0]} might be"
    return [
        first,
        *more,
        *inventory.lines,
        f"nearest layout: {nearest}",
        *_endings(found),
        *_tables(inventory),
        DESCRIBE,
    ]


def _tables(inventory: Inventory) -> list[str]:
    """Return a line on the tables in a folder that name one of its images or masks."""
    names = {item.path.name for item in inventory.items}
    return [
        f"{path} names these files: --pairs {path} reads it, if its columns are called {', '.join(ROWS)}"
        for path, _ in inventory.others
        if path.suffix.lower() in (".csv", ".tsv")
        and any(name in names for name in re.split(r"[\s,;/\\\"']", read_bytes(path)[:HEAD].decode(errors="replace")))
    ]


def _endings(found: Arrangement) -> list[str]:
    """Return a line on how names end if no file is a mask by its name: one of these words may be that of masks."""
    if found.sites or any(one.is_mask for one in found.unpaired):
        return []
    words = Counter(re.split(r"[_\-. ]", one.stem)[-1] for one in found.unpaired)
    common = [(word, count) for word, count in words.most_common(MAX_ENDINGS) if count > 1 and not word.isdigit()]
    if not common:
        return ["no file or folder is named as masks are, such as masks/p1.png or p1_mask.png"]
    counted = ", ".join(f"{word} ({count})" for word, count in common)
    example = f"--labels NAME={common[-1][0]}"
    return [f"no name is that of a mask; names end in {counted}: if one is that of masks, {example}"]


def _unread(inventory: Inventory, found: Arrangement) -> tuple[Path, str] | None:
    """Return a file of another format that an image or mask without its other half is named like, or all there is.

    With the reason why it is not read.
    """
    unread = [
        (path, reason)
        for path, reason in inventory.others
        if path.suffix not in DOCUMENTS and reason in (UNREAD, path.is_file() and describe_unread(path))
    ]
    stems = {one.item.path.stem.partition(".")[0] for one in found.unpaired}
    named = [one for one in unread if one[0].stem.partition(".")[0] in stems]
    return next(iter(named if inventory.items else unread), None)


# DICOM's codes of what a normalisation is for, if it is asked for.
MODALITIES = {"mri": "MR", "mri_by_channel": "MR", "xray": "XR"} | dict.fromkeys(
    ("ct_soft_tissue", "ct_lung", "ct_bone"), "CT"
)


def generic_kind(
    labels: LabelMap = ANY,
    channels: int | Names = 3,
    task: str = "generic",
    modality: str | None = None,
    site: str | None = None,
    fill: float | None = None,
    resample: bool = False,
    channel: int | None = None,
    pairs: Path | None = None,
) -> Kind:
    """Return the kind of your own images, with a label map: name and mask values of each label.

    Photographs have 1 (grey) or 3 channels, volumes the numbers of each voxel; or ``channels`` are the names of those
    to take, in order. Without a ``modality``, images of three
    channels are photographs, others MRI with each channel normalised separately. ``site`` names a source that is one
    site. ``fill`` and ``resample`` are those of `Allowed`.

    Raises:
        BadInput: the map, the number of channels, the name of the task or the modality is not valid.
    """
    require_labels(labels)
    wanted, channels = (channels, len(channels)) if isinstance(channels, tuple) else ((), channels)
    if not 1 <= channels <= 64:
        raise BadInput(f"channels {channels}: expected 1 (grey), 3 (colours) or the numbers of each voxel, up to 64")
    if not re.fullmatch(r"[A-Za-z][\w-]*", task):
        raise BadInput(f"task {task!r}: expected a letter, then letters, digits, _ or -")
    code = MODALITIES.get(modality or "", "")
    if modality is None:
        modality = {1: "mri", 3: "photo"}.get(channels, "mri_by_channel")
    if modality not in NORMALISATIONS:
        raise BadInput(f"modality {modality!r}: expected one of {', '.join(NORMALISATIONS)}")
    return Kind(
        description="your own images and masks in folders, a dataset.json, or pairs.csv",
        task=task,
        labels=tuple(name for name in labels if name != IGNORE),
        channels=channels,
        find_sites=partial(
            find_channels,
            find=partial(find_sites, site=site, labels=labels, pairs=pairs, by_name=bool(wanted)),
            wanted=wanted,
            listed=partial(listed_channels, pairs=pairs),
            count=channels,
        ),
        decode=partial(decode, labels=labels, channels=channels, allowed=Allowed(fill, resample, channel)),
        normalisation=modality,
        field_of_view=None,
        modality=code,
        licence="as the data's owner states",
        crops=("whole", "disc") if "disc" in labels else ("whole",),
    )
