"""Copies of prepared sites at a lower resolution."""

import numpy as np
import pytest
from run_factory import make_sites

from fedmerit.errors import BadInput
from fedmerit.files import read_json, sha256, write_json
from fedmerit.schema.site_folder import open_sites
from fedmerit_lab.partitioning.downsampling import shrink

READ = [{"case": "a", "plane": "axial", "kept": {"disc": 1.0}, "lost": {"disc": [0, 1]}}]


@pytest.fixture
def sites(tmp_path):
    """A with images of 4 x 8 pixels, of which the first volume has slices 3 mm apart of 0.5 x 0.7 mm."""
    root = make_sites(tmp_path / "sites", ("A", "B"), size=8)
    for site in open_sites(root):
        info, lists = (read_json(site.path / name) for name in ("site.json", "datalist.json"))
        for entry in (entry for entries in lists.values() for entry in entries):
            for key in ("image", "label"):
                np.save(site.path / entry[key], np.load(site.path / entry[key])[:, :, :4])
        lists["training"][0]["spacing"] = [3.0, 0.5, 0.7]
        lists["training"][1]["spacing"] = None
        write_json(site.path / "datalist.json", lists)
        write_json(
            site.path / "site.json", info | {"image_size": [4, 8], "readings": READ, "checksums": {"gone.npy": "0"}}
        )
    return root


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_pixels_are_means_and_a_mask_is_set_where_half_of_its_block_is(sites, tmp_path):
    case = open_sites(sites)[0].cases("training")[0]
    image = np.arange(3 * 32, dtype=np.float32).reshape(3, 1, 4, 8)
    label = np.zeros((3, 1, 4, 8), np.uint8)
    label[0, 0, 0, 0:2] = 1  # two pixels of four
    label[0, 0, 0, 2] = 1  # one
    label[0, 0, 2:, 4:6] = 1  # four
    np.save(case.image_file, image)
    np.save(case.label_file, label)
    assert shrink(sites, tmp_path / "small", 2) == [tmp_path / "small" / name for name in "AB"]
    small = open_sites(tmp_path / "small")[0].cases("training")[0]
    assert (small.image.dtype, small.label.dtype) == (np.float32, np.uint8)
    assert small.image[0, 0].tolist() == [[4.5, 6.5, 8.5, 10.5], [20.5, 22.5, 24.5, 26.5]]
    assert small.label[0, 0].tolist() == [[1, 0, 0, 0], [0, 0, 1, 0]]
    assert not small.label[1:].any()


def test_a_smaller_copy_says_what_it_is_and_leaves_the_original(sites, tmp_path):
    write_json(sites / "A" / "site.json", read_json(sites / "A" / "site.json") | {"spacing": [0.5, 0.75]})
    before = contents(sites)
    shrink(sites, tmp_path / "small", 4)
    assert contents(sites) == before
    for site, small in zip(open_sites(sites), open_sites(tmp_path / "small"), strict=True):
        small.require_arrays()
        first, second, *_ = read_json(small.path / "datalist.json")["training"]
        assert first["spacing"] == pytest.approx([3.0, 2.0, 2.8])
        assert second["spacing"] is None
        arrays = {path.relative_to(small.path).as_posix(): sha256(path) for path in small.path.rglob("*.npy")}
        assert len(arrays) == 30
        changed = {
            "image_size": [1, 2],
            "checksums": arrays,
            "shrunk_by": 4,
            "readings": [{"case": "a", "plane": "axial"}],
        }
        if site.name == "A":
            changed["spacing"] = [2.0, 3.0]
        assert small.info == {**site.info, **changed}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sites", "small"]


@pytest.mark.parametrize("by", [0, 3, 8])
def test_other_than_divisors_of_both_sides_are_refused(sites, tmp_path, by):
    with pytest.raises(
        BadInput, match=f"sites: images of 4x8 cannot be downsampled by {by}; expected a divisor of both"
    ):
        shrink(sites, tmp_path / "small", by)
    assert [path.name for path in tmp_path.iterdir()] == ["sites"]
