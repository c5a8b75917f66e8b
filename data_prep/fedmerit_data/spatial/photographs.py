"""What readers of photographs share: files below a folder, images decoded, masks brought to one grid."""

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
TOLERANCE = 5  # grey levels that a mask may stray, as from another 8-bit encoder
HALF = 127  # masks that are 0 and 255, softly or after JPEG, are cut above it
NEAR, UNDECIDED = 32, 0.1  # grey levels about 0 and 255, and the share of such a mask that may stray further
MAX_PIXELS = 2**26  # more than any fundus camera's; a header that promises more is not believed
FORMATS = ("PNG", "JPEG", "BMP", "TIFF")  # what Pillow may take a file for; it would run others as programs
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # of 8 bits: Pillow cuts deeper ones off
UPRIGHT = 1
EYE = re.compile(r"-[LR]$", re.IGNORECASE)

# Of one path relative to the source: its part ("image" or a mask's name) and case, or "" and why it is left out.
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
        name: The site's, which also begins each patient's name.
        source: Searched with all folders below it.
        expected: The layout in words, for messages.
        role: Which part of which case a file is.
        masks: The parts that each case needs beside its image.
        patient: Of a case; by default each case is a patient.

    Raises:
        BadInput: no such folder, no cases, an image or mask alone, or two files for one part of a case.
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
        raise BadInput(f"{source}: holds no cases in this layout; expected {expected}")
    first, *others = (found[part] for part in masks)
    for part, other in zip(masks[1:], others, strict=True):
        for case in sorted(first.keys() ^ other.keys()):
            alone = first.get(case) or other[case]
            missing = part if case in first else masks[0]
            raise BadInput(
                f"{alone}: the {missing} mask of {case} is missing; add it or move the case out of the source"
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
        BadInput: the file is no image, damaged, or of a size that no photograph has.
    """
    try:
        require_file(path, "image")
        with Image.open(path, formats=FORMATS) as file:
            if file.width * file.height > MAX_PIXELS:
                raise ValueError(f"{file.width} x {file.height} pixels, more than any photograph has")
            if file.mode not in MODES:
                raise BadInput(f"{path}: pixels of type {file.mode}; expected 8 bits per colour: convert it")
            if file.format != "JPEG" and getattr(file, "n_frames", 1) != 1:
                raise ValueError("holds several pictures; expected one")
            return np.array(file if mode is None else file.convert(mode))
    except BadInput:
        raise
    except Exception as error:  # Pillow's parsers let through whatever their arithmetic runs into
        raise BadInput(f"{path}: not a readable image ({error}); fetch the file again") from error


def stated_orientation(path: Path) -> int:
    """How viewers turn an image that can be loaded, 1 to 8 of EXIF; `UPRIGHT`: not at all."""
    with Image.open(path, formats=FORMATS) as file:
        return int(file.getexif().get(ExifTags.Base.Orientation, UPRIGHT))


def load_mask(case: RawCase, path: Path, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The grey levels (height, width) of one of a case's masks; `BadInput` unless on the grid of its image."""
    grey = load(path, "L")
    require_same_shape(replace(case, label=path), image[..., 0], grey)
    return grey


def binarise_mask(path: Path, grey: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """What is bright in a mask of 0 and 255, whose edges may be soft.

    Raises:
        BadInput: too many grey levels lie in between, as in a photograph.
    """
    share = np.mean((grey > NEAR) & (grey < 255 - NEAR))
    if share > UNDECIDED:
        raise BadInput(f"{path}: {share:.0%} of it is neither 0 nor 255, as in a photograph; expected a mask")
    return grey > HALF


def load_rings(case: RawCase, image: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Disc, cup included, and cup of a mask that is 0 in the cup, 128 in the rim and 255 outside.

    Raises:
        BadInput: the mask is unreadable, not on the image's grid, or holds another value.
    """
    grey = load_mask(case, case.label, image)
    cup, rim, background = (np.abs(grey.astype(np.int16) - value) <= TOLERANCE for value in (CUP, RIM, BACKGROUND))
    stray = grey[~(cup | rim | background)]
    if stray.size:
        raise BadInput(f"{case.label}: holds the value {stray[0]}; expected 0 (cup), 128 (disc rim), 255 (background)")
    return ~background, cup


def make_case(image: NDArray[np.uint8], *masks: NDArray[np.bool_], remarks: tuple[str, ...] = ()) -> Decoded:
    """A photograph (height, width, colours) and its masks (height, width) as a case of one slice."""
    colours = image.transpose(2, 0, 1).astype(np.float32)
    return Decoded(colours[None], np.stack(masks).astype(np.uint8)[None], remarks=remarks)


def decode_rings(case: RawCase) -> Decoded:
    """One photograph as a case of one slice, labels disc and cup by `load_rings`.

    Raises:
        BadInput: a file is unreadable, image and mask differ in shape, or the mask holds another value.
    """
    image = load(case.image, "RGB")
    return make_case(image, *load_rings(case, image))
