"""A folder for each patient: its images, a channel each, and one mask or a mask for each organ.

As BraTS has them (``P1/P1_t1.nii.gz``, ``P1/P1_flair.nii.gz``, ``P1/P1_seg.nii.gz``) and TotalSegmentator
(``P1/ct.nii.gz``, ``P1/segmentations/liver.nii.gz``).
"""

import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import RawCase, RawSite, list_visible, note_file
from fedmerit_data.readers.image_files import DICOM, is_detached, is_readable, name_and_suffix

MASK = re.compile(r"(?:^|.*[_.-])(mask|segmentation|seg|label)s?", re.IGNORECASE)  # names of masks
UNNAMED = "an organ that --labels does not name"
MAX_NAMED = 5  # organs in an error


def is_patient(folder: Path) -> bool:
    """Whether a folder is that of a patient: it has image files, other than the slices of a DICOM series."""
    return folder.is_dir() and any(
        path.is_file() and is_readable(path) and path.suffix.lower() != DICOM for path in list_visible(folder)
    )


def organ_files(folder: Path) -> dict[str, Path]:
    """The masks in a folder by the organ that each is named for."""
    return {name_and_suffix(path)[0]: path for path in list_visible(folder) if path.is_file() and is_readable(path)}


def choose_organs(masks: dict[str, Path], wanted: Collection[str], where: Path) -> tuple[tuple[str, ...], list[Path]]:
    """Of the masks of organs those wanted, and the files of the others.

    Raises:
        BadInput: none is wanted, and it is not clear which is meant.
    """
    chosen = tuple(sorted(masks.keys() & set(wanted)))
    if not chosen and len(masks) == 1:
        return (), []
    if not chosen:
        few = sorted(masks)[:MAX_NAMED]
        more = ", ..." if len(masks) > len(few) else ""
        raise BadInput(
            f"{where}: has masks of {len(masks)} organs ({', '.join(few)}{more}), and --labels names none of them; "
            f"expected such as --labels {few[0]}={few[0]}"
        )
    return chosen, [path for organ, path in masks.items() if organ not in chosen]


def read_patients(folders: Collection[Path], site: str, wanted: Collection[str]) -> RawSite:
    """The patients of a site, a folder each; ``wanted`` are the names of organs in the label map.

    Raises:
        BadInput: a patient has no mask, no image, or other images than the others.
    """
    cases, channels = [], dict[str, tuple[str, ...]]()
    left_out = list[tuple[str, str]]()
    for folder in folders:
        images, masks = dict[str, Path](), dict[str, Path]()
        for path in list_visible(folder):
            part = _part(folder, path)
            if is_readable(path) and not (path.is_dir() and MASK.fullmatch(part)):
                note_file(masks if MASK.fullmatch(part) or part in wanted else images, part, path)
            elif path.is_dir() and MASK.fullmatch(part):
                masks |= organ_files(path)
            elif not is_detached(path):
                left_out.append((f"{folder.name}/{path.name}", "of no format that is read"))
        for what, found in (("image", images), ("mask, such as seg.nii.gz,", masks)):
            if not found:
                raise BadInput(f"{folder}: has no {what} in it; add it or move the folder out of the source")
        organs, others = choose_organs(masks, wanted, folder)
        left_out += [(path.relative_to(folder.parent).as_posix(), UNNAMED) for path in others]
        first, *more = [masks[organ] for organ in organs] or list(masks.values())
        channels[folder.name] = tuple(sorted(images))
        image, *further = (images[part] for part in sorted(images))
        name = folder.name
        cases.append(RawCase(name, f"{site}-{name}", image, first, tuple(more), organs, tuple(further)))
    usual = Counter(channels.values()).most_common(1)[0][0]
    for folder in folders:
        if channels[folder.name] != usual:
            have, others_have = (", ".join(parts) for parts in (channels[folder.name], usual))
            raise BadInput(f"{folder}: has the images {have}, the other patients {others_have}; each needs the same")
    return RawSite(site, tuple(cases), tuple(left_out))


def _part(folder: Path, path: Path) -> str:
    """The name of a file or folder without that of its patient."""
    stem = path.name if path.is_dir() else name_and_suffix(path)[0]
    return stem.removeprefix(folder.name).lstrip("_-. ") or stem
