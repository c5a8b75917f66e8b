"""Readers of public fundus sets: their sites, the files left out, and disc and cup."""

import layouts_fundus as layouts
import numpy as np
import pytest
from layouts import fundus_site, rings, save_png
from layouts_fundus import SHAPE, WRITE, decoded, disc_and_cup, only, photo
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit_data.kinds import KINDS
from fedmerit_data.readers.releases import FUNDUS_ROIS


def test_drions_masks_survive_jpeg(tmp_path):
    layouts.drions(tmp_path)
    with Image.open(tmp_path / "train" / "groundtruth" / "image_001.jpg") as mask:
        assert len(np.unique(np.asarray(mask))) > 2
    for name, case in decoded("drions-db", tmp_path).items():
        np.testing.assert_array_equal(case.label[0, 0], disc_and_cup(int(name[-3:]) % 7)[0])
        assert case.label.shape == (1, 1, *SHAPE)


def test_one_case_in_two_folders(tmp_path):
    layouts.drions(tmp_path, train=(1,), test=(1,))
    with pytest.raises(BadInput, match="case image_001 already has the file"):
        KINDS["drions-db"].find_sites(tmp_path)


def test_drishti_is_what_at_least_half_of_four_experts_marked(tmp_path):
    discs, cups = layouts.drishti(tmp_path)
    site = only("drishti-gs1", tmp_path)
    assert site.name == "Drishti-GS1"
    assert [(case.name, case.patient) for case in site.cases] == [
        ("drishtiGS_001", "Drishti-GS1-drishtiGS_001"),
        ("drishtiGS_002", "Drishti-GS1-drishtiGS_002"),
        ("drishtiGS_004", "Drishti-GS1-drishtiGS_004"),
    ]
    assert len(site.left_out) == 6
    assert site.left_out[0] == (
        "Test/Test_GT/drishtiGS_001/AvgBoundary/drishtiGS_001_ODAvgBoundary.txt",
        "neither an image nor a soft map",
    )
    for name, case in decoded("drishti-gs1", tmp_path).items():
        np.testing.assert_array_equal(case.label[0, 0], discs.sum(0) >= 2)
        np.testing.assert_array_equal(case.label[0, 1], cups.sum(0) >= 2)
        np.testing.assert_array_equal(case.image[0], photo(int(name[-3:])).transpose(2, 0, 1))
        assert case.image.dtype == np.float32
        assert case.label.dtype == np.uint8
        assert case.spacing is None


def test_ichallenge_reads_palette_indices_not_colours(tmp_path):
    layouts.ichallenge(tmp_path)
    cases = decoded("ichallenge", tmp_path)
    assert list(cases) == ["H0002", "P0195"]
    for shift, case in enumerate(cases.values()):
        np.testing.assert_array_equal(case.label[0, 0], disc_and_cup(shift)[0])


def test_ichallenge_refuses_three_classes(tmp_path):
    layouts.ichallenge(tmp_path)
    save_png(tmp_path / "Annotations" / "H0002.png", np.pad(np.uint8([[0, 1, 2]]), ((0, 89), (0, 117))))
    with pytest.raises(BadInput, match=r"H0002.png: holds the values \[0, 1, 2\]; expected 0 and one other"):
        decoded("ichallenge", tmp_path)


def test_refuge_pools_its_parts(tmp_path):
    layouts.refuge(tmp_path)
    site = only("refuge", tmp_path)
    assert [case.name for case in site.cases] == ["T0001", "V0001", "g0001", "n0001"]
    assert site.left_out == (
        ("Annotation-Training400/Fovea_location.xlsx", "neither a .jpg image nor below Disc_Cup_Masks"),
    )
    for (name, case), shift in zip(sorted(decoded("refuge", tmp_path).items()), (3, 2, 0, 1), strict=True):
        np.testing.assert_array_equal(case.label[0], disc_and_cup(shift), err_msg=name)
        assert np.abs(case.image[0] - photo(shift).transpose(2, 0, 1)).mean() < 5


