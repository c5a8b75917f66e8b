"""Everything that can be wrong with the files, folders and lists of a source, whatever their format."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from sources import ROWS, Layout, decathlon, pairs

NOISE = np.random.default_rng(0).bytes(4096)
PAGE = b"<!DOCTYPE html><html><body>403 Forbidden</body></html>\n" * 20


@dataclass(frozen=True)
class Mutation:
    """``apply`` spoils ``target`` of a source; ``changes``: its case may be used, if a remark says what is odd."""

    name: str
    target: str
    apply: Callable[[Path], object]
    changes: bool = False


def _halved(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _clipped(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _headless(path: Path) -> None:
    path.write_bytes(path.read_bytes()[64:])


def _replaced(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(to: str, path: Path) -> None:
    path.unlink()
    path.symlink_to(to)


def _self_link(path: Path) -> None:
    _link(path.name, path)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _renamed(name: Callable[[str], str], path: Path) -> None:
    path.rename(path.with_name(name(path.name)))


ANY_FILE: dict[str, Callable[[Path], None]] = {
    "empty": partial(_replaced, b""),
    "one byte": partial(_replaced, b"\0"),
    "halved": _halved,
    "clipped": _clipped,
    "headless": _headless,
    "zeroed": _zeroed,
    "noise": partial(_replaced, NOISE),
    "an error page": partial(_replaced, PAGE),
    "folder": _folder,
    "missing": Path.unlink,
    "dangling link": partial(_link, "nowhere"),
    "link to itself": _self_link,
    "link to its folder": partial(_link, "."),
    "endless": partial(_link, "/dev/zero"),
    "pipe": _pipe,
    "backup": partial(_renamed, lambda name: f"{name}.bak"),
    "copy (1)": partial(_renamed, lambda name: f"Copy of {name}"),
    "hidden": partial(_renamed, lambda name: f".{name}"),
}


def any_file(layout: Layout) -> Iterator[Mutation]:
    """Each of the above, of the image and of the mask."""
    for part, target in (("image", layout.image), ("mask", layout.mask)):
        for name, spoil in ANY_FILE.items():
            apply = partial(_spoilt, target=target, spoil=spoil)
            yield Mutation(f"{part} {name}", target, apply, part == "mask" and one_of_several(layout))


def one_of_several(layout: Layout) -> bool:
    """Whether the mask is the vote of several experts, who can do without one."""
    return layout.kind.startswith("riga")


def _spoilt(root: Path, target: str, spoil: Callable[[Path], None]) -> None:
    spoil(root / target)


def swaps(layout: Layout) -> Iterator[Mutation]:
    """Files in each other's place."""
    image, mask = layout.image, layout.mask

    def exchange(root: Path, one: str, other: str) -> None:
        (root / one).rename(root / "kept")
        (root / other).rename(root / one)
        (root / "kept").rename(root / other)

    def copy(root: Path, source: str, to: str) -> None:
        shutil.copyfile(root / source, root / to)

    if not one_of_several(layout):  # where only a drawing tells a copy from its image, and either differs by it
        yield Mutation("image and mask swapped", mask, partial(exchange, one=image, other=mask))
    yield Mutation("image as mask", mask, partial(copy, source=image, to=mask), one_of_several(layout))
    if one_of_several(layout) or mask.endswith(".dcm"):  # elsewhere nothing in a file tells but its geometry
        yield Mutation("mask of another case", mask, partial(copy, source=layout.other[1], to=mask))


def _write(name: str, content: str | bytes, root: Path) -> None:
    (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())


LISTS: dict[str, bytes] = {
    "not JSON": b"{",
    "a list": b"[]",
    "null": b"null",
    "no keys": b"{}",
    "deep": b"[" * 100_000,
    "Latin-1": b'{"name": "\xe9"}',
    "UTF-16": '{"name": "a"}'.encode("utf-16"),
}


