"""Synthetic sites: read by the public readers, sound, different, the same for a seed."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from layouts import prepare

from fedmerit.schema.scores import SPLITS
from fedmerit.schema.site_folder import open_sites
from fedmerit_data.check import check, examine
from fedmerit_data.readers.releases import FUNDUS_ROIS, PROSTATE_MULTISITE
from fedmerit_data.synthetic import fundus, prostate

READERS = {"synthetic-prostate": PROSTATE_MULTISITE, "synthetic-fundus": FUNDUS_ROIS}


def coarser(monkeypatch):
    """A third of the pixels: drawn and read in a fraction of the time."""
    monkeypatch.setattr(fundus, "PIXELS", fundus.PIXELS // 3)
    scanners = {
        name: replace(scanner, pixels=scanner.pixels // 3, spacing=scanner.spacing * 3)
        for name, scanner in prostate.SITES.items()
    }
    monkeypatch.setattr(prostate, "SITES", scanners)


@pytest.fixture(
    scope="module", params=[*READERS, *(pytest.param(f"{kind} whole", marks=pytest.mark.slow) for kind in READERS)]
)
def made(request, tmp_path_factory):
    kind, *whole = request.param.split()
    out = tmp_path_factory.mktemp(kind) / "sites"
    with pytest.MonkeyPatch.context() as monkeypatch:
        if not whole:
            coarser(monkeypatch)
        prepare(kind, out, size=64, patients=5)
    return kind, out


def test_six_sound_sites_that_the_public_readers_read(made):
    kind, out = made
    assert check(out) == []
    assert {finding.kind for finding in examine(out).findings} <= {"few patients"}
    sites = open_sites(out)
    assert [site.name for site in sites] == [f"site{number}" for number in range(1, 7)]
    assert {site.info["source"] for site in sites} == {kind}
    assert [remark for site in sites for remark in site.info["remarks"]] == []
    raw = READERS[kind].find_sites(out.with_name("sites-raw"))
    assert [site.name for site in raw] == [site.name for site in sites]
    for site, read in zip(sites, raw, strict=True):
        prepared = {case.name for split in SPLITS for case in site.cases(split)}
        assert prepared == {case.name for case in read.cases}
        assert read.left_out == ()


def test_no_two_patients_look_like_copies_in_the_full_frame(made, tmp_path):
    kind, out = made
    if kind == "synthetic-fundus":
        pytest.skip("photographs are not cropped: the test above compares them in the full frame")
    for file in out.with_name("sites-raw").glob("*/*.gz"):
        folder = tmp_path / "raw" / file.parent.name / ("masks" if "_segmentation" in file.name else "images")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / file.name.replace("_segmentation", ""))
    prepare(
        "generic",
        tmp_path / "sites",
        source=tmp_path / "raw",
        labels={"prostate": (1,)},
        channels=1,
        size=48,
        task="prostate",
    )
    kinds = {finding.kind for finding in examine(tmp_path / "sites").findings}
    assert not kinds & {"near-duplicate", "leak", "flipped"}


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


@pytest.mark.parametrize("module", [fundus, prostate])
def test_generation_repeats_for_a_seed_and_moves_with_it(tmp_path, monkeypatch, module):
    name, made_by = next(iter(module.SITES.items()))
    monkeypatch.setattr(module, "SITES", {name: made_by})
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / folder).mkdir()
        module.generate(tmp_path / folder, seed, 1)
    a, b, c = ([path.read_bytes() for path in sorted((tmp_path / name).rglob("*.*"))] for name in "abc")
    assert len(a) >= 2
    assert a == b
    assert not set(a) & set(c)
