"""Worlds are dealt as they say."""

import pytest
from run_factory import make_sites

from fedmerit.errors import BadInput
from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit_lab.benchmarks.scenarios import KINDS, generate, make, parse

SOURCES = [f"site{place}" for place in range(1, 7)]


@pytest.mark.parametrize("sites", [4, 6, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_every_world_has_as_many_sites_as_asked(kind, sites):
    planted = KINDS[kind](sites, 0, SOURCES)
    assert planted.scheme.into + len(planted.options.get("duplicate", ())) == sites
    assert planted.expected
    assert parse(f"{kind}:sites={sites}") == (kind, parse(f"{kind}:sites={sites}")[1])


def test_planted_masks_lie_elsewhere_and_nobody_elses_do(sites, tmp_path):
    expected = make("noise:sites=3", sites, tmp_path / "world")
    assert expected.startswith("site-3 last")
    folders = {site.name: site for site in open_sites(tmp_path / "world")}
    assert [folders[name].info["partition"]["label_noise"] is not None for name in sorted(folders)] == [0, 0, 1]
    assert make("noise:sites=3", sites, tmp_path / "world") == expected  # what is there is left
    with pytest.raises(BadInput, match=f"holds trainings with pool {sites}"):  # of another pool it is no answer
        make("noise:sites=3", make_sites(tmp_path / "others", ("Alder", "Birch")), tmp_path / "world")


def test_a_pool_stands_for_what_it_was_made_of(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fedmerit_lab.benchmarks.scenarios.prepare", lambda asked, out: (out / "site1").mkdir(parents=True)
    )
    for _ in range(2):
        assert generate(tmp_path / "pool", 64, 20) == tmp_path / "pool"
    for size, patients, told in ((32, 20, "size 64"), (64, 30, "patients 20")):
        with pytest.raises(BadInput, match=f"holds trainings with {told}"):
            generate(tmp_path / "pool", size, patients)


@pytest.mark.parametrize("spec", ["noisy:sites=4", "noise:sites=1", "noise:sides=3"])
def test_a_world_that_is_none_is_refused(spec):
    with pytest.raises(BadInput, match="--worlds"):
        parse(spec)