def lists(layout: Layout) -> Iterator[Mutation]:
    """What can be wrong with a list of cases."""
    listing = layout.listing
    if listing is None:
        return
    for name, spoil in ANY_FILE.items():
        yield Mutation(f"list {name}", listing, lambda root, spoil=spoil: spoil(root / listing))
    if listing.endswith(".json"):
        for name, content in LISTS.items():
            yield Mutation(f"list {name}", listing, partial(_write, listing, content))
    if listing == "dataset.json":
        pair = {"image": "imagesTr/p_1.nii.gz", "label": "labelsTr/p_1.nii.gz"}
        for name, more in {
            "name missing": {"name": None},
            "name of a folder": {"name": "../PROSTATE"},
            "name empty": {"name": ""},
            "training text": {"training": "imagesTr"},
            "training null": {"training": None},
            "training a dict": {"training": pair},
            "entry null": {"training": [None]},
            "label missing": {"training": [{"image": pair["image"]}]},
            "label null": {"training": [{**pair, "label": None}]},
            "NUL in a name": {"training": [{**pair, "image": "a\0b.nii.gz"}]},
            "long name": {"training": [{**pair, "image": "a" * 5000 + ".nii.gz"}]},
            "a folder": {"training": [{**pair, "image": "imagesTr"}]},
            "image as label": {"training": [{**pair, "label": pair["image"]}]},
            "twice": {"training": [pair, pair]},
            "password file": {"training": [{**pair, "image": "/etc/passwd"}]},
            "tests a number": {"test": 7},
        }.items():
            yield Mutation(f"list {name}", listing, lambda root, more=more: decathlon(root, **more))
        yield Mutation("list short", "labelsTr/p_4.nii.gz", partial(decathlon, numbers=(1, 2, 3)))
    elif listing == "pairs.csv":
        for name, rows in {
            "cell empty": [*ROWS[:3], ["east", "", "files/d.png", "files/d_mask.png"]],
            "cell missing": [*ROWS[:3], ROWS[3][:3]],
            "file missing": [*ROWS[:3], ["east", "pd", "files/e.png", "files/d_mask.png"]],
            "file a folder": [*ROWS[:3], ["east", "pd", "files", "files/d_mask.png"]],
            "site a path": [*ROWS[:3], ["../east", *ROWS[3][1:]]],
            "twice": [*ROWS, ROWS[0]],
            "long name": [*ROWS[:3], ["east", "pd", "f" * 5000 + ".png", "files/d_mask.png"]],
            "image as label": [*ROWS[:3], ["east", "pd", "files/d.png", "files/d.png"]],
            "swapped": [*ROWS[:3], ["east", "pd", "files/d_mask.png", "files/d.png"]],
            "no rows": [],
        }.items():
            yield Mutation(f"table {name}", listing, lambda root, rows=rows: pairs(root, rows))
        yield Mutation("table short", "files/d.png", lambda root: pairs(root, ROWS[:3]))
        yield Mutation("table header", listing, lambda root: pairs(root, ROWS, ("site", "patient", "image", "mask")))
        yield Mutation("table headless", listing, lambda root: pairs(root, ROWS[1:], tuple(ROWS[0])))
        for name, content in {
            "semicolons": "site;patient;image;label\n" + "\n".join(map(";".join, ROWS)),
            "quote open": 'site,patient,image,label\neast,a,"files/a.png,files/a_mask.png\n',
            "UTF-16": "site,patient,image,label\n".encode("utf-16"),
        }.items():
            yield Mutation(f"table {name}", listing, partial(_write, listing, content))
    else:  # NVFlare's
        entry = {"image": "MSD/Image/prostate_00/8.png", "label": "MSD/Mask/prostate_00/8.png"}
        for name, value in {
            "training text": {"training": "MSD"},
            "training null": {"training": None},
            "label missing": {"training": [{"image": entry["image"]}]},
            "label elsewhere": {"training": [{**entry, "label": "../datalist_2D/client_MSD.json"}]},
            "a folder": {"training": [{**entry, "image": "MSD/Image/prostate_00"}]},
            "NUL in a name": {"training": [{**entry, "image": "a\0b"}]},
            "one case": {"training": [entry]},
        }.items():
            yield Mutation(f"list {name}", listing, partial(_write, listing, json.dumps(value)))


def _emptied(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def _as_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_bytes(b"")


def _as_link(to: str, path: Path) -> None:
    shutil.rmtree(path)
    path.symlink_to(to)


def _moved_and_linked(path: Path) -> None:
    """The folder is elsewhere, hidden, and a link in its place."""
    path.rename(path.with_name(f".{path.name}"))
    path.symlink_to(f".{path.name}")


ANY_FOLDER: dict[str, Callable[[Path], None]] = {
    "emptied": _emptied,
    "a file": _as_file,
    "missing": shutil.rmtree,
    "linked to itself": lambda path: _as_link(path.name, path),
    "linked to what holds it": partial(_as_link, ".."),
    "dangling link": partial(_as_link, "nowhere"),
    "linked": _moved_and_linked,
    "renamed": partial(_renamed, lambda name: f"{name} (1)"),
    "underscored": partial(_renamed, lambda name: f"_{name}"),
    "with itself within": lambda path: (path / "again").symlink_to(".."),
    "with another within": lambda path: (path / "more").mkdir(),
    "with a stray file": lambda path: (path / "notes.txt").write_bytes(b"x"),
    "with a pipe": lambda path: os.mkfifo(path / "pipe"),
}


def folders(layout: Layout) -> Iterator[Mutation]:
    """Each of the above, of every folder above the image."""
    for above in Path(layout.image).parents:
        if above.name:
            for name, spoil in ANY_FOLDER.items():
                target = above.as_posix()
                yield Mutation(f"{above.name}/ {name}", target, lambda root, t=target, spoil=spoil: spoil(root / t))
