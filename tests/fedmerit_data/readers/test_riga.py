"""Readers of RIGA: experts, majority, and contours to masks."""

import layouts_fundus as layouts
import numpy as np
import pytest
from layouts_fundus import BLACK, BLUE, GREEN, WHITE, contour, disc_and_cup, draw, oval, photo
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit_data.kinds import KINDS
from fedmerit_data.preparation import Preparation
from fedmerit_data.readers import riga

PARTS = {"riga-binrushed": "BinRushed", "riga-magrabia": "Magrabia", "riga-messidor": "MESSIDOR"}


def only(kind, source):
    (site,) = KINDS[kind].find_sites(source)
    return site


def majority(experts=range(1, 7)):
    """Disc and cup by the votes of experts who shift by two pixels a time, as the generator draws them."""
    votes = np.array([disc_and_cup(2 * expert) for expert in experts])
    return votes.sum(0) * 2 > len(votes)


def dice(one, other):
    return 2 * (one & other).sum() / (one.sum() + other.sum())


def test_binrushed_pools_its_folders(tmp_path):
    for folder in ("BinRushed1-Corrected", "BinRushed2"):
        layouts.riga(tmp_path / "BinRushed" / folder, 1, suffix=".jpg")
    (tmp_path / "BinRushed" / "BinRushed2" / "Thumbs.db").write_text("")
    layouts.riga(tmp_path / "MESSIDOR", 7)
    for source in (tmp_path, tmp_path / "BinRushed"):
        site = only("riga-binrushed", source)
        assert site.name == "RIGA-BinRushed"
        assert [(case.name, case.patient) for case in site.cases] == [
            ("BinRushed1-Corrected-image1", "RIGA-BinRushed-BinRushed1-Corrected-image1"),
            ("BinRushed2-image1", "RIGA-BinRushed-BinRushed2-image1"),
        ]
        assert [path.name for path in (site.cases[0].label, *site.cases[0].more)] == [
            f"image1-{expert}.jpg" for expert in range(1, 7)
        ]
        assert site.left_out == (("BinRushed2/Thumbs.db", "not named imageKprime or imageK-1 to imageK-6"),)


def test_magrabia_with_its_capitals_and_a_missing_prime(tmp_path):
    layouts.riga(tmp_path / "MagrabiaMale", 1, name="Image")
    layouts.riga(tmp_path / "MagrabiFemale", 2)
    layouts.riga(tmp_path / "MagrabiFemale", 48, prime=False)
    site = only("riga-magrabia", tmp_path)
    assert [case.name for case in site.cases] == ["MagrabiFemale-image2", "MagrabiaMale-image1"]
    assert site.left_out == tuple(
        (f"MagrabiFemale/image48-{expert}.tif", "its clean image, prime, is missing") for expert in range(1, 7)
    )
    for case in site.cases:
        decoded = KINDS["riga-magrabia"].decode(case)
        np.testing.assert_array_equal(decoded.label[0], majority())


@pytest.mark.parametrize(
    ("kind", "folder", "number", "expert"),
    [
        ("riga-binrushed", "BinRushed1-Corrected", 44, 4),
        ("riga-binrushed", "BinRushed2", 20, 3),
        ("riga-magrabia", "MagrabiFemale", 26, 3),
    ],
)
def test_the_three_unusable_files_and_more_than_half_of_the_others(tmp_path, kind, folder, number, expert):
    layouts.riga(tmp_path / folder, number)
    site = only(kind, tmp_path)
    assert site.left_out == ((f"{folder}/image{number}-{expert}.tif", "known to be unusable in the release"),)
    others = [other for other in range(1, 7) if other != expert]
    np.testing.assert_array_equal(KINDS[kind].decode(site.cases[0]).label[0], majority(others))


def test_one_expert_instead_of_the_majority(tmp_path):
    layouts.riga(tmp_path, 1)
    layouts.riga(tmp_path, 2, experts=range(1, 4))
    kind = Preparation("riga-messidor", tmp_path, expert=5).layout
    (site,) = kind.find_sites(tmp_path)
    assert [case.name for case in site.cases] == ["image1"]
    assert site.left_out == (("image2prime.tif", "no contours of this image by expert 5"),)
    decoded = kind.decode(site.cases[0])
    np.testing.assert_array_equal(decoded.label[0], disc_and_cup(10))
    assert decoded.remarks == ()
    record = Preparation("riga-messidor", tmp_path, expert=5).array_options(tmp_path)
    assert record["expert"] == 5
    assert "expert" not in Preparation("riga-messidor", tmp_path).record()
    with pytest.raises(BadInput, match="expert 5: kind refuge has no masks by several experts; those that have: riga-"):
        Preparation("refuge", tmp_path, expert=5)
    with pytest.raises(BadInput, match="expert"):
        Preparation("riga-messidor", tmp_path, expert=7)


