"""Lists of images and masks: ``dataset.json`` of the Decathlon, MONAI or nnU-Net, MONAI's data lists, ``pairs.csv``."""

import os
import re
from codecs import BOM_UTF8
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest
from operator import index
from pathlib import Path
from typing import Any, TypeVar

from fedmerit.errors import BadInput
from fedmerit.files import parse_json, read_bytes
from fedmerit_data.raw_cases import Channel, Origin, RawCase, RawSite, list_files, list_visible, note_file, pair_files
from fedmerit_data.readers.channel_names import SYNONYMS, canonical
from fedmerit_data.readers.image_files import (
    PHOTOGRAPHS,
    READABLE,
    is_detached,
    name_and_suffix,
    picture_files,
    require_readable,
)
from fedmerit_data.readers.inventory import SERIES_MARK, find_series
from fedmerit_data.readers.label_map import IGNORE, LABEL, LabelMap
from fedmerit_data.readers.names import FILE_WORD
from fedmerit_data.readers.patients import SLICE
from fedmerit_data.spatial.heads import read_head
from fedmerit_data.tables import read_table

Stated = TypeVar("Stated")
NUMBERED = re.compile(r"(?P<case>.+)_(?P<number>\d{4})")  # names of image files, without suffix
COLOURS = 3  # channels that one photograph has in one file


def channel_names(file: Path, content: Mapping[str, Any]) -> dict[int, str]:
    """Return the names of the channels by number: ``channel_names`` of v2, ``modality`` of v1; empty if none is stated.

    Raises:
        BadInput: they have another form.
    """
    key = "channel_names" if "channel_names" in content else "modality"
    stated = content.get(key)
    if stated is None or (key == "modality" and not isinstance(stated, dict)):
        return {}
    try:
        return {int(number): str(name) for number, name in stated.items()}
    except (AttributeError, TypeError, ValueError):
        raise BadInput(
            f'{file}: {key} {stated}; expected the number of each channel and its name, such as {{"0": "T2"}}: is it '
            "the wrong way round?"
        ) from None


def numbered_files(image: Path) -> list[Path]:
    """Return the files of the channels of an image that a list of v1 names without the numbers."""
    stem, suffix = name_and_suffix(image)
    try:
        beside = sorted(image.parent.iterdir())
    except (OSError, ValueError):
        return []
    found = [(path, NUMBERED.fullmatch(name_and_suffix(path)[0])) for path in beside if path.name.endswith(suffix)]
    return [path for path, match in found if match and match["case"] == stem]


def read_nnunet(listing: Path, content: Mapping[str, Any], site: str) -> RawSite:
    """Return the cases of v2's folders beside a ``dataset.json``.

    One photograph in colours holds the three channels that the list names. ``file_ending`` says which files are meant;
    with which program nnU-Net reads them (``overwrite_image_reader_writer``) does not matter here.

    Raises:
        BadInput: a channel or a mask is missing, or there are not as many cases as ``numTraining`` says.
    """
    folder, numbers = listing.parent, sorted(channel_names(listing, content))
    ending = str(content.get("file_ending") or "").lower()
    images: dict[str, dict[str, Path]] = defaultdict(dict)
    masks: dict[str, Path] = {}
    left_out = []
    for path in list_visible(folder / "imagesTr"):
        stem, suffix = name_and_suffix(path)
        match = NUMBERED.fullmatch(stem)
        if match and suffix in READABLE and path.name.lower().endswith(ending):
            note_file(images[match["case"]], match["number"], path)
        elif not is_detached(path) and suffix != ".json":
            wanted = f"CASE_0000{ending}, with the number of its channel"
            left_out.append((f"imagesTr/{path.name}", f"not named {wanted}"))
    for path in list_visible(folder / "labelsTr"):
        stem, suffix = name_and_suffix(path)
        if suffix in READABLE and path.name.lower().endswith(ending):
            note_file(masks, stem, path)
    if not images:
        raise BadInput(
            f"{folder / 'imagesTr'}: no file is named CASE_0000{ending}, as {listing.name} says; correct names or list"
        )
    for case, files in images.items():
        single = list(files) == ["0000"] and len(numbers) == COLOURS
        if single and name_and_suffix(files["0000"])[1] in PHOTOGRAPHS:
            continue
        if missing := [f"{number:04d}" for number in numbers if f"{number:04d}" not in files]:
            raise BadInput(
                f"{folder / 'imagesTr' / case}_{missing[0]}: no such file; {listing.name} names this channel"
            )
    cases = []
    for case, first, mask in pair_files({case: files[min(files)] for case, files in images.items()}, masks, folder):
        names = channel_names(listing, content)
        channels = tuple(Channel(path, names.get(int(number), "")) for number, path in sorted(images[case].items()))
        cases.append(RawCase(case, f"{site}-{case}", first, mask, channels=channels if len(channels) > 1 else ()))
    stated = content.get("numTraining")
    if isinstance(stated, int) and stated != len(cases):
        raise BadInput(
            f"{listing}: numTraining is {stated}, but imagesTr has {len(cases)} cases; add the missing ones, or "
            "correct the number"
        )
    return RawSite(site, tuple(cases), tuple(left_out))


