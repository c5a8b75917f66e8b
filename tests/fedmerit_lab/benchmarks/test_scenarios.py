"""Scenarios of the benchmark of estimators: partitions as described, of a pool that stays the same."""

import layouts_fundus
import numpy as np
import pytest
from run_factory import make_sites

from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites
from fedmerit_data.preparation import Preparation
from fedmerit_data.prepare import prepare
from fedmerit_lab.benchmarks.scenarios import KINDS, generate, known_answer, make, parse
from fedmerit_lab.partitioning.assignment import split_classes


@pytest.mark.parametrize("sites", [4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_every_scenario_has_its_number_of_sites(kind, sites):
    answer = known_answer(kind, sites, 0, [f"site{place}" for place in range(1, 7)])
    assert answer.scheme.into + len(answer.options.get("duplicate", ())) == sites
    assert answer.expected
    assert parse(f"{kind}:sites={sites}")[0] == kind
    if kind == "double":
        first, *others = split_classes(answer.scheme, 1)[0]
        assert others == pytest.approx([first / 2] * (sites - 1))


def test_only_the_last_site_trains_on_the_masks_by_one_expert(tmp_path):
    """Of RIGA look-alikes whose experts shift by two pixels a time; expert 6 left out the first image."""
    for number in range(1, 13):
        layouts_fundus.riga(tmp_path / "raw" / "MESSIDOR", number, experts=range(1, 6 if number == 1 else 7))
    pools = {}
    for name, expert in (("majority", None), ("of-six", 6)):
        asked = Preparation("riga-messidor", tmp_path / "raw", size=32, crop="whole", expert=expert)
        prepare(asked, pools.setdefault(name, tmp_path / name))
    spec = "expert:sites=2"
    with pytest.raises(BadInput, match="name their --other-pool"):
        make(spec, pools["majority"], tmp_path / "scenario")
    make(spec, pools["majority"], tmp_path / "scenario", other=pools["of-six"])
    masks = {
        name: {case.name: np.load(case.label_file) for of in open_sites(pool)[0].splits.values() for case in of}
        for name, pool in pools.items()
    }
    assert set(masks["majority"]) - set(masks["of-six"]) == {"image1"}
    assert all((masks["majority"][name] != mask).any() for name, mask in masks["of-six"].items())
    stored = []
    for site in open_sites(tmp_path / "scenario"):
        site.require_arrays()
        for split, cases in site.splits.items():
            source = masks["of-six" if (site.name, split) == ("site-2", "training") else "majority"]
            for case in cases:
                name = case.name.removeprefix("RIGA-MESSIDOR-")
                np.testing.assert_array_equal(np.load(case.label_file), source[name])
                stored.append(name)
    assert sorted(stored) == sorted({*masks["majority"]} - ({"image1"} - {*stored}))


def test_only_the_last_site_has_noisy_masks(sites, tmp_path):
    expected = make("noise:sites=3", sites, tmp_path / "scenario")
    assert expected.startswith("site-3 last")
    folders = {site.name: site for site in open_sites(tmp_path / "scenario")}
    assert [folders[name].info["partition"]["label_noise"] is not None for name in sorted(folders)] == [0, 0, 1]
    assert make("noise:sites=3", sites, tmp_path / "scenario") == expected  # not made again
    with pytest.raises(BadInput, match=f"holds trainings with pool {sites}"):
        make("noise:sites=3", make_sites(tmp_path / "others", ("Alder", "Birch")), tmp_path / "scenario")


def test_a_pool_belongs_to_its_options(tmp_path, monkeypatch):
    module = "fedmerit_lab.benchmarks.scenarios.prepare"
    monkeypatch.setattr(module, lambda asked, out: (out / "site1").mkdir(parents=True))
    for _ in range(2):
        assert generate(tmp_path / "pool", 64, 20) == tmp_path / "pool"
    for size, patients, words in ((32, 20, "size 64"), (64, 30, "patients 20")):
        with pytest.raises(BadInput, match=f"holds trainings with {words}"):
            generate(tmp_path / "pool", size, patients)
    for spec in ("noisy:sites=4", "noise:sites=1", "noise:sides=3"):
        with pytest.raises(BadInput, match="--scenarios"):
            parse(spec)


def test_a_scenario_with_folds_has_those_of_its_pool_or_says_why_it_cannot(folded_sites, tmp_path):
    make("double:sites=2", folded_sites, tmp_path / "double", folds=True)
    assert {site.folds for site in open_sites(tmp_path / "double", fold=2)} == {3}
    make("double:sites=2", folded_sites, tmp_path / "double", folds=True)  # is reused
    with pytest.raises(BadInput, match="holds trainings with"):
        make("double:sites=2", folded_sites, tmp_path / "double")
    for scenario, words in (("noise:sites=2", "label noise"), ("duplicate:sites=3", "duplicate")):
        with pytest.raises(BadInput, match=f"folds: {words}"):
            make(scenario, folded_sites, tmp_path / scenario.partition(":")[0], folds=True)