@pytest.mark.parametrize("colour", [BLACK, BLUE, GREEN, WHITE])
def test_a_thin_line_gives_the_mask_it_outlines(colour):
    masks = disc_and_cup()
    clean = photo(0)
    np.testing.assert_array_equal(riga.enclosed(riga.drawn(clean, draw(clean, masks, 1, colour), False)), masks)


@pytest.mark.parametrize("quality", [95, 85, 75])
@pytest.mark.parametrize("colour", [BLACK, GREEN, WHITE])
def test_compression_moves_a_contour_by_a_pixel_at_most(tmp_path, quality, colour):
    masks = disc_and_cup()
    pixels = {"prime": photo(0), "copy": draw(photo(0), masks, 3, colour)}
    for name in pixels:
        Image.fromarray(pixels[name]).save(tmp_path / f"{name}.jpg", quality=quality)
        pixels[name] = np.asarray(Image.open(tmp_path / f"{name}.jpg"))
    for mask, other in zip(riga.enclosed(riga.drawn(pixels["prime"], pixels["copy"], True)), masks, strict=True):
        assert not ((mask ^ other) & ~contour(other, 3)).any()


def test_a_line_with_gaps_is_closed():
    shape = (180, 240)
    disc, cup = oval(80, 100, 60, 48, 0.4, shape), oval(88, 90, 32, 24, 0.2, shape)
    line = contour(disc, 3) | contour(cup, 3)
    line[:, 95:98] = False  # across all four crossings
    found = riga.enclosed(line)
    assert dice(found[0], disc) > 0.97
    assert dice(found[1], cup) > 0.95


def test_what_is_no_contour():
    clean = photo(0)
    assert riga.enclosed(riga.drawn(clean, clean, False)) is None
    disc = disc_and_cup()[0]
    half = contour(disc)
    half[:, 50:] = False
    assert riga.enclosed(half) is None
    found = riga.enclosed(contour(disc))
    np.testing.assert_array_equal(found, (disc, np.zeros_like(disc)))
    large = oval(90, 90, 80, 70, shape=(180, 180))
    broken = contour(large)
    broken[:, 90:] = False
    assert riga.enclosed(broken | contour(oval(90, 60, 20, 20, shape=large.shape))) is None  # the cup is no disc


def test_experts_without_contours_are_left_out_with_a_remark(tmp_path):
    layouts.riga(tmp_path, 1)
    Image.fromarray(photo(1)).save(tmp_path / "image1-2.tif")
    Image.fromarray(draw(photo(1), disc_and_cup(8)[:1])).save(tmp_path / "image1-4.tif")
    decoded = KINDS["riga-messidor"].decode(only("riga-messidor", tmp_path).cases[0])
    assert decoded.remarks == (
        "image1-2.tif: no closed contour found; this expert is left out",
        "image1-4.tif: one closed contour found, taken as the disc; no cup",
    )
    np.testing.assert_array_equal(decoded.label[0, 0], majority((1, 3, 4, 5, 6))[0])
    for expert in range(1, 7):
        Image.fromarray(photo(1)).save(tmp_path / f"image1-{expert}.tif")
    with pytest.raises(BadInput, match=r"image1-1.tif: no closed contour found on it or on another copy"):
        KINDS["riga-messidor"].decode(only("riga-messidor", tmp_path).cases[0])


def test_bad_input_is_named(tmp_path):
    for kind, part in PARTS.items():
        with pytest.raises(BadInput, match="no such folder"):
            KINDS[kind].find_sites(tmp_path / "missing")
        (tmp_path / part).mkdir()
        with pytest.raises(BadInput, match=rf"{part}: has no cases in this layout"):
            KINDS[kind].find_sites(tmp_path)
    layouts.riga(tmp_path / "MESSIDOR", 1)
    layouts.riga(tmp_path / "MESSIDOR", 2, experts=())
    site = only("riga-messidor", tmp_path)
    assert site.left_out == (("image2prime.tif", "no expert's contours of this image"),)
    Image.fromarray(photo(1, (60, 60))).save(tmp_path / "MESSIDOR" / "image1-5.tif")
    with pytest.raises(BadInput, match=r"image1-5.tif: mask of shape"):
        KINDS["riga-messidor"].decode(site.cases[0])
    layouts.riga(tmp_path / "MESSIDOR", 1, suffix=".jpg")
    with pytest.raises(BadInput, match="case 1 already has the file"):
        KINDS["riga-messidor"].find_sites(tmp_path)
