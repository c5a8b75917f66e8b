"""TIFF files that hold a volume as a stack of pictures."""

import io
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image, ImageSequence
from PIL.TiffImagePlugin import TiffImageFile

from fedmerit.errors import BadInput
from fedmerit.files import parse_json, read_bytes
from fedmerit_data.spatial.volumes import Volume, place_volume, report_damage, require_sane

TIFF = (".tif", ".tiff")
PLAIN = (1, 8, 32946, 32773)  # no compression, deflate and PackBits: what tifffile reads by itself
MILLIMETRES = {"mm": 1.0, "millimeter": 1.0, "cm": 10.0, "m": 1000.0, "um": 0.001, "µm": 0.001, "\\u00B5m": 0.001}
MILLIMETRES |= {"micron": 0.001, "microns": 0.001, "micrometer": 0.001, "nm": 1e-6}
CHANNEL = "C"  # tifffile's letter of this axis
PHOTOMETRIC, MIN_IS_WHITE = 262, 0  # a tag of TIFF, and its value if 0 is white
Steps = tuple[float, float, float]  # mm between slices, rows and columns


@dataclass(frozen=True)
class StackHeader:
    """A stack's header that a mask takes over: its steps, if it states them."""

    steps: Steps | None


def is_stack(path: Path) -> bool:
    """Return whether a TIFF file has several grey pictures of one size; False if it cannot be read."""
    return bool(stack_shape(path))


def stack_shape(path: Path) -> tuple[int, ...]:
    """Return the shape of a stack: x, y, z and, if pictures are stated to be of several channels, their number.

    Empty if it is no stack, or cannot be read.
    """
    if path.suffix.lower() not in TIFF or not path.is_file():
        return ()
    try:
        with tifffile.TiffFile(path) as file:
            (series,) = file.series
            sides = dict(zip(series.axes, series.shape, strict=True))
            is_stated = file.is_ome or len(sides) > 3  # ImageJ's slices without a statement are channels, too
    except Exception:  # any error over a damaged file; the reader of photographs says why
        return ()
    channels = sides.pop(CHANNEL, 1) if is_stated else 1
    slices = [side for axis, side in sides.items() if axis not in "YXS"]
    if "S" in sides or len(slices) > 1 or (not slices and channels == 1):
        return ()
    return (sides["X"], sides["Y"], *(slices or [1]), *[channels] * (channels > 1))


def count_from_black(levels: NDArray[Any], photometric: int | None, bits: int) -> NDArray[Any]:
    """Return the levels of a picture as viewers show them; of one whose 0 is white (min-is-white) from black up."""
    return (1 << bits) - 1 - levels if photometric == MIN_IS_WHITE and levels.dtype.kind == "u" else levels


def read_stack(path: Path, channel: int | None = None) -> Volume:
    """Return the volume of a TIFF file, whose pictures are its slices, at no place; of several channels one, from 0.

    Spacing is what ImageJ wrote with a unit, OME's physical size, or a ``NAME.json`` beside it with
    ``{"spacing": [slices, rows, columns]}`` in mm, as nnU-Net has it. TIFF's own resolution states no distance of
    slices, and is not used.

    Raises:
        BadInput: the file is unreadable, or not one volume of grey levels.
    """
    with report_damage(path, "TIFF stack"):
        with tifffile.TiffFile(path) as file:
            series, page = file.series[0], file.pages.first
            if not (shape := stack_shape(path)):
                raise BadInput(f"{path}: holds several pictures of different kinds, or in colours; expected one volume")
            if len(shape) == 4 and channel is None:
                raise BadInput(f"{path}: has {shape[3]} channels; expected one: name it by --channel, counted from 0")
            require_sane(path, shape[:3], path.stat().st_size)
            if series.dtype is None or series.dtype.kind not in "buif":
                raise BadInput(f"{path}: has pixels of type {series.dtype}; expected one real number each")
            stated = _read_json(path) or _read_ome(file.ome_metadata)
            steps = stated or _read_imagej(file.imagej_metadata or {}, getattr(page, "resolution", (0, 0)))
            if page.compression in PLAIN:
                stored = count_from_black(series.asarray(), page.photometric, page.bitspersample)
            else:
                stored = _read_pictures(path).reshape(series.shape)
            by_channel = np.moveaxis(stored, series.axes.index(CHANNEL), 0) if len(shape) == 4 else stored[None]
            voxels = by_channel[channel or 0].reshape(shape[2::-1])
        depth, down, along = steps or (1.0, 1.0, 1.0)
        affine = np.diag([along, down, depth, 1])
        volume = place_volume(path, np.asarray(voxels).T, affine, is_located=False, header=StackHeader(steps))
        return replace(volume, is_measured=steps is not None)


