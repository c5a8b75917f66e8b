"""Pictures of prepared sites."""

import numpy as np
import pytest
from layouts import fundus_site, prepare, prostate_site
from PIL import Image

from fedmerit.schema.site_folder import Case, open_sites
from fedmerit_data.overview import draw, intensities, largest, montage


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for seed, site in enumerate(("HK", "UCL")):
        prostate_site(folder / "raw" / site, cases=3 + 2 * seed, seed=seed)
    prepare("prostate-multisite", folder / "sites", source=folder / "raw", size=24, field_of_view=24)
    return folder / "sites"


def case(tmp_path, image, label):
    for name, array, dtype in (("image", image, np.float32), ("label", label, np.uint8)):
        np.save(tmp_path / f"{name}.npy", np.asarray(array, dtype))
    return Case("a", "a", tmp_path / "image.npy", tmp_path / "label.npy")


def test_the_same_folders_give_the_same_bytes(prepared, tmp_path):
    for name in ("a", "b"):
        draw(prepared, tmp_path / name)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["intensities.png", "montage.png"]
    for name in ("montage.png", "intensities.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        with Image.open(tmp_path / "a" / name) as picture:
            assert set(picture.info) <= {"dpi"}  # neither date nor version
            assert len(np.unique(picture.convert("L"))) > 50


def test_a_montage_has_a_row_per_site_and_an_outline_per_label(prepared, tmp_path):
    panels = montage(open_sites(prepared)).axes
    assert [panel.get_ylabel() for panel in panels[::4]] == ["HK", "UCL"]
    assert [panel.get_title() for panel in panels] == [
        "Case00", "Case01", "Case02", "", "Case00", "Case01", "Case03", "Case04"
    ]  # fmt: skip
    assert [len(panel.images) for panel in panels] == [1, 1, 1, 0, 1, 1, 1, 1]
    assert [len(panel.collections) for panel in panels] == [1, 1, 1, 0, 1, 1, 1, 1]
    fundus_site(tmp_path / "raw" / "Domain1")
    prepare("fundus-rois", tmp_path / "sites", source=tmp_path / "raw", size=32)
    for panel in montage(open_sites(tmp_path / "sites")).axes:
        assert len(panel.collections) == 2  # disc and cup


def test_one_curve_per_site(prepared):
    (panel,) = intensities(open_sites(prepared)).axes
    assert [line.get_label() for line in panel.lines] == ["HK", "UCL"]
    for line in panel.lines:
        x, y = line.get_data()
        assert np.sum(y) * (x[1] - x[0]) == pytest.approx(1, abs=0.01)  # all but the outermost thousandths


def test_the_slice_that_shows_most_is_shown(tmp_path):
    image = np.zeros((3, 3, 8, 8))
    image[1, 0, 2:6] = 1
    label = np.zeros((3, 2, 8, 8))
    label[0, 0, 1] = label[1, 1, 2:5] = 1
    picture, masks = largest(case(tmp_path, image, label))
    assert picture.shape == (8, 8, 3)
    np.testing.assert_array_equal(picture[..., 0] > 0.5, image[1, 0] > 0.5)
    np.testing.assert_array_equal(masks, label[1])
    picture, masks = largest(case(tmp_path, image[:, :1], label * 0))
    np.testing.assert_array_equal(picture, image[1, 0])
    assert not masks.any()
