import numpy as np
import pytest
from layouts import prepare

from data_prep.check import check
from data_prep.readers import fundus_rois as fundus
from data_prep.readers import prostate_multisite as prostate
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
