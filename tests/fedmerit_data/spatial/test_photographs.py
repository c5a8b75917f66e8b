"""Photographs by their content: what the levels of a mask are, whatever its file is called."""

import numpy as np
import pytest
import tifffile
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit_data.spatial.photographs import load, load_levels, load_photograph

OUTER, INNER = np.zeros((2, 60, 60), bool)
OUTER[10:40, 15:45] = True
INNER[20:30, 25:35] = True
ORGAN = np.where(OUTER, 255, 0).astype(np.uint8)
RINGS = np.where(INNER, 255, np.where(OUTER, 128, 0)).astype(np.uint8)


def save(path, pixels, **options):
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.mark.parametrize("name", ["a.png", "a.gif"])
def test_a_palette_of_greys_gives_its_greys(tmp_path, name):
    """Adaptive palettes have their colours in any order: here white is the first."""
    adaptive = Image.fromarray(ORGAN).convert("RGB").quantize(2)
    assert np.array(adaptive)[0, 0] == 1
    adaptive.save(tmp_path / name)
    levels, remarks = load_levels(tmp_path / name, ())
    np.testing.assert_array_equal(levels, ORGAN)
    assert remarks == []


@pytest.mark.parametrize(("first", "allowed"), [((0, 0, 0), True), ((255, 0, 0), False)])
def test_a_palette_of_colours_gives_its_indices_if_its_background_is_black(tmp_path, first, allowed):
    indexed = Image.fromarray(OUTER.astype(np.uint8) + INNER)
    indexed = indexed.convert("L")
    indexed.putpalette([*first, 128, 0, 0, 0, 128, 0])
    indexed.save(tmp_path / "a.png")
    if allowed:
        levels, remarks = load_levels(tmp_path / "a.png", (1, 2))
        np.testing.assert_array_equal(levels, OUTER.astype(np.uint8) + INNER)
        assert remarks == ["palette of colours: its indices are taken as values"]
    else:
        with pytest.raises(BadInput, match=r"a\.png: has a palette of colours whose first is not black"):
            load_levels(tmp_path / "a.png", (1, 2))


@pytest.mark.parametrize("name", ["a.jpg", "a.webp", "a.png"])
@pytest.mark.parametrize(
    ("levels", "wanted", "message"),
    [
        (RINGS, (128, 255), "and the labels name 128; save it as PNG, or name only 255"),
        (RINGS, (), "with areas that are neither black nor white; save it as PNG"),
        (OUTER.astype(np.uint8), (1,), r"with levels up to \d+ of 255: not black and white"),
    ],
)
def test_levels_that_a_lossy_format_did_not_keep(tmp_path, name, levels, wanted, message):
    """By content: a file called PNG may hold a JPEG."""
    with (tmp_path / name).open("wb") as file:
        Image.fromarray(levels).save(file, "WEBP" if name == "a.webp" else "JPEG", quality=95)
    with pytest.raises(BadInput, match=rf"{name}: (JPEG|WEBP) mask.*{message}"):
        load_levels(tmp_path / name, wanted)


def test_a_file_called_jpeg_that_keeps_its_levels(tmp_path):
    with (tmp_path / "a.jpg").open("wb") as file:
        Image.fromarray(RINGS).save(file, "PNG")
    np.testing.assert_array_equal(load_levels(tmp_path / "a.jpg", (128, 255))[0], RINGS)
    save(tmp_path / "a.webp", OUTER.astype(np.uint8), lossless=True)
    np.testing.assert_array_equal(load_levels(tmp_path / "a.webp", (1,))[0], OUTER)


@pytest.mark.parametrize("wanted", [(), (255,)])
def test_soft_edges_of_black_and_white_are_cut(tmp_path, wanted):
    soft = Image.fromarray(ORGAN).resize((44, 44), Image.Resampling.BILINEAR).resize((60, 60), Image.Resampling.BICUBIC)
    soft.save(tmp_path / "a.png")
    levels, remarks = load_levels(tmp_path / "a.png", wanted)
    np.testing.assert_array_equal(levels, np.where(np.array(soft) > 127, 255, 0))
    assert remarks == ["soft edges: levels above 127 taken as 255, others as 0"]


