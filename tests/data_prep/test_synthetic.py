import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from data_prep import synthetic_fundus, synthetic_prostate
from data_prep.check import check
from data_prep.prepare import prepare
from data_prep.readers import fundus_rois as fundus
from data_prep.readers import prostate_multisite as prostate
from fedmerit.errors import BadInput
from fedmerit.training.data import SPLITS, open_sites

READERS = {"synthetic-prostate": prostate, "synthetic-fundus": fundus}


@pytest.fixture(scope="module", params=READERS)
def made(request, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param) / "sites"
    prepare(request.param, out, size=64, patients=5)
    return request.param, out


def test_six_sound_sites_that_the_public_readers_read(made):
    kind, out = made
    assert check(out) == []
    sites = open_sites(out)
    assert [site.name for site in sites] == [f"site{number}" for number in range(1, 7)]
    assert {site.info["source"] for site in sites} == {kind}
    raw = READERS[kind].find_sites(out.with_name("sites-raw"))
    assert [site.name for site in raw] == [site.name for site in sites]
    for site, read in zip(sites, raw, strict=True):
        prepared = {case.name for split in SPLITS for case in site.cases(split)}
        assert prepared == {case.name for case in read.cases}
        assert read.left_out == ()


def test_sites_differ_in_size_and_the_organ_is_whole(made):
    kind, out = made
    sizes, areas = set(), []
    for site in open_sites(out):
        cases = [case for split in SPLITS for case in site.cases(split)]
        sizes.add(len(cases))
        for case in cases:
            marked = case.label[:, 0].any(0)
            assert not np.concatenate([marked[0], marked[-1], marked[:, 0], marked[:, -1]]).any()
            assert case.label[:, 0].any(axis=(1, 2)).sum() >= (1 if kind == "synthetic-fundus" else 4)
        areas.append(np.mean([case.label[:, 0].sum() for case in cases]))
        if kind == "synthetic-fundus":
            assert all((case.label[:, 1] <= case.label[:, 0]).all() for case in cases)
    assert len(sizes) >= 4
    assert max(areas) > 1.15 * min(areas)


def test_the_reader_returns_what_was_drawn(tmp_path):
    synthetic_prostate.generate(tmp_path, 0, 5)
    case = prostate.find_sites(tmp_path)[2].cases[1]
    image, zones = synthetic_prostate.acquire(synthetic_prostate.SITES["site3"], np.random.default_rng([0, 2, 1]))
    decoded = prostate.decode(case)
    np.testing.assert_array_equal(decoded.label[:, 0], (zones > 0).transpose(2, 1, 0))
    np.testing.assert_array_equal(decoded.image[:, 0], image.transpose(2, 1, 0))
    assert decoded.spacing == pytest.approx((1.5, 1.5))


def test_the_photograph_read_is_the_one_taken(tmp_path):
    synthetic_fundus.generate(tmp_path, 0, 5)
    case = fundus.find_sites(tmp_path)[4].cases[0]
    camera = synthetic_fundus.SITES["site5"]
    image, mask = synthetic_fundus.photograph(camera, np.random.default_rng([0, 4, 0, ord("L")]))
    np.testing.assert_array_equal(np.asarray(Image.open(case.image)), image)
    np.testing.assert_array_equal(fundus.decode(case).label[0], [mask < 255, mask == 0])


def test_the_coil_floods_its_surroundings():
    peaks = {}
    for number, (name, scanner) in enumerate(synthetic_prostate.SITES.items()):
        image, _ = synthetic_prostate.acquire(scanner, np.random.default_rng([0, number, 0]))
        peaks[name] = np.percentile(image, 99) / np.median(image)
    assert peaks.pop("site5") > 2 * max(peaks.values())


def test_generation_repeats_for_a_seed_and_moves_with_it(tmp_path):
    def voxels(seed, name):
        prepare("synthetic-prostate", tmp_path / name, size=32, seed=seed, patients=5, source=tmp_path / f"{name}-kept")
        assert not (tmp_path / f"{name}-raw").exists()
        return np.asarray(nib.load(tmp_path / f"{name}-kept" / "site1" / "Case00.nii.gz").dataobj)

    first = voxels(0, "a")
    np.testing.assert_array_equal(voxels(0, "b"), first)
    moved, _ = synthetic_prostate.acquire(synthetic_prostate.SITES["site1"], np.random.default_rng([1, 0, 0]))
    assert (moved != first).any()
    assert (tmp_path / "a/site1/datalist.json").read_bytes() == (tmp_path / "b/site1/datalist.json").read_bytes()
    assert (tmp_path / "a/site1/site.json").read_bytes() == (tmp_path / "b/site1/site.json").read_bytes()


def test_raw_files_that_are_there_are_never_overwritten(tmp_path):
    (tmp_path / "sites-raw").mkdir()
    (tmp_path / "sites-raw" / "mine.txt").write_text("mine")
    with pytest.raises(BadInput, match="sites-raw: already holds something"):
        prepare("synthetic-prostate", tmp_path / "sites")


def test_a_failure_leaves_neither_sites_nor_raw_files(tmp_path):
    def interrupt(site, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare("synthetic-prostate", tmp_path / "sites", size=32, patients=5, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", ["sites", "sites/raw", "."])
def test_raw_files_and_sites_need_folders_apart(tmp_path, source):
    with pytest.raises(BadInput, match="need folders apart"):
        prepare("synthetic-prostate", tmp_path / "sites", source=tmp_path / source)
    assert list(tmp_path.iterdir()) == []
