"""Raw cases: the sites, paired files and decoded images that readers return, and the checks that they share."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput

OF_SYSTEMS = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found")  # folders
MAX_LABELS = 128  # different values in a mask


class Origin(StrEnum):
    """A part of the source that states a case's patient, channels or modality."""

    DICOM = "DICOM header"
    BIDS = "BIDS entity"
    TABLE = "table"
    LIST = "list"  # of nnU-Net, the Decathlon, MONAI, or pairs.csv
    OPTION = "option"
    LAYOUT = "layout"  # of a public release
    FILE = "file name"


@dataclass(frozen=True)
class Channel:
    """A channel of an image: a file or the folder of a DICOM series, and which part of it.

    ``name`` is what the source calls it, such as t2, "" if it states no name. ``index`` chooses one of several numbers
    per voxel, from 0; `None`: the only one. ``files`` are the slices of a series whose folder holds other files, too;
    empty: all that the folder holds.
    """

    path: Path
    name: str = ""
    index: int | None = None
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class RawCase:
    """An image and its mask. ``patient`` identifies the patient across all sites of a source."""

    name: str
    patient: str
    image: Path  # a file, or the folder of one DICOM series
    label: Path  # its mask, or the first of the mask's files
    more: tuple[Path, ...] = ()  # the other files of the mask
    organs: tuple[str, ...] = ()  # what each file of the mask shows, if each shows one organ; "": a part of the mask
    channels: tuple[Channel, ...] = ()  # all channels, the first that of ``image``; (): ``image`` holds them all
    channel_names: tuple[str, ...] = ()  # of all channels, in order; (): not stated
    modality: str = ""  # DICOM's code, such as MR; "": not stated
    patient_from: str = ""  # the `Origin` of each, "" of what is not stated
    channels_from: str = ""
    modality_from: str = ""
    groups: tuple[tuple[str, str], ...] = ()  # of the patient, such as ("sex", "F"), by column of a table

    @property
    def parts(self) -> tuple[Channel, ...]:
        """The channels, or the one file or series that holds all of them."""
        return self.channels or (Channel(self.image),)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files and folders that the case is read from; of a series that shares its folder, its slices."""
        images = (path for part in self.parts for path in part.files or (part.path,))
        return (*dict.fromkeys(images), self.label, *self.more)


@dataclass(frozen=True)
class RawSite:
    """A site's cases, sorted by name, and the files that are left out, each with the reason."""

    name: str
    cases: tuple[RawCase, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()  # on its patients


@dataclass(frozen=True)
class Decoded:
    """A case in memory, before any resizing.

    ``image`` is (slices, channels, height, width) float32, ``label`` (slices, labels, height, width) uint8
    of 0 and 1, ``spacing`` the millimetres per pixel along height and width if the file states them,
    ``remarks`` the corrections made while reading, and ``slice_distance`` the millimetres from slice to slice if
    the file states them. Of volumes ``plane`` is that of the slices, ``stored`` the directions of the axes in the file,
    and ``spacing_from`` the part of the file that states the spacing.
    """

    image: NDArray[np.float32]
    label: NDArray[np.uint8]
    spacing: tuple[float, float] | None = None
    remarks: tuple[str, ...] = ()
    slice_distance: float | None = None
    plane: str | None = None
    stored: str | None = None
    spacing_from: str | None = None


def blank_remarks(case: Decoded) -> list[str]:
    """Return a remark if all pixels of the image have one value."""
    return [] if np.ptp(case.image) else ["no content in its image: all of one value"]


def list_visible(folder: Path) -> list[Path]:
    """Return all entries of a folder, sorted by name, except hidden ones and those that systems add.

    Raises:
        BadInput: the folder does not exist or is not readable.
    """
    try:
        return sorted(path for path in folder.iterdir() if not (path.name.startswith(".") or path.name in OF_SYSTEMS))
    except OSError as error:
        raise BadInput(f"{folder}: not a readable folder ({error}); correct its name or its permissions") from error


def list_files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder at any depth, sorted, except hidden ones.

    A link counts as a file, also one to a folder, which is not followed.

    Raises:
        BadInput: a folder is not readable.
    """
    for path in list_visible(folder):
        if path.is_symlink() or not path.is_dir():
            yield path
        else:
            yield from list_files(path)


def require_folder(source: Path, expected: str) -> None:
    """Raise `BadInput` unless ``source`` is a folder."""
    if not source.is_dir():
        raise BadInput(f"{source}: no such folder; --source has to be the folder with {expected}")


def require_file(path: Path, what: str = "file") -> None:
    """Raise `BadInput` unless ``path`` is a file or a link to one: reading a pipe or a device might never end."""
    if not path.is_file():
        problem = "not a regular file" if path.exists() else "file not found"
        raise BadInput(f"{path}: not a readable {what} ({problem}); add the file or remove what refers to it")


def find_site_folders(source: Path, expected: str) -> tuple[list[Path], tuple[tuple[str, str], ...]]:
    """Return the site folders in ``source``, and the other entries, which are left out, with the reason.

    Raises:
        BadInput: no such folder, or no site in it.
    """
    require_folder(source, expected)
    entries = list_visible(source)
    folders = [path for path in entries if path.is_dir() and not path.name.startswith("_")]
    if not folders:
        raise BadInput(f"{source}: no site folders in it; expected {expected}")
    return folders, tuple((path.name, "not the folder of a site") for path in entries if path not in folders)


def add_left_out(sites: list[RawSite], strays: tuple[tuple[str, str], ...]) -> list[RawSite]:
    """Return the sites; the first also lists what is left out of the whole source."""
    first, *others = sites
    return [replace(first, left_out=strays + first.left_out), *others]


def group_by_site(cases: Iterable[tuple[str, RawCase]], left_out: Iterable[tuple[str, str]]) -> list[RawSite]:
    """Return (site, case) pairs as sites sorted by name; the first also lists what is left out of the whole source."""
    sites: dict[str, list[RawCase]] = defaultdict(list)
    for name, case in cases:
        sites[name].append(case)
    names = sorted(sites)
    return [RawSite(name, tuple(sites[name]), tuple(sorted(left_out)) if name == names[0] else ()) for name in names]


def pair_files(images: dict[str, Path], masks: dict[str, Path], site: Path) -> list[tuple[str, Path, Path]]:
    """Return (case, image, mask) sorted by case; `BadInput` if the counterpart of a file is missing."""
    if not images and not masks:
        raise BadInput(f"{site}: no cases in this site folder; add its files or move the folder out of the source")
    for files, what, others, other in ((images, "image", masks, "mask"), (masks, "mask", images, "image")):
        for case in sorted(files.keys() - others.keys()):
            unpaired = [others[name].name for name in sorted(others.keys() - files.keys())]
            rename = f" rename {unpaired[0]}, which has no {what}," if unpaired else ""
            raise BadInput(
                f"{files[case]}: its {other} is missing; add it,{rename} or move the {what} out of the source"
            )
    return [(case, images[case], masks[case]) for case in sorted(images)]


def note_file(found: dict[str, Path], case: str, path: Path) -> None:
    """Add ``path`` as the file of ``case``; `BadInput` if the case has one already."""
    if case in found:
        raise BadInput(f"{path}: case {case} already has the file {found[case]}; keep one of the two, or rename one")
    found[case] = path


def require_few_labels(path: Path, values: NDArray[Any]) -> None:
    """Raise `BadInput` if a mask has as many different values as an image."""
    if np.unique(values).size > MAX_LABELS:
        raise BadInput(f"{path}: has more than {MAX_LABELS} different values, as an image has; expected a mask")


def require_whole(path: Path, values: NDArray[Any], few: bool = True) -> NDArray[Any]:
    """Return the values of a mask as whole numbers.

    Args:
        path: The file of the mask.
        values: Its values.
        few: Whether more than `MAX_LABELS` different values are those of an image given by mistake.

    Raises:
        BadInput: there are too many values, or one is a fraction, below 0 or not finite.
    """
    whole: NDArray[Any] = np.rint(values)
    exact = np.array_equal(whole, values)  # also says that none is NaN
    low, high = whole.min(), whole.max()
    if few and not (exact and low >= 0 and high < MAX_LABELS):
        levels = exact and low >= 0 and high < 256
        if not levels or np.count_nonzero(np.bincount(whole.ravel().astype(np.uint8))) > MAX_LABELS:
            require_few_labels(path, values)
    if not (exact or np.abs(values - whole).max(initial=0) < 1e-3) or not 0 <= low <= high < np.inf:
        with np.errstate(invalid="ignore"):
            odd = values[~(np.abs(values - whole) < 1e-3) | (values < 0)].ravel()[0]
        advice = "a mask; set a threshold for probabilities" if 0 < odd < 1 else "a mask"
        raise BadInput(f"{path}: has values other than 0, 1, 2, ..., such as {odd:g}; expected {advice}")
    return whole


def require_same_shape(case: RawCase, image: NDArray[Any], label: NDArray[Any]) -> None:
    """Raise `BadInput` unless image and mask have one shape."""
    if image.shape != label.shape:
        raise BadInput(
            f"{case.label}: mask of shape {label.shape}, but its image {case.image.name} has {image.shape}; "
            "they have to be on one grid"
        )
