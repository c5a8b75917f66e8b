"""What was planted is seen where it is there to see, and in no other case."""

import pandas as pd
import pytest

from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit_data.preparation import Preparation
from fedmerit_data.prepare import prepare
from fedmerit_lab.benchmarks.known_answers import CASES, KnownAnswerBenchmark, compute_values, known_answer_tables
from fedmerit_lab.benchmarks.scenarios import KINDS

WORLDS = {
    "noise:sites=3": ("site-1", "site-2", "site-3"),
    "double:sites=3": ("site-1", "site-2", "site-3"),
    "duplicate:sites=3": ("site-1", "site-1-copy", "site-2"),
    "equal:sites=2": ("site-1", "site-2"),
    "outlier:sites=3": ("site-1", "site-2", "site-3"),
    "needed:sites=3": ("site-1", "site-2", "site-3"),
}
SEEN = ((2, 2, 1), (3, 2, 2), (1.1, 1.1, 2), (2, 2), (2, 3, 2.5), (2, 3, 2.1))
MISSED = ((2, 1, 1), (3, 3, 2), (1.2, 1.1, 2), (2, 2), (3, 4, 2), (3, 4, 3))


def table(*seeds):
    rows = [
        {"world": world, "seed": seed, "site": site, "estimator": "multi_round", "value": value, "cost": 0.5 + seed}
        for seed, values in enumerate(seeds)
        for (world, sites), of_world in zip(WORLDS.items(), values, strict=True)
        for site, value in zip(sites, of_world, strict=True)
    ]
    return pd.DataFrame(rows)


def test_cases_are_counted_over_seeds():
    row = known_answer_tables(table(SEEN, MISSED, SEEN), 3)[0].frame.iloc[0]
    assert [row[case.heading] for case in CASES] == [2, 2, 2, 2, 2]
    assert row["Twins by the one, median"] == pytest.approx(1.1)
    assert row["Cost [trainings]"] == pytest.approx(1.5)
    row = known_answer_tables(table(MISSED), 3)[0].frame.iloc[0]
    assert [row[case.heading] for case in CASES] == [0, 0, 0, 0, 0]
    assert row["Twins by the one, median"] == pytest.approx(1.15)


def test_a_tie_is_no_place():
    equal = tuple((1.0,) * len(sites) for sites in WORLDS.values())
    row = known_answer_tables(table(equal), 3)[0].frame.iloc[0]
    assert [row[case.heading] for case in CASES] == [0, 0, 0, 0, 0]


def test_the_first_site_of_a_double_world_has_twice_the_patients():
    for sites in (3, 4, 8):
        first, *others = KINDS["double"](sites, 0, []).scheme.shares(1)[0]
        assert others == pytest.approx([first / 2] * (sites - 1))


@pytest.mark.slow
def test_worlds_are_dealt_anew_and_what_is_done_is_not_done_again(tmp_path, fedmerit):
    pool = tmp_path / "pool"
    prepare(Preparation("synthetic-prostate", size=16, patients=5), pool)
    settings = {"architecture": "unet", "width": "4", "depth": "3", "batch_size": "16"}
    asked = KnownAnswerBenchmark(tmp_path / "out", pool, ["multi_round", "data_size"], 3, (0, 1), 1, settings)
    heard = []
    values = compute_values(asked, lambda done, of: heard.append((done, of)))
    assert heard == [(place, 12) for place in range(1, 13)]
    assert set(values["world"]) == set(WORLDS)
    assert {world: tuple(rows["site"].unique()) for world, rows in values.groupby("world")} == WORLDS
    dealt = [[case for site in open_sites(tmp_path / "out" / "noise-3" / f"seed{seed}" / "sites")
              for case in site.info["checksums"].values()] for seed in (0, 1)]  # fmt: skip
    assert dealt[0] != dealt[1]
    sizes = values[values["estimator"] == "data_size"].set_index(["world", "seed", "site"])["value"].sort_index()
    double = sizes["double:sites=3", 0]
    assert double["site-1"] > 1.5 * double[["site-2", "site-3"]].mean()
    assert sizes["duplicate:sites=3", 0]["site-1"] == sizes["duplicate:sites=3", 0]["site-1-copy"]
    pd.testing.assert_frame_equal(compute_values(asked, lambda done, of: pytest.fail("trained again")), values)
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    places = (
        "--out",
        asked.out,
        "--pool",
        pool,
        "--estimators",
        "multi_round,data_size",
        "--seeds",
        "0,1",
        "--rounds",
        1,
    )
    result = fedmerit("bench", "planted", *places, "--sites", 3, *given, "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert "In how many of 2 seeds" in result.output
    told = pd.read_csv(asked.out / "tables" / "planted.csv").set_index("Estimator")
    assert told.loc["data_size", "Twice the patients first"] == 2