def test_rim_one_is_the_left_half_and_both_eyes_are_one_patient(tmp_path):
    layouts.rim_one(tmp_path)
    site = only("rim-one-r3", tmp_path)
    assert [(case.name, case.patient) for case in site.cases] == [
        ("G-1-R", "RIM-ONE-r3-G-1"),
        ("N-1-L", "RIM-ONE-r3-N-1"),
        ("N-1-R", "RIM-ONE-r3-N-1"),
        ("N-2-L", "RIM-ONE-r3-N-2"),
        ("S-3-L", "RIM-ONE-r3-S-3"),
    ]
    assert {reason for _, reason in site.left_out} == {"neither a stereo pair nor an average mask"}
    assert len(site.left_out) == 10
    cases = decoded("rim-one-r3", tmp_path)
    for shift, name in enumerate(("N-1-L", "N-1-R", "N-2-L", "G-1-R", "S-3-L")):
        assert cases[name].image.shape == (1, 3, *SHAPE)
        np.testing.assert_array_equal(cases[name].label[0], disc_and_cup(shift))
        left = photo(shift, (SHAPE[0], 2 * SHAPE[1]))[:, : SHAPE[1]]
        assert np.abs(cases[name].image[0] - left.transpose(2, 0, 1)).mean() < 5


def test_rim_one_refuses_what_is_no_stereo_pair(tmp_path):
    layouts.rim_one(tmp_path, eyes=("N-1-L",))
    Image.fromarray(photo(0, (120, 90))).save(tmp_path / "Healthy" / "Stereo Images" / "N-1-L.jpg")
    with pytest.raises(BadInput, match=r"N-1-L.jpg: 90 x 120 pixels; expected a stereo pair"):
        decoded("rim-one-r3", tmp_path)


@pytest.mark.parametrize("kind", ["drishti-gs1", "refuge"])
def test_the_disc_only(tmp_path, kind):
    WRITE[kind](tmp_path)
    both, disc = decoded(kind, tmp_path), decoded(f"{kind}-disc", tmp_path)
    assert both.keys() == disc.keys()
    for name in both:
        np.testing.assert_array_equal(disc[name].label, both[name].label[:, :1])
        np.testing.assert_array_equal(disc[name].image, both[name].image)


def only_rois(source):
    (site,) = FUNDUS_ROIS.find_sites(source)
    return site


def test_train_and_test_are_pooled_and_eyes_share_a_patient(tmp_path):
    fundus_site(tmp_path / "Domain1")
    (tmp_path / "Domain1" / "train" / "ROIs" / "image" / "Thumbs.db").write_text("")
    site = only_rois(tmp_path)
    assert [(case.name, case.patient) for case in site.cases] == [
        ("a-L", "Domain1-a"),
        ("a-R", "Domain1-a"),
        ("b-L", "Domain1-b"),
        ("c-L", "Domain1-c"),
        ("d-R", "Domain1-d"),
    ]
    assert site.left_out == (("train/ROIs/image/Thumbs.db", "not a .png"),)


@pytest.mark.parametrize("mode", ["L", "RGB", "P"])
def test_disc_includes_cup(tmp_path, mode):
    site = fundus_site(tmp_path / "Domain1", train=("a",), test=())
    mask = site / "train" / "ROIs" / "mask" / "a.png"
    Image.fromarray(rings()).convert(mode).save(mask)
    drawn = FUNDUS_ROIS.decode(only_rois(tmp_path).cases[0])
    disc, cup = drawn.label[0]
    np.testing.assert_array_equal(disc, rings() < 255)
    np.testing.assert_array_equal(cup, rings() == 0)
    image = np.asarray(Image.open(site / "train" / "ROIs" / "image" / "a.png"))
    np.testing.assert_array_equal(drawn.image[0], image.transpose(2, 0, 1))


def test_another_value(tmp_path):
    site = fundus_site(tmp_path / "Domain1", train=("a",), test=())
    mask = rings()
    mask[3, 3] = 64
    save_png(site / "train" / "ROIs" / "mask" / "a.png", mask)
    with pytest.raises(BadInput, match=r"mask/a.png: has the value 64; expected 0 \(cup\)"):
        FUNDUS_ROIS.decode(only_rois(tmp_path).cases[0])