@pytest.mark.parametrize("white", [(255,), (255, 255, 255)])
def test_what_is_transparent_in_a_mask_is_black(tmp_path, white):
    opacity = np.where(OUTER, 255, np.where(INNER | np.roll(OUTER, 1, 0), 90, 0))
    pixels = np.stack([*(np.full(OUTER.shape, level) for level in white), opacity], -1).astype(np.uint8)
    np.testing.assert_array_equal(load_levels(save(tmp_path / "a.png", pixels), ())[0], ORGAN)


def test_noise_is_no_soft_edge(tmp_path):
    noise = ORGAN.copy()
    noise[30:35] = np.random.default_rng(0).integers(0, 256, (5, 60))
    np.testing.assert_array_equal(load_levels(save(tmp_path / "a.png", noise), ())[0], noise)


@pytest.mark.parametrize("wanted", [(), (255,), (128, 255)])
def test_exact_levels_are_kept(tmp_path, wanted):
    for levels in (RINGS, RINGS.astype(np.uint16) * 200, np.where(OUTER, 1 + INNER, 255).astype(np.uint8)):
        np.testing.assert_array_equal(load_levels(save(tmp_path / "a.png", levels), wanted)[0], levels)


def test_what_viewers_turn_is_refused(tmp_path):
    exif = Image.Exif()
    exif[0x112] = 6
    for name in ("a.png", "a.jpg", "a.tif"):
        path = save(tmp_path / name, ORGAN, exif=exif)
        for read in (lambda path: load(path, "L"), lambda path: load_levels(path, ())):
            with pytest.raises(BadInput, match=rf"{name}: is stored rotated \(EXIF orientation 6\).*save it upright"):
                read(path)


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_grey_levels_of_16_bits_are_read_whole(tmp_path, name):
    deep = np.arange(3600, dtype=np.uint16).reshape(60, 60) * 17
    path = save(tmp_path / name, deep)
    np.testing.assert_array_equal(load_photograph(path, "L"), deep)
    np.testing.assert_array_equal(load_photograph(path, "RGB")[..., 2], deep)
    np.testing.assert_array_equal(load_levels(path, (5,))[0], deep)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_planes_of_a_tiff_file_that_may_be_slices_are_refused(tmp_path, kind):
    """As tifffile stores an array (4, height, width) without further options."""
    tifffile.imwrite(tmp_path / "p.tif", np.full((4, 12, 12), 200, kind), photometric="rgb", planarconfig="separate")
    with pytest.raises(BadInput, match="its 4 planes are colours or slices of a volume"):
        load_photograph(tmp_path / "p.tif", "L")


def test_a_mask_of_more_than_8_bits_keeps_its_values(tmp_path):
    """Pillow cuts 1 and 2 of 16 bits to 0, and does not read 64 bits."""
    for kind, colours in ((np.uint16, 3), (np.float64, 1)):
        pixels = np.repeat(ORGAN.astype(kind)[..., None], colours, axis=2)
        tifffile.imwrite(tmp_path / "p.tif", pixels, photometric="rgb" if colours > 1 else "minisblack")
        np.testing.assert_array_equal(load_levels(tmp_path / "p.tif", (1,))[0], ORGAN)


def test_an_orientation_that_exif_does_not_have_is_upright(tmp_path):
    exif = Image.Exif()
    exif[0x112] = 0
    Image.fromarray(ORGAN).save(tmp_path / "p.jpg", exif=exif)
    assert load(tmp_path / "p.jpg", "L").shape == ORGAN.shape


def test_several_pictures_are_no_damage(tmp_path):
    Image.fromarray(ORGAN).save(tmp_path / "a.gif", save_all=True, append_images=[Image.fromarray(RINGS)])
    with pytest.raises(BadInput, match=r"a\.gif: has 2 pictures; expected one: save the one to use as a file$"):
        load(tmp_path / "a.gif", "L")
