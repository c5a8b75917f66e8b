"""Reader of RIM-ONE r3: stereo pairs of which the left half is annotated, and the average of two experts' masks."""

import re
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Decoded, RawCase, find_one_site
from fedmerit_data.readers.kind import fundus_kind
from fedmerit_data.spatial.photographs import EYE, binarise_mask, load, load_mask, make_case

EXPECTED = (
    "{Healthy,Glaucoma and suspects}/Stereo Images/{N,G,S}-k-{L,R}.jpg and Average_masks/N-1-L-{Disc,Cup}-Avg.png"
)
FILE = re.compile(r"(?P<case>[NGS]-\d+-[LR])(\.jpg|-(?P<mask>Disc|Cup)-Avg\.png)", re.IGNORECASE)


def _role(path: Path) -> tuple[str, str]:
    match = FILE.fullmatch(path.name)
    if not match:
        return "", "neither a stereo pair nor an average mask"
    return (match["mask"] or "image").lower(), match["case"].upper()


def _patient(eye: str) -> str:
    return EYE.sub("", eye)


def decode(case: RawCase) -> Decoded:
    """The left half of a stereo pair as a case of one slice, labels disc and cup."""
    image = load(case.image, "RGB")
    height, width = image.shape[:2]
    if width <= height:
        raise BadInput(f"{case.image}: {width} x {height} pixels; expected a stereo pair as released, 2144 x 1424")
    disc, cup = (binarise_mask(path, _left(load_mask(case, path, image))) for path in (case.label, *case.more))
    return make_case(_left(image), disc, cup)


def _left(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return pixels[:, : pixels.shape[1] // 2]


KIND = fundus_kind(
    description="RIM-ONE r3: {Healthy,Glaucoma and suspects}/Stereo Images + Average_masks; left halves",
    find_sites=partial(
        find_one_site,
        name="RIM-ONE-r3",
        expected=EXPECTED,
        role=_role,
        masks=("disc", "cup"),
        patient=partial(EYE.sub, ""),
    ),
    decode=decode,
    licence="the terms of the RIM-ONE r3 release hold",
    citation="Fumero et al., Interactive tool and database for optic disc and cup segmentation of stereo and "
    "monocular retinal fundus images, WSCG 2015",
)
