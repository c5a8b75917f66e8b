"""Inventory of a folder: every file at any depth by its head, the slices of DICOM as series.

Layouts, lists and `fedmerit predict` choose among its items; what a file is says its content for DICOM, and
its ending for other formats. Heads of DICOM are kept in the user's cache folder, readable only by that user.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from subprocess import PIPE
from threading import Thread
from typing import IO, Any

from rich.console import Console
from rich.progress import track

from fedmerit.child_processes import child_environment, python_command
from fedmerit.errors import BadInput
from fedmerit.files import write_atomically
from fedmerit.machine import cores
from fedmerit_data.raw_cases import Channel, list_visible
from fedmerit_data.readers.image_files import READABLE, is_detached, name_and_suffix, read_size
from fedmerit_data.spatial import heads
from fedmerit_data.spatial.heads import MASKS, Head, read_head
from fedmerit_data.spatial.unread_forms import describe_unread

FEW_FILES = 2000  # up to which heads are read in this process
OTHERS = (".json", ".csv", ".txt", ".md", ".xml", ".xlsx", ".pdf", ".html", ".zip", ".py", ".npy", ".raw", ".gz", ".h5")
MOST_NAMED = 6  # folders, series or patients in a line of a summary
CACHE_VERSION = 1
SHARED = ("patient", "study", "series", "description", "number", "modality", "frame")  # by the slices of a series
UNREAD = "of no format that is read"
OUTLINES = "polygons or boxes, which are not read; export masks as pictures"
POLYGONS = {  # of COCO, labelme, VIA, GeoJSON; CVAT, ASAP, Pascal VOC; YOLO
    ".json": re.compile(rb'"(?:annotations|shapes|shape_attributes|geometry)"'),
    ".geojson": re.compile(rb'"geometry"'),
    ".xml": re.compile(rb"<(?:polygon|polyline|Coordinate|bndbox)\b"),
    ".txt": re.compile(rb"\A\d+(?: +[01]?\.\d+){4,}\s*$", re.MULTILINE),
}
MOST_MARKS = 1 << 24  # bytes of such a file
SERIES_MARK = "#"  # FOLDER#UID names a series of a folder


@dataclass(frozen=True)
class Item:
    """An image, a mask or a series in a folder.

    ``key`` is its path below the folder without ending, with "/" between its parts. ``files`` are the slices of a
    series whose folder holds other files, too.
    """

    path: Path
    key: str
    head: Head | None = None  # of its first file, if it is DICOM
    files: tuple[Path, ...] = ()
    slices: int = 1

    @property
    def is_region(self) -> bool:
        """Whether this is a DICOM segmentation or structure set."""
        return self.head is not None and self.head.modality in MASKS

    @property
    def channel(self) -> Channel:
        """The channel that this is, without a name."""
        return Channel(self.path, files=self.files)

    @property
    def title(self) -> str:
        """The item in a message."""
        if self.head is None or self.is_region:
            return self.path.name
        number = f"series {self.head.number}, " if self.head.number else ""
        return f"{self.path.name}: {number}{self.head.description or self.head.modality}, {self.slices} slices"


@dataclass(frozen=True)
class Inventory:
    """The items of a folder, sorted by key; its other files, each with the reason; and the series of each instance."""

    source: Path
    items: tuple[Item, ...]
    others: tuple[tuple[Path, str], ...]
    series_of: Mapping[str, str]

    @property
    def lines(self) -> list[str]:
        """The inventory in a few lines."""
        found = []
        series = [item for item in self.items if item.head is not None]
        if series:
            patients = {item.head.patient for item in series if item.head}
            kinds = Counter(item.head.modality or "DICOM" for item in series if item.head)
            named = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(MOST_NAMED))
            found.append(f"DICOM of {len(patients)} patient(s): {named}")
        files = defaultdict[tuple[str, str], list[Path]](list)
        for item in self.items:
            if item.head is None:
                files[Path(item.key).parent.as_posix(), name_and_suffix(item.path)[1]].append(item.path)
        largest = sorted(files.items(), key=lambda entry: -len(entry[1]))
        found += [f"{folder}: {len(of)} {suffix}{_sizes(of)}" for (folder, suffix), of in largest[:MOST_NAMED]]
        if len(files) > MOST_NAMED:
            found.append(f"and {len(files) - MOST_NAMED} more folders with images")
        if self.others:
            path, reason = self.others[0]
            found.append(f"{len(self.others)} other file(s), such as {path.relative_to(self.source)}: {reason}")
        return [f"{self.source} holds", *(f"  {line}" for line in found or ["no file"])]


def _sizes(paths: Sequence[Path]) -> str:
    """Return what the heads of volumes state of their sizes, for a summary; "" of other files."""
    heads = [head for path in paths[:FEW_FILES] if (head := read_size(path))[1]]
    if not heads:
        return ""
    shapes, sides = ((_span(axis) for axis in zip_longest(*each, fillvalue=1)) for each in zip(*heads, strict=True))
    return f", {' x '.join(shapes)} voxels of {' x '.join(sides)} mm"


def _span(values: Sequence[float]) -> str:
    low, high = (f"{end:.3g}" if end < 100 else f"{end:.0f}" for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def take_inventory(source: Path) -> Inventory:
    """Return the inventory of a folder.

    Raises:
        BadInput: it is not a readable folder.
    """
    paths = [path for path in _walk(source, frozenset()) if not is_detached(path)]
    read = _read_heads(source, [path for path in paths if _may_be_dicom(path)])
    slices: dict[tuple[Path, str], list[Path]] = defaultdict(list)
    in_folder: Counter[Path] = Counter(path.parent for path in paths)
    items, others = list[Item](), list[tuple[Path, str]]()
    series_of = {head.instance: head.series for head in read.values() if head is not None and head.is_image}
    for path in paths:
        head = read.get(path)
        suffix = name_and_suffix(path)[1]
        if path.is_dir():
            others.append((path, "a link to a folder that it is in"))
            continue
        if head is None and suffix == ".dcm":
            head = Head()  # is none: its reader says so
        if head is None:
            if suffix in READABLE:
                items.append(Item(path, _key(source, path)))
            else:
                others.append((path, _reason(path)))
        elif head.is_placed:
            slices[path.parent, head.series].append(path)
        elif head.is_image or head.modality in MASKS or head == Head():
            items.append(Item(path, _key(source, path), head))
        else:
            others.append((path, f"DICOM {head.modality or 'without an image'}, not an image or mask"))
    for (folder, _), files in slices.items():
        first = read[files[0]]
        if len(files) == 1:
            items.append(Item(files[0], _key(source, files[0]), first))
        else:
            shared = in_folder[folder] > len(files)
            key = folder.relative_to(source).as_posix()
            items.append(Item(folder, "" if key == "." else key, first, tuple(files) if shared else (), len(files)))
    items.sort(key=lambda item: (item.key, item.path.name, item.head.series if item.head else ""))
    return Inventory(source, tuple(items), tuple(others), series_of)


def find_series(folder: Path, wanted: str) -> Item:
    """Return the series of a folder that ``wanted`` names: its UID, number or description, the latter perhaps in part.

    Raises:
        BadInput: none has this name, or several have.
    """
    series = [item for item in take_inventory(folder).items if item.head is not None and item.head.is_image]
    exact = [item for item in series if item.head and wanted in (item.head.series, item.head.number)]
    text = wanted.casefold()
    named = exact or [item for item in series if item.head and text == item.head.description.casefold()]
    named = named or [item for item in series if item.head and text in item.head.description.casefold()]
    if len(named) == 1:
        return named[0]
    raise BadInput(f"{folder}: has {'several' if named else 'no'} series {wanted}; {list_series(named or series)}")


def list_series(items: Sequence[Item]) -> str:
    """Return the series among items in words, each with its number and description."""
    listed = [f"{item.title} ({item.head.series})" for item in items if item.head is not None]
    return (
        f"it has {'; '.join(listed[:MOST_NAMED])}{'; ...' if len(listed) > MOST_NAMED else ''}"
        if listed
        else "it has none"
    )


def distinct_names(named: Sequence[tuple[str, str, Item]]) -> list[str]:
    """Return a name for each item: the first given that no other has, else with its PatientID and series number."""
    names = [first for first, _, _ in named]
    for further in (
        lambda _, longer, __: longer,
        lambda name, _, item: "-".join(filter(None, (name, *(item.head[:1] if item.head else ())))),
        lambda name, _, item: "-".join(filter(None, (name, item.head.number if item.head else ""))),
    ):
        times = Counter(names)
        names = [
            further(name, longer, item) if times[name] > 1 or not name else name
            for name, (_, longer, item) in zip(names, named, strict=True)
        ]
    return names


def _walk(folder: Path, within: frozenset[Path]) -> Iterator[Path]:
    """Yield the files below a folder, sorted; a link to a folder is followed, or yielded if it is in that folder."""
    real = folder.resolve()
    if real in within:
        yield folder
        return
    for path in list_visible(folder):
        if path.is_dir():
            yield from _walk(path, within | {real})
        else:
            yield path


def _key(source: Path, path: Path) -> str:
    stem = path.name if path.is_dir() else stem_of(path)
    return (path.relative_to(source).parent / stem).as_posix()


def stem_of(path: Path) -> str:
    """Return a file's name without the ending of a format that is read, or .dcm; what else follows a dot is name."""
    stem, suffix = name_and_suffix(path)
    return stem if suffix in READABLE else path.name


