"""What the readers of raw public layouts hand on: sites found, cases paired, one case decoded at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput


@dataclass(frozen=True)
class RawCase:
    """One image and its mask. ``patient`` tells patients apart across all sites of a source."""

    name: str
    patient: str
    image: Path  # a file, or the folder of one DICOM series
    label: Path  # its mask, or the first of the files that the mask is made of
    more: tuple[Path, ...] = ()  # the others of these


@dataclass(frozen=True)
class RawSite:
    """One site's cases, sorted by name, and the files that are no case, each with the reason."""

    name: str
    cases: tuple[RawCase, ...]
    left_out: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Decoded:
    """One case in memory, before any resizing.

    ``image`` is (slices, channels, height, width) float32, ``label`` (slices, labels, height, width) uint8
    of 0 and 1, ``spacing`` the millimetres per pixel along height and width where the file knows them, and
    ``remarks`` what was put right on the way in.
    """

    image: NDArray[np.float32]
    label: NDArray[np.uint8]
    spacing: tuple[float, float] | None = None
    remarks: tuple[str, ...] = ()


def site_folders(source: Path, expected: str) -> list[Path]:
    """The folders below ``source``, hidden ones aside; `BadInput` if there is none."""
    if not source.is_dir():
        raise BadInput(f"{source}: no such folder; --source has to be the folder that holds {expected}")
    folders = sorted(path for path in source.iterdir() if path.is_dir() and path.name[0] not in "._")
    if not folders:
        raise BadInput(f"{source}: no site folders in it; expected {expected}")
    return folders


def files_in(folder: Path) -> Iterator[Path]:
    """The files of a folder sorted by name, hidden ones aside."""
    return (path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith("."))


def pair(images: dict[str, Path], masks: dict[str, Path], site: Path) -> list[tuple[str, Path, Path]]:
    """(case, image, mask) sorted by case; `BadInput` naming the file whose counterpart is missing."""
    if not images and not masks:
        raise BadInput(f"{site}: no cases in this site folder; add its files or move the folder out of the source")
    for case in sorted(images.keys() - masks.keys()):
        raise BadInput(f"{images[case]}: its mask is missing; add it or move the image out of the source")
    for case in sorted(masks.keys() - images.keys()):
        raise BadInput(f"{masks[case]}: the image of this mask is missing; add it or move the mask out of the source")
    return [(case, images[case], masks[case]) for case in sorted(images)]


def remember(found: dict[str, Path], case: str, path: Path) -> None:
    """Note ``path`` as the file of ``case``; `BadInput` if another file already stands for it."""
    if case in found:
        raise BadInput(f"{path}: {found[case]} already stands for case {case}; keep one of the two")
    found[case] = path


def require_same_shape(case: RawCase, image: NDArray[Any], label: NDArray[Any]) -> None:
    """`BadInput` unless image and mask have one shape."""
    if image.shape != label.shape:
        raise BadInput(
            f"{case.label}: mask of shape {label.shape}, but its image {case.image.name} has {image.shape}; "
            "they have to be on one grid"
        )
