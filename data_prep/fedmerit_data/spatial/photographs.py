"""Photographs: images, masks on the grid of their image, and cases of one slice."""

import re
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import TiffImageFile
from scipy.ndimage import maximum_filter, minimum_filter

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Decoded, RawCase, require_same_shape
from fedmerit_data.spatial.stacks import PLAIN, TIFF, count_from_black, picture_levels
from fedmerit_data.spatial.volumes import ITK, report_damage

CUP, RIM, BACKGROUND = 0, 128, 255
TOLERANCE = 5  # grey levels by which a mask may differ, as from another 8-bit encoder
RINGS = [np.abs(np.arange(256) - value) <= TOLERANCE for value in (CUP, RIM, BACKGROUND)]  # of each grey level
HALF = 127  # threshold of masks that are 0 and 255, with soft edges or after JPEG
NEAR, UNDECIDED = 32, 0.1  # grey levels around 0 and 255, and the share of such a mask that may be further away
BLACK_OR_WHITE = 0.02  # the same of a picture that nothing calls a mask
MAX_PIXELS = 2**26  # more than any fundus camera has; a header that promises more is damaged
FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP")  # all that Pillow may open; it would run others as programs
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # of 8 bits: Pillow truncates deeper ones
DEEP = ("I;16", "I;16L", "I;16B", "I", "F")  # grey levels of more bits
LOSSLESS_WEBP = b"VP8L"  # within the first bytes of such a file
TURNED = range(2, 9)  # of EXIF's orientations; some programs write 0, which has no meaning
PLANES, SAMPLES, SEPARATE = 284, 277, 2  # tags of TIFF, and what says that a colour follows the other
LUMA = 0.299, 0.587, 0.114
PNG, PNG_HEADER = b"\x89PNG", 26  # begins a PNG file; bytes up to depth and type
COLOURS, GREY_AND_ALPHA, COLOURS_AND_ALPHA = 2, 4, 6  # types of several numbers a pixel
STEEP = 160  # grey levels by which most 3 x 3 pixels within a soft edge differ less
FEW = 16  # different levels of a mask; soft edges have more, or levels in the middle
EYE = re.compile(r"-[LR]$", re.IGNORECASE)
Levels = NDArray[Any]  # (height, width) grey levels of a mask


@contextmanager
def _opened(path: Path, modes: Collection[str]) -> Iterator[Image.Image]:
    """Open an image whatever format its name says, of one picture, stored upright, of one of ``modes``.

    Raises:
        BadInput: the file is not such an image, damaged, or larger than any photograph.
    """
    with report_damage(path, "image"), Image.open(path, formats=FORMATS) as file:
        if file.width * file.height > MAX_PIXELS:
            raise ValueError(f"{file.width} x {file.height} pixels, more than any photograph has")
        if file.mode not in modes:
            raise BadInput(f"{path}: pixels of type {file.mode}; expected 8 bits per colour: convert it")
        if file.format not in ("JPEG", "MPO") and (pictures := getattr(file, "n_frames", 1)) != 1:
            raise BadInput(f"{path}: has {pictures} pictures; expected one: save the one to use as a file")
        tags = file.tag_v2 if isinstance(file, TiffImageFile) else {}
        if tags.get(PLANES) == SEPARATE and tags.get(SAMPLES, 1) > 3:
            raise BadInput(
                f"{path}: its {tags[SAMPLES]} planes are colours or slices of a volume; save slices as "
                "pages of grey levels (tifffile: photometric='minisblack'), or one picture as PNG"
            )
        _require_upright(path, file.getexif().get(ExifTags.Base.Orientation))
        yield file


def _require_upright(path: Path, orientation: object) -> None:
    if orientation in TURNED:
        raise BadInput(
            f"{path}: is stored rotated (EXIF orientation {orientation}), and its mask or image may fit either view; "
            "save it upright"
        )


def load(path: Path, mode: str) -> NDArray[np.uint8]:
    """Return the pixels of an image, (height, width) or (height, width, colours), converted to Pillow's ``mode``.

    Raises:
        BadInput: the file is not an image of 8 bits, damaged, or larger than any photograph; or viewers turn it.
    """
    with _opened(path, MODES) as file:
        return np.array(file if file.mode == mode else file.convert(mode))