def _may_be_dicom(path: Path) -> bool:
    suffix = name_and_suffix(path)[1]
    return path.is_file() and (suffix == ".dcm" or (suffix not in READABLE and suffix not in OTHERS))


def _reason(path: Path) -> str:
    if path.name.upper() == "DICOMDIR":
        return "the index of a medium"
    if path.is_file() and (form := describe_unread(path)):
        return form
    marks = POLYGONS.get(path.suffix.lower())
    if marks and path.is_file():
        with path.open("rb") as file:
            content = file.read(MOST_MARKS)
        if marks.search(content):
            return OUTLINES
    return UNREAD


def _cache_file(source: Path) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "fedmerit" / "inventory" / f"{hashlib.sha256(os.fsencode(source.resolve())).hexdigest()[:32]}.json"


def _read_heads(source: Path, paths: Sequence[Path]) -> dict[Path, Head | None]:
    """Return the head of each file, from the cache if size and time of the file are those at which it was read."""
    cache = _load_cache(_cache_file(source)) if len(paths) > FEW_FILES else {}
    found: dict[Path, Head | None] = {}
    stamps, todo = dict[Path, list[int]](), list[Path]()
    for path in paths:
        state = path.stat()
        stamps[path] = [state.st_size, state.st_mtime_ns]
        stored = cache.get(os.fspath(path.relative_to(source)))
        if stored is not None and stored[0] == stamps[path]:
            found[path] = _head(stored[1])
        else:
            todo.append(path)
    cache.clear()
    if todo:
        found.update(zip(todo, _read_all(todo), strict=True))
    if todo and len(paths) > FEW_FILES:
        content = {os.fspath(path.relative_to(source)): [stamps[path], found[path]] for path in paths}
        with suppress(OSError, BadInput):  # a cache spares time and nothing else
            _store_cache(_cache_file(source), content)
    return found


