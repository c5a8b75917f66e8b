"""Reader of iChallenge in VOC folders: ``JPEGImages/*.jpg`` and ``Annotations/*.png``, only the disc; one site."""

from pathlib import Path

import numpy as np

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Decoded, RawCase, RawSite, require_same_shape
from fedmerit_data.readers.kind import disc_kind
from fedmerit_data.spatial.photographs import find_one_site, load, make_case

ROLES = {("JPEGImages", ".jpg"): "image", ("Annotations", ".png"): "mask"}


def find_sites(source: Path) -> list[RawSite]:
    """All images as one site.

    Raises:
        BadInput: no such folder, no cases, or an image or mask without the other.
    """
    return [find_one_site("iChallenge", source, "JPEGImages/*.jpg and Annotations/*.png", _role)]


def _role(path: Path) -> tuple[str, str]:
    part = ROLES.get((path.parent.name, path.suffix.lower()))
    return (part, path.stem) if part else ("", "neither JPEGImages/*.jpg nor Annotations/*.png")


def decode(case: RawCase) -> Decoded:
    """One photograph as a case of one slice, label disc: palette index 1 of the mask.

    Raises:
        BadInput: a file is unreadable, image and mask differ in shape, or the mask holds more than two values.
    """
    image, index = load(case.image, "RGB"), load(case.label, None)
    require_same_shape(case, image[..., 0], index)
    values = np.unique(index)
    if values.size > 2 or (values.size == 2 and values[0] != 0):
        raise BadInput(f"{case.label}: holds the values {values[:4].tolist()}; expected 0 and one other, the disc")
    return make_case(image, index != 0)


KIND = disc_kind(
    description="iChallenge, only the disc: JPEGImages/*.jpg + Annotations/*.png",
    find_sites=find_sites,
    decode=decode,
    licence="research use",
)