def _read_pictures(path: Path) -> NDArray[Any]:
    """Return (slices, height, width) by Pillow, which knows more ways to compress."""
    with Image.open(path, formats=["TIFF"]) as pictures:
        return np.stack([picture_levels(picture) for picture in ImageSequence.Iterator(pictures)])


def picture_levels(picture: Image.Image) -> NDArray[Any]:
    """Return the levels of a picture by Pillow, which turns those of 8 bits whose 0 is white, but not deeper ones."""
    levels = np.array(picture)
    is_deep = isinstance(picture, TiffImageFile) and levels.dtype == np.uint16
    return count_from_black(levels, picture.tag_v2.get(PHOTOMETRIC), 16) if is_deep else levels  # type: ignore[attr-defined]


def _read_json(path: Path) -> Steps | None:
    """Return the spacing in the file beside a stack, whose name lacks the number of the channel that nnU-Net's images
    have.
    """
    for stem in (path.stem, re.sub(r"_\d{4}$", "", path.stem)):
        if (file := path.with_name(f"{stem}.json")).is_file():
            try:
                depth, down, along = (float(step) for step in parse_json(read_bytes(file))["spacing"])
                if not min(depth, down, along) > 0:
                    raise ValueError("a spacing of 0 or less")
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise BadInput(
                    f'{file}: states no spacing of {path.name} ({error!r}); expected {{"spacing": [slices, rows, '
                    "columns]}} in mm"
                ) from error
            return depth, down, along
    return None


def _read_ome(text: str | None) -> Steps | None:
    """Return the physical size of a voxel in OME-XML, in micrometres unless it names another unit."""
    try:
        pixels = tifffile.xml2dict(text or "")["OME"]["Image"]["Pixels"]
        units = [MILLIMETRES[pixels.get(f"PhysicalSize{axis}Unit", "µm")] for axis in "ZYX"]
        depth, down, along = (
            float(pixels[f"PhysicalSize{axis}"]) * unit for axis, unit in zip("ZYX", units, strict=True)
        )
    except (SyntaxError, LookupError, TypeError, ValueError, AttributeError):  # no such text, or not all sides
        return None
    return (depth, down, along) if min(depth, down, along) > 0 else None


def _read_imagej(said: dict[str, object], resolution: tuple[float, float]) -> Steps | None:
    unit, spacing = MILLIMETRES.get(str(said.get("unit"))), said.get("spacing")
    if unit is None or not isinstance(spacing, int | float) or not (spacing > 0 and min(resolution) > 0):
        return None
    return float(spacing) * unit, unit / resolution[1], unit / resolution[0]


def pack_stack(image: Volume, mask: NDArray[np.uint8]) -> bytes:
    """Return a TIFF stack with ``mask`` (x, y, z), and the spacing of ``image``."""
    steps = image.header.steps
    stated = {"spacing": steps[0], "unit": "mm", "axes": "ZYX"} if steps else {"axes": "ZYX"}
    resolution = (1 / steps[2], 1 / steps[1]) if steps else None
    file = io.BytesIO()
    tifffile.imwrite(file, mask.T, imagej=True, resolution=resolution, metadata=stated, compression=None)
    return file.getvalue()