def load_photograph(path: Path, mode: str) -> NDArray[np.float32]:
    """Return the pixels of a photograph as `load` does, but with levels of more than 8 bits as stored."""
    if (levels := _read_deep_tiff(path)) is None:
        with _opened(path, (*MODES, *DEEP)) as file:
            if file.mode in DEEP:
                levels = picture_levels(file)[..., None]
            elif _has_deep_colours(path, file.format):
                levels = _read_deep_colours(path)
            else:
                return np.array(file if file.mode == mode else file.convert(mode), dtype=np.float32)
    colours = levels.astype(np.float32)
    if colours.shape[-1] > 2:
        return to_grey(colours[..., :3]) if mode == "L" else colours[..., :3]
    return colours[..., 0] if mode == "L" else np.repeat(colours[..., :1], 3, axis=2)


def _read_deep_tiff(path: Path) -> NDArray[Any] | None:
    """Return (height, width, colours) of a TIFF file whose numbers Pillow cuts or does not read, by tifffile.

    `None` of any other file, and of one that tifffile does not decompress: its reader says what is wrong with it.
    """
    if path.suffix.lower() not in TIFF or not path.is_file():
        return None
    try:
        with tifffile.TiffFile(path) as file:
            page = file.pages.first
            samples, kind = page.samplesperpixel, page.dtype
            is_plain = len(file.pages) == 1 and page.compression in PLAIN and page.photometric in (0, 1, 2)
            is_deep = kind is not None and kind.kind in "uif" and kind.itemsize > 1
            is_separate = page.planarconfig == SEPARATE and samples > 1
            if not (is_plain and is_deep) or (is_separate and samples > 3) or page.size > 4 * MAX_PIXELS:
                return None
            _require_upright(path, page.tags.valueof(ExifTags.Base.Orientation))
            pixels = count_from_black(page.asarray(), page.photometric, page.bitspersample)
    except BadInput:
        raise
    except Exception:  # any error over a damaged file
        return None
    return np.moveaxis(pixels, 0, -1) if is_separate else pixels.reshape(*pixels.shape[:2], samples)


def _read_deep_colours(path: Path) -> NDArray[Any]:
    """Return (height, width, colours) of a picture in colours or with transparency of more than 8 bits each."""
    with report_damage(path, "image"):
        with path.open("rb") as file:
            header = file.read(PNG_HEADER)
        if header.startswith(PNG) and header[25] == GREY_AND_ALPHA:  # which ITK does not read
            content = bytearray(path.read_bytes())
            content[24:26] = 8, COLOURS_AND_ALPHA  # as many bytes a pixel, which Pillow does not cut
            content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
            with Image.open(BytesIO(content), formats=["PNG"]) as picture:
                return np.array(picture).view(">u2")
        colours: NDArray[Any] = ITK.GetArrayFromImage(ITK.ReadImage(str(path)))
    if colours.dtype.itemsize == 1:  # as ITK reads planes of colours
        raise BadInput(f"{path}: stores its colours in a way that is not read without loss; save it as PNG")
    return colours