DATASET, PAIRS = "dataset.json", "pairs.csv"
COLUMNS = ("site", "patient", "image", "label")  # of pairs.csv; image_t2, label_liver, ... for files of their own
ROWS = ("site", "case", "patient", "image", "channel", "mask", "label")  # of one with a row for each image and mask
SPLITS = ("training", "validation")
READ_KEYS = ("image", "label")  # of an entry of a JSON list
PATIENT_KEYS = ("patient", "patient_id", "subject", "subject_id", "patientID", "PatientID")
LIST = re.compile(r"\w[\w.-]*\.json")  # not "Copy of site-1.json", nor "site-1 (2).json"
LARGEST_LABEL = 2**31 - 1
PLAIN = re.compile(r"[\w(][^/\\\x00-\x1f]*")  # names of sites in lists; `prepare` takes fewer


@dataclass(frozen=True)
class Entry:
    """A listed image and its mask, each of one file or several, as paths relative to the list."""

    images: tuple[str, ...]
    masks: tuple[str, ...]
    patient: str = ""  # "": each case is a patient
    organs: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()  # the name of each image; (): none is named
    name: str = ""  # "": that of its first image


def find_lists(source: Path) -> list[Path]:
    """Return the lists in a folder, or in each of its folders: ``dataset.json``, else ``pairs.csv``, else MONAI's."""
    if (own := _lists_in(source)) or not source.is_dir():
        return own
    inner = [_lists_in(folder)[:1] for folder in list_visible(source) if folder.is_dir()]
    return [listing for one in inner for listing in one] if all(inner) else []


def _lists_in(source: Path) -> list[Path]:
    for name in (DATASET, PAIRS):
        if os.path.lexists(source / name):
            return [source / name]
    files = sorted(source.glob("*.json")) if source.is_dir() else []
    return [path for path in files if LIST.fullmatch(path.name) and path.is_file() and _is_data_list(path)]


def _is_data_list(path: Path) -> bool:
    try:
        content = _parsed(path)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and any(isinstance(content.get(split), list) for split in SPLITS)


def _parsed(path: Path) -> Any:
    return parse_json(read_bytes(path).removeprefix(BOM_UTF8))


def read_list(path: Path) -> list[RawSite]:
    """Return the sites of a list.

    One of a JSON file, named by it, its folder or itself; those that ``pairs.csv`` names.
    """
    return read_pairs(path, path.parent) if path.name == PAIRS else [_read_json(path)]


def stated_labels(source: Path) -> LabelMap | None:
    """Return the labels of a ``dataset.json``, if there is one that states any.

    Raises:
        BadInput: they have another form than nnU-Net or the Decathlon documents.
    """
    return _agreed(source, "labels", lambda file, content: _read_labels(file, content.get("labels")))


def stated_channels(source: Path) -> int | None:
    """Return the number of channels of a ``dataset.json``, if there is one that names them."""
    return _agreed(source, "channels", lambda file, content: len(channel_names(file, content)) or None)


