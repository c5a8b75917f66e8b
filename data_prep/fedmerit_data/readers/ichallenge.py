"""Reader of iChallenge in VOC folders: ``JPEGImages/*.jpg`` and ``Annotations/*.png``, only the disc; one site."""

from functools import partial
from pathlib import Path

import numpy as np

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Decoded, RawCase, find_one_site, require_same_shape
from fedmerit_data.readers.kind import disc_kind
from fedmerit_data.spatial.photographs import load, make_case

ROLES = {("JPEGImages", ".jpg"): "image", ("Annotations", ".png"): "mask"}


def _role(path: Path) -> tuple[str, str]:
    part = ROLES.get((path.parent.name, path.suffix.lower()))
    return (part, path.stem) if part else ("", "neither JPEGImages/*.jpg nor Annotations/*.png")


def decode(case: RawCase) -> Decoded:
    """One photograph as a case of one slice, label disc: palette index 1 of the mask."""
    image, index = load(case.image, "RGB"), load(case.label, None)
    require_same_shape(case, image[..., 0], index)
    values = np.unique(index)
    if values.size > 2 or (values.size == 2 and values[0] != 0):
        raise BadInput(f"{case.label}: holds the values {values[:4].tolist()}; expected 0 and one other, the disc")
    return make_case(image, index != 0)


KIND = disc_kind(
    description="iChallenge, only the disc: JPEGImages/*.jpg + Annotations/*.png",
    find_sites=partial(find_one_site, name="iChallenge", expected="JPEGImages/*.jpg and Annotations/*.png", role=_role),
    decode=decode,
    licence="research use",
)
