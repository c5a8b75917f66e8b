"""Photographs: images, masks on the grid of their image, and cases of one slice."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Decoded, RawCase, require_file, require_same_shape

CUP, RIM, BACKGROUND = 0, 128, 255
TOLERANCE = 5  # grey levels by which a mask may differ, as from another 8-bit encoder
HALF = 127  # threshold of masks that are 0 and 255, with soft edges or after JPEG
NEAR, UNDECIDED = 32, 0.1  # grey levels around 0 and 255, and the share of such a mask that may be further away
MAX_PIXELS = 2**26  # more than any fundus camera has; a header that promises more is damaged
FORMATS = ("PNG", "JPEG", "BMP", "TIFF")  # the only ones that Pillow may open; it would run others as programs
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # of 8 bits: Pillow truncates deeper ones
UPRIGHT = 1
EYE = re.compile(r"-[LR]$", re.IGNORECASE)


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


def make_case(image: NDArray[np.uint8], *masks: NDArray[np.bool_], remarks: tuple[str, ...] = ()) -> Decoded:
    """A photograph (height, width, colours) and its masks (height, width) as a case of one slice."""
    colours = image.transpose(2, 0, 1).astype(np.float32)
    return Decoded(colours[None], np.stack(masks).astype(np.uint8)[None], remarks=remarks)


def decode_rings(case: RawCase) -> Decoded:
    """One photograph as a case of one slice; its mask is 0 in the cup, 128 in the rim and 255 outside.

    The labels are the disc, with the cup in it, and the cup.

    Raises:
        BadInput: a file is unreadable, image and mask differ in shape, or the mask has another value.
    """
    image = load(case.image, "RGB")
    grey = load_mask(case, case.label, image)
    cup, rim, background = (np.abs(grey.astype(np.int16) - value) <= TOLERANCE for value in (CUP, RIM, BACKGROUND))
    stray = grey[~(cup | rim | background)]
    if stray.size:
        raise BadInput(f"{case.label}: has the value {stray[0]}; expected 0 (cup), 128 (disc rim), 255 (background)")
    return make_case(image, ~background, cup)