def _agreed(source: Path, what: str, read: Callable[[Path, Mapping[str, Any]], Stated | None]) -> Stated | None:
    """Return what all lists in a folder state; `BadInput` if two differ."""
    found = [(file, read(file, content)) for file, content in _stated(source)]
    for file, stated in found:
        if stated != found[0][1]:
            raise BadInput(
                f"{file}: states the {what} {stated}, but {found[0][0]} {found[0][1]}; give --{what}, or prepare each "
                "folder apart"
            )
    return found[0][1] if found else None


def listed_channels(source: Path, pairs: Path | None = None) -> tuple[str, ...] | None:
    """Return the canonical names of channels that the list in a folder states, () if none; None if there is no list.

    A table ``pairs`` given in its place is a list that names the channels of each case.
    """
    if pairs is not None:
        return ()
    if not find_lists(source):
        return None
    each = [channel_names(file, content) for file, content in _stated(source)]
    found = {tuple(canonical(names[number]) for number in sorted(names)) for names in each}
    return found.pop() if len(found) == 1 else ()


def _stated(source: Path) -> list[tuple[Path, Mapping[str, Any]]]:
    """Return the content of each ``dataset.json``, except those that cannot be read: `read_list` says why."""
    found = list[tuple[Path, Mapping[str, Any]]]()
    for file in find_lists(source):
        with suppress(OSError, ValueError, RecursionError):
            if file.name == DATASET and isinstance(content := _parsed(file), dict):
                found.append((file, content))
    return found


def _read_labels(file: Path, stated: object) -> LabelMap | None:
    """Return ``{"edema": 1, "tumour": [1, 2]}`` as of nnU-Net v2, or ``{"1": "edema"}`` as of v1 and the Decathlon."""
    if not stated:
        return None
    labels = defaultdict[str, tuple[int, ...]](tuple)
    try:
        assert isinstance(stated, dict)
        for key, value in stated.items():
            by_value = isinstance(value, str)
            values = [int(key)] if by_value else [index(one) for one in (value if isinstance(value, list) else [value])]
            assert all(0 <= one <= LARGEST_LABEL for one in values)
            name = re.sub(r"[^\w-]+", "_", value if by_value else key).strip("_")
            if values != [0]:
                labels[name if LABEL.fullmatch(name) else f"label_{name}"] += tuple(one for one in values if one)
    except (AssertionError, TypeError, ValueError):
        raise BadInput(
            f'{file}: labels {stated}; expected the value or values of each name, such as {{"background": 0, "organ": '
            "1}, or the name of each value"
        ) from None
    return dict(sorted(labels.items(), key=lambda item: item[0] == IGNORE)) or None


