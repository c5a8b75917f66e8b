"""Decoders of photographs of the optic disc whose masks are not the rings of disc and cup."""

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Decoded, RawCase, require_same_shape
from fedmerit_data.spatial.photographs import binarise_mask, load, load_levels, load_mask, make_case


def decode_binary(case: RawCase) -> Decoded:
    """Decode one photograph as a case of one slice, with a label for each mask file: its grey levels above 127.

    JPEG blurs the edges of masks (DRIONS-DB). Soft maps (Drishti-GS1) are 0, 64, 128, 191 and 255 for none to all of
    four experts: the pixels that at least half of them marked.
    """
    image = load(case.image, "RGB")
    masks = (binarise_mask(path, load_mask(case, path, image)) for path in (case.label, *case.more))
    return make_case(image, *masks)


def decode_stereo(case: RawCase) -> Decoded:
    """Decode the left half of a stereo pair as a case of one slice, labels disc and cup."""
    image = load(case.image, "RGB")
    height, width = image.shape[:2]
    if width <= height:
        raise BadInput(f"{case.image}: {width} x {height} pixels; expected a stereo pair as released, 2144 x 1424")
    disc, cup = (binarise_mask(path, _left(load_mask(case, path, image))) for path in (case.label, *case.more))
    return make_case(_left(image), disc, cup)


def _left(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return pixels[:, : pixels.shape[1] // 2]


def decode_disc_index(case: RawCase) -> Decoded:
    """Decode one photograph as a case of one slice, label disc: the palette indices or levels of the mask above 0."""
    image, (index, _) = load(case.image, "RGB"), load_levels(case.label, ())
    require_same_shape(case, image[..., 0], index)
    values = np.unique(index)
    if values.size > 2 or (values.size == 2 and values[0] != 0):
        raise BadInput(f"{case.label}: holds the values {values[:4].tolist()}; expected 0 and one other, the disc")
    return make_case(image, index != 0)
