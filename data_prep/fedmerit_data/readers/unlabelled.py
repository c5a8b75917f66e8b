"""Images without masks: files, folders and series that a model is to segment, found by their heads and names."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Channel
from fedmerit_data.readers.channel_names import Names, canonical
from fedmerit_data.readers.image_files import KNOWN, image_name, read_shape, require_readable
from fedmerit_data.readers.inventory import (
    SERIES_MARK,
    Inventory,
    Item,
    find_series,
    list_series,
    stem_of,
    take_inventory,
)
from fedmerit_data.readers.names import Placed, place_item


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
    images = [one for one in placed if not one.is_mask] or placed
    if not images:
        raise BadInput(f"{folder}: holds no image; expected {KNOWN}", *inventory.lines)
    volumes = [one for one in images if one.item.slices > 1]
    if volumes and len(volumes) < len(images) and all(one.item.head for one in images):
        images = volumes  # without single pictures of the study, such as a report of the dose
    if len(images) == 1:
        _require_channels(images[0].item.path, channels, names_of_channels)
        return [Unlabelled(name, (images[0].item.channel,))]
    if channels > 1 and not _are_whole(images, channels):
        return _channels(images, channels, names_of_channels, name)
    _require_one_series_a_study(folder, images, inventory)
    stems = [one.stem or name for one in images]
    names = stems if len(set(stems)) == len(stems) else ["-".join((*one.folders, one.stem)) for one in images]
    return [Unlabelled(title, (one.item.channel,)) for title, one in zip(names, images, strict=True)]


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
    """Return the images whose channels these are: those of one folder, or of names that differ in their last word."""
    by_folder, by_name = defaultdict[object, list[Placed]](list), defaultdict[object, list[Placed]](list)
    for one in images:
        by_folder[one.folders].append(one)
        by_name[one.folders, one.name[:-1]].append(one)
    groups = by_name if all(len(group) == channels for group in by_name.values()) else by_folder
    found = []
    for group in groups.values():
        if len(group) != channels and not names:
            there = ", ".join(one.item.path.name for one in group)
            raise BadInput(
                f"{group[0].item.path.parent}: has the {len(group)} images {there}; the model takes {channels} "
                "channels: give the files of one patient, one for each channel"
            )
        common = _common_name([one.stem for one in group])
        title = common or (group[0].folders[-1] if group[0].folders else folder) or group[0].stem
        by_path = [one.part(title, *one.folders[-1:]) or one.stem for one in group]
        described = [one.item.head.description if one.item.head else "" for one in group]
        has_all = not set(names) <= {*map(canonical, by_path)} and set(names) <= {*map(canonical, described)}
        parts = sorted(zip(described if has_all else by_path, group, strict=True), key=lambda part: part[0])
        read = tuple(replace(one.item.channel, name=part) for part, one in parts)
        found.append(Unlabelled(title, _in_order(read, names) if names else read))
    return found


def _in_order(read: Sequence[Channel], names: Names) -> tuple[Channel, ...]:
    """Return the channels that a model was trained with, in its order."""
    by_name = {canonical(channel.name): channel for channel in read}
    if missing := [name for name in names if name not in by_name]:
        raise BadInput(
            f"{read[0].path.parent}: has no channel {missing[0]}, but {', '.join(by_name)}; the model takes "
            f"{', '.join(names)}: give it these files, named so"
        )
    return tuple(by_name[name] for name in names)


def _common_name(stems: Sequence[str]) -> str:
    """Return what the names begin with, up to a separator."""
    shortest = min(stems, key=len)
    same = next((at for at in range(len(shortest)) if len({stem[at] for stem in stems}) > 1), len(shortest))
    cut = max((at for at in range(same) if shortest[at] in "_-. "), default=0)
    return shortest[:cut].rstrip("_-. ")
