import numpy as np
import pytest
from layouts import fundus_site, rings, save_png
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit_data.readers import fundus_rois as fundus


def only(source):
    (site,) = fundus.find_sites(source)
    return site


def test_train_and_test_are_pooled_and_eyes_share_a_patient(tmp_path):
    fundus_site(tmp_path / "Domain1")
    (tmp_path / "Domain1" / "train" / "ROIs" / "image" / "Thumbs.db").write_text("")
    site = only(tmp_path)
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
    decoded = fundus.KIND.decode(only(tmp_path).cases[0])
    disc, cup = decoded.label[0]
    np.testing.assert_array_equal(disc, rings() < 255)
    np.testing.assert_array_equal(cup, rings() == 0)
    image = np.asarray(Image.open(site / "train" / "ROIs" / "image" / "a.png"))
    np.testing.assert_array_equal(decoded.image[0], image.transpose(2, 0, 1))


def test_values_a_little_off_are_the_nearest(tmp_path):
    site = fundus_site(tmp_path / "Domain1", train=("a",), test=())
    save_png(site / "train" / "ROIs" / "mask" / "a.png", np.where(rings() == 0, 3, rings() - 2).astype(np.uint8))
    np.testing.assert_array_equal(fundus.KIND.decode(only(tmp_path).cases[0]).label[0, 1], rings() == 0)


def test_no_cases(tmp_path):
    (tmp_path / "Domain1" / "train").mkdir(parents=True)
    with pytest.raises(BadInput, match="Domain1: no cases in this site folder"):
        fundus.find_sites(tmp_path)


@pytest.mark.parametrize("kind", ["image", "mask"])
def test_a_file_alone_is_named(tmp_path, kind):
    site = fundus_site(tmp_path / "Domain1")
    (site / "test" / "ROIs" / kind / "c-L.png").unlink()
    with pytest.raises(BadInput, match=r"c-L.png: .*is missing"):
        fundus.find_sites(tmp_path)


def test_one_case_in_train_and_test(tmp_path):
    fundus_site(tmp_path / "Domain1", train=("a", "b"), test=("a",))
    with pytest.raises(BadInput, match="case a already has the file"):
        fundus.find_sites(tmp_path)


@pytest.mark.parametrize("kind", ["image", "mask"])
def test_an_unreadable_file_is_named(tmp_path, kind):
    site = fundus_site(tmp_path / "Domain1", train=("a",), test=())
    path = site / "train" / "ROIs" / kind / "a.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(BadInput, match=f"{kind}/a.png: not a readable image"):
        fundus.KIND.decode(only(tmp_path).cases[0])


def test_another_shape(tmp_path):
    site = fundus_site(tmp_path / "Domain1", train=("a",), test=())
    save_png(site / "train" / "ROIs" / "mask" / "a.png", rings(40))
    with pytest.raises(BadInput, match=r"mask/a.png: mask of shape \(40, 40\), but its image a.png has \(32, 32\)"):
        fundus.KIND.decode(only(tmp_path).cases[0])


def test_another_value(tmp_path):
    site = fundus_site(tmp_path / "Domain1", train=("a",), test=())
    mask = rings()
    mask[3, 3] = 64
    save_png(site / "train" / "ROIs" / "mask" / "a.png", mask)
    with pytest.raises(BadInput, match=r"mask/a.png: has the value 64; expected 0 \(cup\)"):
        fundus.KIND.decode(only(tmp_path).cases[0])
