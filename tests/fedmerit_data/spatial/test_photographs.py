"""Photographs: damaged and deep ones."""

import numpy as np
import pytest
from layouts_fundus import WRITE, only
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit_data.kinds import KINDS
from fedmerit_data.spatial.photographs import load


@pytest.mark.parametrize(
    ("kind", "part"),
    [(kind, part) for kind in WRITE for part in ("image", "label")] + [("drishti-gs1", "more"), ("rim-one-r3", "more")],
)
@pytest.mark.parametrize("how", ["empty", "truncated", "text", "shape"])
def test_a_damaged_file_is_named(tmp_path, kind, part, how):
    WRITE[kind](tmp_path)
    case = only(kind, tmp_path).cases[0]
    paths = {"image": (case.image,), "label": (case.label,), "more": case.more}[part]
    content = paths[0].read_bytes()
    if how == "shape":
        Image.new("L" if part != "image" else "RGB", (60, 20), 255).save(paths[0])
    else:
        paths[0].write_bytes({"empty": b"", "truncated": content[: len(content) // 2], "text": b"hello"}[how])
    expected = "not a readable image" if how != "shape" else "mask of shape"
    named = paths[0] if how != "shape" or part != "image" else case.label
    with pytest.raises(BadInput, match=rf"{named.name}: {expected}"):
        KINDS[kind].decode(case)


def test_deep_pixels_are_not_told_to_be_fetched_again(tmp_path):
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((8, 8), 999, np.uint16)).save(path)
    with pytest.raises(BadInput, match=r"deep\.png: pixels of type I;16; expected 8 bits per colour: convert it$"):
        load(path, None)