def _read_json(path: Path) -> RawSite:
    """Return a dataset.json lists files, as those of the Decathlon and MONAI, or none, as nnU-Net's."""
    try:
        content = _parsed(path)
        name = content.get("name") or (path.resolve().parent.name if path.name == DATASET else path.stem)
        listed = [entry for split in SPLITS for entry in content.get(split, [])]
        given = content.get("dataset")
        listed += [{"image": one["images"], "label": one["label"]} for one in given.values()] if given else []
        lists_files = bool(listed) or "channel_names" not in content
        listed = [_with_plain_keys(one) if isinstance(one, dict) else one for one in listed]
        masked = [one for one in listed if (isinstance(one, dict) and "label" in one) or not isinstance(one, dict)]
        entries = [
            Entry(_paths(one["image"]), _paths(one["label"]), _patient(one), channels=one.get("channels", ()))
            for one in masked
        ]
        without = [one for one in listed if one not in masked]
        tests = [
            _paths(one["image"] if isinstance(one, dict) else one)[0]
            for one in (*content.get("test", []), *content.get("testing", []), *without)
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise BadInput(
            f"{path}: not a readable list ({error!r}); expected training, a list of image and label each, or nnU-Net's "
            "channel_names with imagesTr and labelsTr beside it"
        ) from error
    if lists_files and not entries:
        raise BadInput(f"{path}: lists no image with a mask; expected some in {' or '.join(SPLITS)}: add them")
    if not (isinstance(name, str) and PLAIN.fullmatch(name)):
        raise BadInput(f"{path}: name {name!r} is not a valid site name; expected letters, digits, spaces, _, . or -")
    if not lists_files:
        return read_nnunet(path, content, name)
    entries = [replace(one, images=_numbered(path, one.images)) for one in entries]
    left_out = tuple((Path(test).as_posix(), "listed as test, without a mask") for test in tests)
    unread = _unread(path, (key for one in masked for key in one if key not in (*READ_KEYS, "channels", *PATIENT_KEYS)))
    return RawSite(name, _cases(path, path.parent, name, entries), left_out, unread)


def _with_plain_keys(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an entry of a list with the keys image and label, also of one with a key for each channel and a mask."""
    channels = [key for key in entry if canonical(key) in SYNONYMS]
    masks = [key for key in entry if FILE_WORD["mask"].fullmatch(key)]
    if "image" in entry or not channels or len(masks) > 1:
        return entry
    named = {"image": [entry[key] for key in channels], "channels": tuple(channels)}
    rest = {key: value for key, value in entry.items() if key not in (*channels, *masks)}
    return rest | named | ({"label": entry[masks[0]]} if masks else {})


def _patient(entry: Mapping[str, Any]) -> str:
    """Return the patient that an entry of a list names, "" if none."""
    return next((str(entry[key]) for key in PATIENT_KEYS if entry.get(key) not in (None, "")), "")


def _unread(listing: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Return a remark on what a list states of its cases beside what is read, () if that is nothing."""
    unread = ", ".join(dict.fromkeys(names))
    return (f"{listing.name} states {unread} of its cases, which is not read",) if unread else ()


def _paths(stated: Any) -> tuple[str, ...]:
    """Return one path or a list of them; `IndexError` for an empty list."""
    files = stated if isinstance(stated, list) else [stated]
    return (str(Path(files[0])), *(str(Path(file)) for file in files[1:]))


def _numbered(listing: Path, images: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files of a listed image; of nnU-Net v1, which lists p.nii.gz for p_0000.nii.gz and so on, those."""
    if len(images) > 1 or _exists(listing.parent / images[0]):
        return images
    folder = Path(images[0]).parent
    return tuple(str(folder / path.name) for path in numbered_files(listing.parent / images[0])) or images


def read_pairs(path: Path, root: Path) -> list[RawSite]:
    """Return the sites of a table of images and masks, whose paths are relative to ``root``.

    It has a row for each case with the columns `COLUMNS`, or one for each image and mask with those of `ROWS`, in which
    rows of one site and case belong together. Without a column of sites ``root`` is one; without patients each case is
    one's. ``FOLDER#UID`` names a series of a folder that holds several.

    Raises:
        BadInput: it is not such a table, a row lacks a value, or a file is missing.
    """
    table = read_table(path, ())
    if not table:
        raise BadInput(f"{path}: has no rows; expected one row per image, with its mask")
    headings = {name: name.casefold() if name.casefold() in (*COLUMNS, *ROWS) else name for name in table[0][1]}
    if "label" not in headings.values() and "case" not in headings.values():
        headings |= {name: "label" for name, plain in headings.items() if plain == "mask"}
    site = {"site": root.resolve().name} if "site" not in headings.values() else {}
    rows = [(line, site | {headings[name]: value for name, value in row.items()}) for line, row in table]
    columns = rows[0][1]
    by_row = "mask" in columns and "image" in columns and "case" in columns
    sites = _entries_by_file(path, rows) if by_row else _entries_by_case(path, rows)
    known = ROWS if by_row else COLUMNS
    of_files = () if by_row else ("image_", "label_")
    unread = _unread(path, (name for name in columns if name and name not in known and not name.startswith(of_files)))
    return [RawSite(site, _cases(path, root, site, sites[site]), remarks=unread) for site in sorted(sites)]


def _entries_by_case(path: Path, rows: Sequence[tuple[int, dict[str, str]]]) -> dict[str, list[Entry]]:
    sites: dict[str, list[Entry]] = defaultdict(list)
    for line, row in rows:
        images, masks = (
            {name: row[name] for name in row if name == part or name.startswith(f"{part}_")}
            for part in ("image", "label")
        )
        for part, there in (("image", images), ("label", masks)):
            if not there:
                raise BadInput(
                    f"{path}: has no column {part}; expected site, patient, image and label, as CSV in UTF-8"
                )
        if not all((*images.values(), *masks.values(), row.get("patient", "case"))) or not PLAIN.fullmatch(row["site"]):
            raise BadInput(f"{path}: line {line} lacks a value, or its site is not a plain name; correct the table")
        organs = tuple(name.removeprefix("label_") for name in masks) if list(masks) != ["label"] else ()
        channels = tuple(name.removeprefix("image_") for name in images) if list(images) != ["image"] else ()
        entry = Entry(tuple(images.values()), tuple(masks.values()), row.get("patient", ""), organs, channels)
        sites[row["site"]].append(entry)
    return sites


def _entries_by_file(path: Path, rows: Sequence[tuple[int, dict[str, str]]]) -> dict[str, list[Entry]]:
    cases: dict[tuple[str, str], list[tuple[int, dict[str, str]]]] = defaultdict(list)
    for line, row in rows:
        if not ((row["image"] or row["mask"]) and row["case"] and PLAIN.fullmatch(row["site"])):
            raise BadInput(
                f"{path}: line {line} has no image or mask, no case, or a site that is not a plain name; complete the "
                "row or remove it"
            )
        cases[row["site"], row["case"]].append((line, row))
    sites: dict[str, list[Entry]] = defaultdict(list)
    for (site, case), there in cases.items():
        images = {row["image"]: row.get("channel", "") for _, row in there if row["image"]}
        masks = {row["mask"]: row.get("label", "") for _, row in there if row["mask"]}
        lines = ", ".join(str(line) for line, _ in there)
        for what, files in (("image", images), ("mask", masks)):
            if not files:
                raise BadInput(f"{path}: case {case} of site {site} (line {lines}) has no {what}; add it, or remove it")
        patients = {row["patient"] for _, row in there if row.get("patient")}
        if len(patients) > 1:
            raise BadInput(f"{path}: case {case} of site {site} (line {lines}) has several patients; name one")
        if len(images) > 1 and (not all(images.values()) or len(set(images.values())) < len(images)):
            raise BadInput(f"{path}: case {case} of site {site} (line {lines}): name the channel of each of its images")
        organs = tuple(masks.values()) if len(masks) > 1 or any(masks.values()) else ()
        channels = tuple(images.values()) if len(images) > 1 or any(images.values()) else ()
        sites[site].append(Entry(tuple(images), tuple(masks), (patients or {""}).pop(), organs, channels, case))
    return sites


def _cases(listing: Path, root: Path, site: str, entries: Sequence[Entry]) -> tuple[RawCase, ...]:
    """Return cases named by the first file of the image; without a patient each case is a patient.

    Images of several folders that have one name, such as ``P1/t2.nii.gz`` and ``P2/t2.nii.gz``, are ``P1-t2`` and
    ``P2-t2``.
    """
    entries = [_with_slashes(root, entry) for entry in entries]
    listed = {_within(root, entry.images[0]) for entry in entries}
    stems = Counter(name_and_suffix(image)[0] for image in listed)
    images: dict[str, Path] = {}
    cases = []
    for entry in entries:
        channels = [_channel(root / image, listing) for image in entry.images]
        differing = _differing([name_and_suffix(Path(image))[0] for image in entry.images])
        names = entry.channels or differing
        channels = [replace(channel, name=name) for channel, name in zip(channels, names, strict=True)]
        files, masks = [channel.path for channel in channels], [root / mask for mask in entry.masks]
        for path in (*files, *masks):
            if not _exists(path):
                raise BadInput(
                    f"{listing}: names {path}, file not found; correct the list, move it to where its paths begin, or "
                    "add the file"
                )
            if path not in masks or not picture_files(path):
                require_readable(path, f"{listing}: names ")
        case, within = name_and_suffix(files[0])[0], _within(root, entry.images[0])
        if entry.name:
            case = entry.name
        elif stems[case] > 1:
            folders = [part for part in within.parent.parts if part not in (within.anchor, "..")]
            case = "-".join((*folders, case))
        elif len(files) > 1 and (numbered := NUMBERED.fullmatch(case)):
            case = numbered["case"]
        note_file(images, case, files[0])
        patient = f"{site}-{entry.patient or case}"
        is_plain = len(channels) == 1 and channels[0] == Channel(files[0])
        listed_channels = () if is_plain else tuple(channels)
        origin = Origin.LIST if entry.patient else ""
        more = tuple(masks[1:])
        cases.append(
            RawCase(case, patient, files[0], masks[0], more, entry.organs, listed_channels, patient_from=origin)
        )
    return tuple(sorted(cases, key=lambda case: case.name))


def _with_slashes(root: Path, entry: Entry) -> Entry:
    """Return an entry of a list from Windows with slashes in its paths, unless there is a file of such a name."""

    def plain(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(path if "\\" not in path or _exists(root / path) else path.replace("\\", "/") for path in paths)

    return replace(entry, images=plain(entry.images), masks=plain(entry.masks))


def _differing(stems: Sequence[str]) -> list[str]:
    """Return what each name has beside the beginning that all share, up to a separator; "" of those that are not so."""
    shared = "".join(letters[0] for letters in takewhile(lambda each: len(set(each)) == 1, zip(*stems, strict=False)))
    common = re.sub(r"[^_.-]*$", "", shared)
    rest = [stem[len(common) :] for stem in stems]
    return rest if common and all(rest) and len(set(rest)) == len(stems) > 1 else [""] * len(stems)


def pair_rows(source: Path, site: str, case: RawCase) -> list[dict[str, str]]:
    """Return the rows of a case in a table that `read_pairs` reads, with paths relative to ``source``."""
    patient = case.patient.removeprefix(f"{site}-")
    named = case.channel_names if len(case.channel_names) == len(case.parts) else [part.name for part in case.parts]
    images = [(name_in_list(source, part), name) for part, name in zip(case.parts, named, strict=True)]
    organs = case.organs or ("",) * (1 + len(case.more))
    masks = [
        (name_in_list(source, Channel(path)), organ)
        for path, organ in zip((case.label, *case.more), organs, strict=True)
    ]
    rows = []
    for (image, channel), (mask, organ) in zip_longest(images, masks, fillvalue=("", "")):
        values = (site, case.name, SLICE.sub("", patient) or patient, image, channel, mask, organ)
        rows.append(dict(zip(ROWS, values, strict=True)))
    return rows


def name_in_list(source: Path, part: Channel) -> str:
    """Return what names a file or series in a list: its path relative to ``source``, with #UID in a shared folder."""
    path = Path(os.path.relpath(part.path, source)).as_posix()
    head = read_head(part.files[0]) if part.files else None
    return f"{path}{SERIES_MARK}{head.series}" if head else path


def _channel(path: Path, listing: Path) -> Channel:
    """Return the file, folder, or series ``FOLDER#UID`` that a list names."""
    folder, mark, series = str(path).rpartition(SERIES_MARK)
    if not mark or _exists(path):
        return Channel(path)
    try:
        return find_series(Path(folder), series).channel
    except BadInput as error:
        raise BadInput(f"{listing}: {error}") from None


def _within(root: Path, image: str) -> Path:
    """Return the normalised path of a listed file, relative to ``root`` if it is within."""
    path, folder = (Path(os.path.abspath(one)) for one in (root / image, root))
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _exists(path: Path) -> bool:
    try:
        return path.is_file() or path.is_dir()
    except (OSError, ValueError):  # not a possible file name
        return False


def unlisted(lists: Sequence[Path], sites: Sequence[RawSite]) -> tuple[tuple[str, str], ...]:
    """Return the files beside lists that neither they nor a listed header names."""
    root = lists[0].parent
    cases = [case for site in sites for case in site.cases]
    named = {path for case in cases for path in case.paths}
    listed = {*lists, *(root / file for site in sites for file, _ in site.left_out)}
    series = {os.path.abspath(path) for path in named if path.is_dir()}
    links = {folder for path in named for folder in path.parents}  # links to folders are not followed
    known = {os.path.abspath(path) for path in listed | named | links}
    return tuple(
        (path.relative_to(root).as_posix(), f"not in {lists[0].name if len(lists) == 1 else 'the lists'}")
        for path in list_files(root)
        if os.path.abspath(path) not in known and os.path.abspath(path.parent) not in series and not is_detached(path)
    )