def to_grey(colours: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the luma (height, width) of red, green and blue by ITU-R BT.601, as Pillow does, without rounding."""
    grey: NDArray[np.float32] = (colours @ np.array(LUMA, np.float32)).astype(np.float32)
    return grey


def _has_deep_colours(path: Path, stored_as: str | None) -> bool:
    """Return whether a picture in colours has more than 8 bits of each, which Pillow cuts."""
    if stored_as == "PNG":
        with path.open("rb") as file:
            header = file.read(PNG_HEADER)
        return header[24] == 16 and header[25] in (COLOURS, GREY_AND_ALPHA, COLOURS_AND_ALPHA)
    if stored_as == "TIFF":
        with report_damage(path, "image"), tifffile.TiffFile(path) as file:
            page = file.pages.first
            return page.samplesperpixel > 1 and page.dtype is not None and page.dtype.itemsize > 1
    return False


def load_colours(path: Path) -> NDArray[np.int64]:
    """Return the colours of a mask (height, width), red, green and blue as one number 0xRRGGBB; transparent as black.

    Raises:
        BadInput: it is unreadable, or of a format that does not store exact colours.
    """
    with _opened(path, MODES) as file:
        if file.format in ("JPEG", "MPO") or (file.format == "WEBP" and LOSSLESS_WEBP not in _first_bytes(path)):
            raise BadInput(f"{path}: {file.format} mask, whose colours are not exact; save it as PNG")
        pixels = np.array(file.convert("RGBA")).astype(np.int64)
    colours: NDArray[np.int64] = (pixels[..., :3] * (65536, 256, 1)).sum(axis=-1)
    return np.where(pixels[..., 3] == 0, 0, colours)


def load_levels(path: Path, wanted: Collection[int]) -> tuple[Levels, list[str]]:
    """Return the levels of a mask, and remarks on how they were found.

    A palette of greys gives its greys, one of colours its indices. If only 255 is ``wanted``, or nothing is, a mask of
    black and white with soft edges, and any of a format that does not store exact levels, is cut at `HALF`.

    Args:
        wanted: All values that have a meaning; empty: every value above 0 is one label.

    Raises:
        BadInput: it is unreadable, in colours, or its levels are not known exactly and have to be.
    """
    remarks = list[str]()
    stored_as, lossy, palette = "TIFF", False, None
    if (levels := _read_deep_tiff(path)) is None:
        with _opened(path, (*MODES, *DEEP)) as file:
            stored_as = "JPEG" if file.format == "MPO" else str(file.format)
            lossy = stored_as == "JPEG" or (stored_as == "WEBP" and LOSSLESS_WEBP not in _first_bytes(path))
            levels = _read_deep_colours(path) if _has_deep_colours(path, file.format) else picture_levels(file)
            if file.mode == "1":  # its white is 1, or 255 if that is what labels name
                levels = levels * np.uint8(255 if 255 in wanted and 1 not in wanted else 1)
            if file.mode in ("P", "PA"):
                palette = np.zeros((256, 3), np.uint8)
                stated = np.reshape(file.getpalette("RGB") or [], (-1, 3))
                palette[: len(stated)] = stated
    if levels.ndim == 3:
        alpha = levels[..., -1:]
        if levels.shape[-1] in (2, 4) and alpha.any():  # else its content is all transparent
            levels = np.where(alpha > alpha.max() // 2, levels[..., :-1], 0)
        if np.ptp(levels, axis=2).max() > (NEAR if lossy else 0):
            raise BadInput(
                f"{path}: the mask is in colours, such as #{_common_colour(levels)}; name those of each label, "
                "--labels NAME=#RRGGBB"
            )
        levels = levels[..., 0]
    if palette is not None:
        levels, remarks = _read_palette(path, levels, palette)
    if lossy:
        _require_two_levels(path, levels, wanted, stored_as)
        remarks.append(f"{stored_as} mask: levels above 127 taken as 255, others as 0")
        return np.where(levels > HALF, 255, 0).astype(np.uint8), remarks
    if set(wanted) <= {255} and _has_soft_edges(levels):
        remarks.append("soft edges: levels above 127 taken as 255, others as 0")
        return np.where(levels > HALF, 255, 0).astype(np.uint8), remarks
    return levels, remarks


def _common_colour(pixels: NDArray[Any]) -> str:
    """Return the most frequent colour (height, width, 3 or more) except black, as six hexadecimal digits."""
    found, counts = np.unique(pixels[..., :3].reshape(-1, 3), axis=0, return_counts=True)
    counts[~found.any(axis=1)] = 0
    return "".join(f"{int(level):02x}" for level in found[counts.argmax()])


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)


def _read_palette(path: Path, index: Levels, palette: NDArray[Any]) -> tuple[Levels, list[str]]:
    used = palette[np.unique(index)]
    if not np.ptp(used, axis=1).any():
        return palette[index, 0], []
    if palette[0].any():
        raise BadInput(
            f"{path}: has a palette of colours whose first is not black, so its background is not known; save the mask "
            "as grey levels"
        )
    return index, ["palette of colours: its indices are taken as values"]


def _require_two_levels(path: Path, levels: Levels, wanted: Collection[int], stored_as: str) -> None:
    """Raise `BadInput` unless a mask of inexact levels is black and white, and has no other meaning."""
    highest = int(levels.max())
    if 0 < highest <= HALF:
        raise BadInput(
            f"{path}: {stored_as} mask with levels up to {highest} of 255: not black and white; save it as PNG"
        )
    if others := sorted(set(wanted) - {255}):
        raise BadInput(
            f"{path}: {stored_as} mask, whose levels are not exact, and the labels name {others[0]}; save it "
            "as PNG, or name only 255 if it is black and white"
        )
    if _has_areas(levels, tolerance=NEAR // 2):
        raise BadInput(f"{path}: {stored_as} mask with areas that are neither black nor white; save it as PNG")


def _has_areas(levels: Levels, tolerance: int) -> bool:
    """Return whether 3 x 3 pixels together have one level between black and white, as those of an edge do not."""
    between = (levels > NEAR) & (levels < 255 - NEAR)
    if not between.any():
        return False
    rows, columns = (np.flatnonzero(between.any(axis=axis)) for axis in (1, 0))
    levels = levels[max(rows[0] - 1, 0) : rows[-1] + 2, max(columns[0] - 1, 0) : columns[-1] + 2]
    lowest, highest = minimum_filter(levels, 3), maximum_filter(levels, 3)
    even = highest.astype(np.int64) - lowest <= tolerance
    return bool((even & (lowest > NEAR) & (highest < 255 - NEAR)).any())


def _has_soft_edges(levels: Levels) -> bool:
    """Return whether a mask is black and white, with levels in between that are only those of edges."""
    if levels.dtype != np.uint8 or levels.min() > NEAR:
        return False
    counts = np.bincount(levels.ravel(), minlength=256)
    between, kinds = counts[NEAR + 1 : 255 - NEAR].any(), np.count_nonzero(counts)
    if not ((between or kinds > FEW) and kinds > 2):
        return False
    if counts[255 - NEAR + 1 :].sum() <= counts[1:NEAR].sum():
        return False  # labels 1, 2, ...
    lowest, highest = minimum_filter(levels, 3), maximum_filter(levels, 3)
    rough = (lowest > 0) & (highest < 255) & (highest - lowest > STEEP)
    if 2 * rough.sum() > ((levels > 0) & (levels < 255)).sum():
        return False  # noise
    return not _has_areas(levels, tolerance=0)


def load_mask(case: RawCase, path: Path, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the grey levels (height, width) of one of a case's masks; `BadInput` unless it has the shape of its
    image.
    """
    grey = load(path, "L")
    require_same_shape(replace(case, label=path), image[..., 0], grey)
    return grey


def share_between(grey: NDArray[Any]) -> float:
    """Return the share of pixels that are neither near 0 nor near 255."""
    return float(np.mean((grey > NEAR) & (grey < 255 - NEAR)))


def binarise_mask(path: Path, grey: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return the bright pixels of a mask of 0 and 255, whose edges may be soft.

    Raises:
        BadInput: too many grey levels are in between, as in a photograph.
    """
    share = share_between(grey)
    if share > UNDECIDED:
        raise BadInput(f"{path}: {share:.0%} of it is neither 0 nor 255, as in a photograph; expected a mask")
    return grey > HALF


def make_case(image: NDArray[np.uint8], *masks: NDArray[np.bool_], remarks: tuple[str, ...] = ()) -> Decoded:
    """Return a photograph (height, width, colours) and its masks (height, width) as a case of one slice."""
    colours = image.transpose(2, 0, 1).astype(np.float32, order="C")
    return Decoded(colours[None], np.stack(masks).astype(np.uint8)[None], remarks=remarks)


def decode_rings(case: RawCase) -> Decoded:
    """Return one photograph as a case of one slice; its mask is 0 in the cup, 128 in the rim and 255 outside.

    The labels are the disc, with the cup in it, and the cup.

    Raises:
        BadInput: a file is unreadable, image and mask differ in shape, or the mask has another value.
    """
    image = load(case.image, "RGB")
    grey = load_mask(case, case.label, image)
    cup, rim, background = (table[grey] for table in RINGS)
    stray = grey[~(cup | rim | background)]
    if stray.size:
        raise BadInput(f"{case.label}: has the value {stray[0]}; expected 0 (cup), 128 (disc rim), 255 (background)")
    return make_case(image, ~background, cup)


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