def _load_cache(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
        return dict(content["heads"]) if content["version"] == CACHE_VERSION else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _store_cache(file: Path, content: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = json.dumps({"version": CACHE_VERSION, "heads": content}).encode()

    def write(stream: IO[bytes]) -> None:
        os.fchmod(stream.fileno(), 0o600)
        stream.write(text)

    write_atomically(file, write)


def _head(stored: Sequence[Any] | None) -> Head | None:
    """Return a head of JSON, its repeated texts in memory once."""
    if stored is None:
        return None
    head = Head(*stored)
    shared: dict[str, Any] = {name: sys.intern(getattr(head, name)) for name in SHARED}
    return head._replace(**shared, refers=tuple(head.refers))


def _read_all(paths: Sequence[Path]) -> Iterator[Head | None]:
    """Yield the head of each file, in order, with a bar on the terminal; of many files by a process for each core."""
    if len(paths) <= FEW_FILES:
        yield from map(read_head, paths)
        return
    console = Console(stderr=True)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    python_command("-m", heads.__name__), env=child_environment(), stdin=PIPE, stdout=PIPE, text=True
                )
            )
            for _ in range(cores())
        ]
        for place, worker in enumerate(workers):
            Thread(target=_feed, args=(worker, paths[place :: len(workers)]), daemon=True).start()
        for place in track(range(len(paths)), "headers", console=console, disable=not console.is_terminal):
            answers = workers[place % len(workers)].stdout
            line = answers.readline() if answers else ""
            if not line:
                raise BadInput(f"{paths[place]}: the process that reads headers ended; is memory full? Run it again")
            yield _head(json.loads(line))


def _feed(worker: "subprocess.Popen[str]", paths: Sequence[Path]) -> None:
    with suppress(BrokenPipeError), worker.stdin or nullcontext() as pipe:
        for path in paths:
            print(json.dumps(os.fspath(path)), file=pipe, flush=True)
