"""Photographs: finding the files of a site, loading images, and masks on the grid of their image."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import (
    Decoded,
    RawCase,
    RawSite,
    list_files,
    note_file,
    pair_files,
    require_file,
    require_folder,
    require_same_shape,
)

CUP, RIM, BACKGROUND = 0, 128, 255
TOLERANCE = 5  # grey levels by which a mask may differ, as from another 8-bit encoder
HALF = 127  # threshold of masks that are 0 and 255, with soft edges or after JPEG
NEAR, UNDECIDED = 32, 0.1  # grey levels around 0 and 255, and the share of such a mask that may be further away
MAX_PIXELS = 2**26  # more than any fundus camera has; a header that promises more is damaged
FORMATS = ("PNG", "JPEG", "BMP", "TIFF")  # the only ones that Pillow may open; it would run others as programs
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # of 8 bits: Pillow truncates deeper ones
UPRIGHT = 1
EYE = re.compile(r"-[LR]$", re.IGNORECASE)

# From a path relative to the source: its part ("image" or a mask's name) and case, or "" and why it is left out.
Role = Callable[[Path], tuple[str, str]]


def find_one_site(
    name: str,
    source: Path,
    expected: str,
    role: Role,
    *,
    masks: Sequence[str] = ("mask",),
    patient: Callable[[str], str] = str,
) -> RawSite:
    """The images and masks below ``source`` as one site, paired by case and sorted by it.

    Args:
        name: Name of the site, and first part of each patient's name.
        source: Folder to search, with all folders below it.
        expected: The layout in words, for messages.
        role: Gives the part and case of a file.
        masks: The parts that each case needs beside its image.
        patient: Gives the patient of a case; by default each case is a patient.

    Raises:
        BadInput: no such folder, no cases, an image or mask without the other, or two files for one part of a case.
    """
    found: dict[str, dict[str, Path]] = {part: {} for part in ("image", *masks)}
    left_out = []
    require_folder(source, expected)
    for path in list_files(source):
        relative = path.relative_to(source)
        part, case = role(relative)
        if part in found:
            note_file(found[part], case, path)
        else:
            left_out.append((relative.as_posix(), case))
    if not any(found.values()):
        raise BadInput(f"{source}: has no cases in this layout; expected {expected}")
    first, *others = (found[part] for part in masks)
    for part, other in zip(masks[1:], others, strict=True):
        for case in sorted(first.keys() ^ other.keys()):
            single = first.get(case) or other[case]
            missing = part if case in first else masks[0]
            raise BadInput(
                f"{single}: the {missing} mask of {case} is missing; add it or move the case out of the source"
            )
    cases = (
        RawCase(case, f"{name}-{patient(case)}", image, mask, tuple(other[case] for other in others))
        for case, image, mask in pair_files(found["image"], first, source)
    )
    return RawSite(name, tuple(cases), tuple(left_out))


def load(path: Path, mode: str | None) -> NDArray[np.uint8]:
    """The pixels of an image, (height, width) or (height, width, colours), converted to Pillow's ``mode``.

    Without a mode the pixels stay as stored: a palette image gives its indices.

    Raises:
        BadInput: the file is not an image, damaged, or larger than any photograph.
    """
    try:
        require_file(path, "image")
        with Image.open(path, formats=FORMATS) as file:
            if file.width * file.height > MAX_PIXELS:
                raise ValueError(f"{file.width} x {file.height} pixels, more than any photograph has")
            if file.mode not in MODES:
                raise BadInput(f"{path}: pixels of type {file.mode}; expected 8 bits per colour: convert it")
            if file.format != "JPEG" and getattr(file, "n_frames", 1) != 1:
                raise ValueError("has several pictures; expected one")
            return np.array(file if mode is None else file.convert(mode))
    except BadInput:
        raise
    except Exception as error:  # Pillow's parsers raise many types of errors over damaged files
        raise BadInput(f"{path}: not a readable image ({error}); the file may be damaged: fetch it again") from error


def stated_orientation(path: Path) -> int:
    """The EXIF orientation of an image, 1 to 8, by which viewers rotate it; `UPRIGHT`: not at all."""
    with Image.open(path, formats=FORMATS) as file:
        return int(file.getexif().get(ExifTags.Base.Orientation, UPRIGHT))


def load_mask(case: RawCase, path: Path, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The grey levels (height, width) of one of a case's masks; `BadInput` unless it has the shape of its image."""
    grey = load(path, "L")
    require_same_shape(replace(case, label=path), image[..., 0], grey)
    return grey


def binarise_mask(path: Path, grey: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """The bright pixels of a mask of 0 and 255, whose edges may be soft.

    Raises:
        BadInput: too many grey levels are in between, as in a photograph.
    """
    share = np.mean((grey > NEAR) & (grey < 255 - NEAR))
    if share > UNDECIDED:
        raise BadInput(f"{path}: {share:.0%} of it is neither 0 nor 255, as in a photograph; expected a mask")
    return grey > HALF


def load_rings(case: RawCase, image: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Disc, cup included, and cup of a mask that is 0 in the cup, 128 in the rim and 255 outside.

    Raises:
        BadInput: the mask is unreadable, has another shape than the image, or another value.
    """
    grey = load_mask(case, case.label, image)
    cup, rim, background = (np.abs(grey.astype(np.int16) - value) <= TOLERANCE for value in (CUP, RIM, BACKGROUND))
    stray = grey[~(cup | rim | background)]
    if stray.size:
        raise BadInput(f"{case.label}: has the value {stray[0]}; expected 0 (cup), 128 (disc rim), 255 (background)")
    return ~background, cup


def make_case(image: NDArray[np.uint8], *masks: NDArray[np.bool_], remarks: tuple[str, ...] = ()) -> Decoded:
    """A photograph (height, width, colours) and its masks (height, width) as a case of one slice."""
    colours = image.transpose(2, 0, 1).astype(np.float32)
    return Decoded(colours[None], np.stack(masks).astype(np.uint8)[None], remarks=remarks)


def decode_rings(case: RawCase) -> Decoded:
    """One photograph as a case of one slice, labels disc and cup by `load_rings`.

    Raises:
        BadInput: a file is unreadable, image and mask differ in shape, or the mask has another value.
    """
    image = load(case.image, "RGB")
    return make_case(image, *load_rings(case, image))
