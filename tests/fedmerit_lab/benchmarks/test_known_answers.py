"""Known-answer scenarios and cases: partitions as described, and answers found only if they hold."""

import layouts_fundus
import numpy as np
import pandas as pd
import pytest
from run_factory import make_sites
from tiny import TINY

from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites
from fedmerit_data.preparation import Preparation
from fedmerit_data.prepare import prepare
from fedmerit_lab.benchmarks.known_answers import CASES, KnownAnswerBenchmark, compute_values, known_answer_tables
from fedmerit_lab.benchmarks.scenarios import KINDS, generate, make, parse

SCENARIOS = {
    "noise:sites=3": ("site-1", "site-2", "site-3"),
    "double:sites=3": ("site-1", "site-2", "site-3"),
    "duplicate:sites=3": ("site-1", "site-1-copy", "site-2"),
    "equal:sites=2": ("site-1", "site-2"),
    "outlier:sites=3": ("site-1", "site-2", "site-3"),
    "needed:sites=3": ("site-1", "site-2", "site-3"),
}
FOUND = ((2, 2, 1), (3, 2, 2), (1.1, 1.1, 2), (2, 2), (2, 3, 2.5), (2, 3, 2.1))
MISSED = ((2, 1, 1), (3, 3, 2), (1.2, 1.1, 2), (2, 2), (3, 4, 2), (3, 4, 3))
TWINS = "Twins over the single site, median"


def count_answers(*seeds):
    """The first row of the table of values by seed and scenario."""
    rows = [
        {
            "scenario": scenario,
            "seed": seed,
            "site": site,
            "estimator": "multi_round",
            "value": value,
            "cost": 0.5 + seed,
        }
        for seed, values in enumerate(seeds)
        for (scenario, sites), own in zip(SCENARIOS.items(), values, strict=True)
        for site, value in zip(sites, own, strict=True)
    ]
    row = known_answer_tables(pd.DataFrame(rows), 3)[0].frame.iloc[0]
    return [row[case.heading] for case in CASES], row


def test_answers_are_counted_over_seeds():
    counts, row = count_answers(FOUND, MISSED, FOUND)
    assert counts == [2, 2, 2, 2, 2]
    assert row[TWINS] == pytest.approx(1.1)
    assert row["Cost [trainings]"] == pytest.approx(1.5)
    counts, row = count_answers(MISSED)
    assert counts == [0, 0, 0, 0, 0]
    assert row[TWINS] == pytest.approx(1.15)
    assert count_answers(tuple((1.0,) * len(sites) for sites in SCENARIOS.values()))[0] == [0] * 5  # ties


@pytest.mark.parametrize("sites", [4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_every_scenario_has_its_number_of_sites(kind, sites):
    answer = KINDS[kind](sites, 0, [f"site{place}" for place in range(1, 7)])
    assert answer.scheme.into + len(answer.options.get("duplicate", ())) == sites
    assert answer.expected
    assert parse(f"{kind}:sites={sites}")[0] == kind
    if kind == "double":
        first, *others = answer.scheme.shares(1)[0]
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


@pytest.mark.slow
def test_every_seed_has_its_own_partition_and_nothing_is_trained_twice(tmp_path, fedmerit):
    pool = tmp_path / "pool"
    prepare(Preparation("synthetic-prostate", size=16, patients=5), pool)
    settings = TINY | {"batch_size": "16"}
    bench = KnownAnswerBenchmark(tmp_path / "out", pool, ["multi_round", "data_size"], 3, (0, 1), 1, settings)
    progress = []
    values = compute_values(bench, lambda done, total: progress.append((done, total)))
    assert progress == [(place, 12) for place in range(1, 13)]
    assert {scenario: tuple(rows["site"].unique()) for scenario, rows in values.groupby("scenario")} == SCENARIOS
    checksums = [[case for site in open_sites(tmp_path / "out" / "noise-3" / f"seed{seed}" / "sites")
                  for case in site.info["checksums"].values()] for seed in (0, 1)]  # fmt: skip
    assert checksums[0] != checksums[1]
    sizes = values[values["estimator"] == "data_size"].set_index(["scenario", "seed", "site"])["value"].sort_index()
    double = sizes["double:sites=3", 0]
    assert double["site-1"] > 1.5 * double[["site-2", "site-3"]].mean()
    assert sizes["duplicate:sites=3", 0]["site-1"] == sizes["duplicate:sites=3", 0]["site-1-copy"]
    again = compute_values(bench, lambda done, total: pytest.fail("trained again"))
    pd.testing.assert_frame_equal(again, values)
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    places = (
        "--out", bench.out, "--pool", pool, "--estimators", "multi_round,data_size", "--seeds", "0,1", "--rounds", 1
    )  # fmt: skip
    result = fedmerit("lab", "bench", "known-answers", *places, "--sites", 3, *given, "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert "Number of 2 seeds" in result.output
    found = pd.read_csv(bench.out / "tables" / "known-answers.csv").set_index("Estimator")
    assert found.loc["data_size", "Twice the patients first"] == 2


def test_a_scenario_with_folds_has_those_of_its_pool_or_says_why_it_cannot(folded_sites, tmp_path):
    make("double:sites=2", folded_sites, tmp_path / "double", folds=True)
    assert {site.folds for site in open_sites(tmp_path / "double", fold=2)} == {3}
    make("double:sites=2", folded_sites, tmp_path / "double", folds=True)  # is reused
    with pytest.raises(BadInput, match="holds trainings with"):
        make("double:sites=2", folded_sites, tmp_path / "double")
    for scenario, words in (("noise:sites=2", "label noise"), ("duplicate:sites=3", "duplicate")):
        with pytest.raises(BadInput, match=f"folds: {words}"):
            make(scenario, folded_sites, tmp_path / scenario.partition(":")[0], folds=True)
