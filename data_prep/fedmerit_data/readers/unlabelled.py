"""Images without masks: files, folders and series that a model is to segment, found by their heads and names."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Channel
from fedmerit_data.readers.channel_names import SYNONYMS, Names, canonical
from fedmerit_data.readers.image_files import KNOWN, image_name, read_shape, require_readable
from fedmerit_data.readers.inventory import (
    SERIES_MARK,
    Inventory,
    Item,
    distinct_names,
    find_series,
    list_series,
    stem_of,
    take_inventory,
)
from fedmerit_data.readers.lists import listed_channels
from fedmerit_data.readers.mask_words import find_mask_words
from fedmerit_data.readers.names import PATTERNS, SEPARATOR, Placed, is_result, place_item


@dataclass(frozen=True)
class Unlabelled:
    """An image to segment: its name, and its channels, or the one part that has all of them."""

    name: str
    parts: tuple[Channel, ...]

    @property
    def path(self) -> Path:
        """The file or folder of the first channel."""
        return self.parts[0].path


def find_images(paths: Sequence[Path], channels: int, series: str | None = None, names: Names = ()) -> list[Unlabelled]:
    """Return the images that files and folders hold.

    A file is an image. A folder is an image if it holds one series or the channels of one patient, else each image in
    it is one, at any depth; masks are left out. Files of one channel each that are given together for a model of
    several are its channels, in the order of ``names``, else of their own names, as `fedmerit prepare` reads them.

    Args:
        paths: Files, folders, or a series of a folder as FOLDER#UID.
        channels: The number that the model takes.
        series: UID, number or description of the series to take of each folder.
        names: Canonical names of the model's channels, in order; (): not known.

    Raises:
        BadInput: a path holds no image, or several series of one study, none of which is named; or lacks a channel.
    """
    found, files = list[Unlabelled](), list[Path]()
    for path in paths:
        folder, mark, uid = str(path).rpartition(SERIES_MARK)
        if mark and not path.exists():
            found.append(Unlabelled(Path(folder).name, (find_series(Path(folder), uid).channel,)))
        elif path.is_dir():
            found += _in_folder(path, channels, series, names)
        else:
            if path.exists():
                require_readable(path)
            files.append(path)
    if channels > 1 and len(files) > 1 and not any(_holds(path, channels) for path in files):
        keys = [(path.absolute().parent / stem_of(path)).as_posix().lstrip("/") for path in files]
        return found + _channels(
            [place_item(Item(path, key)) for path, key in zip(files, keys, strict=True)], channels, names
        )
    for path in files:
        _require_channels(path, channels, names)
    return found + [Unlabelled(image_name(path), (Channel(path),)) for path in files]


def _require_channels(path: Path, channels: int, names: Names) -> None:
    """Raise `BadInput` if a file has one channel, and the model takes several."""
    if channels > 1 and len(read_shape(path)) == 3:
        listed = f" ({', '.join(names)})" if names else ""
        raise BadInput(
            f"{path}: has one channel, the model takes {channels}{listed}: give the files of one patient, one for each "
            "channel, or their folder"
        )


def _holds(path: Path, channels: int) -> bool:
    """Return whether a file has all channels itself: along its fourth axis, or as the colours of a picture."""
    shape = read_shape(path)
    return not shape or (shape[3:] == (channels,))


def _are_whole(images: Sequence[Placed], channels: int) -> bool:
    """Return whether an image has all channels itself, as no series has that is one of several of its study."""
    series = Counter(one.item.head.study for one in images if one.item.head)
    return any(
        _holds(one.item.path, channels) and not (one.item.head and one.item.slices > 1 < series[one.item.head.study])
        for one in images
    )


def _in_folder(folder: Path, channels: int, series: str | None, names_of_channels: Names) -> list[Unlabelled]:
    name = image_name(folder)
    if series is not None:
        return [Unlabelled(name, (find_series(folder, series).channel,))]
    inventory = take_inventory(folder)
    placed = [one for one in map(place_item, inventory.items) if not one.item.is_region]
    if not any(one.is_mask for one in placed) and (words := find_mask_words([one.item for one in placed])):
        placed = [place_item(one.item, mask_words=words) for one in placed]
    images = [one for one in placed if not one.is_mask] or placed
    images = [one for one in images if not (one.is_derivative or is_result(one.item.key))] or images
    if not images:
        raise BadInput(f"{folder}: holds no image; expected {KNOWN}", *inventory.lines)
    if channels == 1 < len(images) and names_of_channels:
        images = _of_channel(images, names_of_channels)
    volumes = [one for one in images if one.item.slices > 1]
    if volumes and len(volumes) < len(images) and all(one.item.head for one in images):
        images = volumes  # without single pictures of the study, such as a report of the dose
    if len(images) == 1:
        _require_channels(images[0].item.path, channels, names_of_channels)
        return [Unlabelled(name, (images[0].item.channel,))]
    if channels > 1 and not _are_whole(images, channels):
        return _channels(images, channels, names_of_channels, name)
    _require_one_series_a_study(folder, images, inventory)
    titles = distinct_names([(one.stem or name, "-".join((*one.folders, one.stem)), one.item) for one in images])
    return [Unlabelled(title, (one.item.channel,)) for title, one in zip(titles, images, strict=True)]


def _of_channel(images: Sequence[Placed], names: Names) -> list[Placed]:
    """Return the images that are called as the only channel of a model; all if none states a channel."""
    stated = [_channel_name(one, names)[0] for one in images]
    if not {"", *names} & set(stated):
        _by_channel(images, names)  # says what is there
    return [one for one, name in zip(images, stated, strict=True) if name in names] or [*images]


def _require_one_series_a_study(folder: Path, images: Sequence[Placed], inventory: Inventory) -> None:
    by_study: dict[str, list[Item]] = defaultdict(list)
    for one in images:
        if one.item.head is not None and one.item.head.study:
            by_study[one.item.head.study].append(one.item)
    for items in by_study.values():
        if len({item.head.series for item in items if item.head}) > 1:
            raise BadInput(
                f"{folder}: holds several series of one study; {list_series(items)}: name one by --series, its number, "
                "description or UID"
            )


def _channels(images: Sequence[Placed], channels: int, names: Names, folder: str = "") -> list[Unlabelled]:
    """Return the images whose channels these are: by their ``names``, else those of one folder or beginning."""
    found = []
    for group in _by_channel(images, names) if names else _by_number(images, channels):
        ordered = [group[name] for name in names or group]
        common = _common_name([one.stem for one in ordered])
        title = common or (ordered[0].folders[-1] if ordered[0].folders else folder) or ordered[0].stem
        beside = [one.stem.removeprefix(common).lstrip("_-. ") or one.stem for one in ordered]
        parts = zip(names or beside, ordered, strict=True)
        found.append(Unlabelled(title, tuple(replace(one.item.channel, name=name) for name, one in parts)))
    return found


def _by_channel(images: Sequence[Placed], names: Names) -> list[dict[str, Placed]]:
    """Return the images of each case by the names of their channels; images of other channels are left out."""
    groups: dict[object, dict[str, Placed]] = defaultdict(dict)
    stated = [_channel_name(one, names) for one in images]
    for one, (name, case) in zip(images, stated, strict=True):
        if name in groups[case]:
            raise BadInput(f"{one.item.path}: is channel {name}, and so is {groups[case][name].item.path}; give one")
        if name in names:
            groups[case][name] = one
    found = [group for group in groups.values() if group]
    for group in found or [{}]:
        if missing := [name for name in names if name not in group]:
            first = next(iter(group.values()), images[0]).item.path
            called = (name or one.item.path.name for one, (name, _) in zip(images, stated, strict=True))
            there = ", ".join(dict.fromkeys(called))
            raise BadInput(
                f"{first.parent}: has no channel {missing[0]}, but {there}; the model takes {', '.join(names)}: give "
                "it these files, named so"
            )
    return found


def _channel_name(image: Placed, names: Names) -> tuple[str, object]:
    """Return the channel that an image is called, of ``names`` or known, "" if none, and what names its case.

    Its name ends in that of the channel, as in p1_t2 or pre/FLAIR, or a folder is called so, as in T2/p1; a DICOM
    series states it in its description; a number is that of a dataset.json of nnU-Net beside the folder.
    """
    known = {*names, *SYNONYMS}
    folders = () if PATTERNS["subject"].match(image.stem) else image.folders
    words = [word for text in (*folders, image.stem) for word in SEPARATOR.split(text) if word]
    numbered = dict(enumerate(listed_channels(image.item.path.parent.parent) or ()))
    found = [(canonical("_".join(words[start:])), (*words[:start],)) for start in range(len(words))]
    found += [(canonical(one), (*folders[:at], *folders[at + 1 :], image.stem)) for at, one in enumerate(folders)]
    if (head := image.item.head) is not None:
        found.append((canonical(head.description), (head.study, head.patient)))
    if words and words[-1].isdigit():
        found.append((numbered.get(int(words[-1]), ""), (*words[:-1],)))
    return next((one for one in found if one[0] in names), next((one for one in found if one[0] in known), ("", "")))


def _by_number(images: Sequence[Placed], channels: int) -> list[dict[str, Placed]]:
    """Return the images of each case by their names: so many of one folder, or of names that differ in the last word.

    Raises:
        BadInput: there are more or fewer.
    """
    by_folder, by_name = defaultdict[object, list[Placed]](list), defaultdict[object, list[Placed]](list)
    for one in images:
        by_folder[one.folders].append(one)
        by_name[one.folders, one.name[:-1]].append(one)
    groups = by_name if all(len(group) == channels for group in by_name.values()) else by_folder
    for group in groups.values():
        if len(group) != channels:
            there = ", ".join(one.item.path.name for one in group)
            raise BadInput(
                f"{group[0].item.path.parent}: has the {len(group)} images {there}; the model takes {channels} "
                "channels: give the files of one patient, one for each channel"
            )
    return [{one.stem: one for one in sorted(group, key=lambda one: one.stem)} for group in groups.values()]


def _common_name(stems: Sequence[str]) -> str:
    """Return what the names begin with, up to a separator."""
    shortest = min(stems, key=len)
    same = next((at for at in range(len(shortest)) if len({stem[at] for stem in stems}) > 1), len(shortest))
    cut = max((at for at in range(same) if shortest[at] in "_-. "), default=0)
    return shortest[:cut].rstrip("_-. ")
