"""Caveats of the report, from results made for them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_results import SITES, made_dice, made_results, made_rounds, made_row
from run_factory import add_rows, make_run

from fedmerit.evidence.ledger import Ledger
from fedmerit.schema.results import Row
from fedmerit_evaluation.report import caveats, summary
from fedmerit_evaluation.results.runs import combine_results, open_runs
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.intervals import select_sites


def test_a_method_in_the_lead_is_named() -> None:
    results = made_dice({"a": (0.8, 0.8, 0.8), "b": (0.5, 0.5, 0.5), "c": (0.5, 0.5, 0.5)})
    words = summary.list_sentences(results)
    assert any("a is significantly better than every other method" in text for text in words)


def test_few_cases_and_empty_ones_are_counted() -> None:
    rows = made_dice({"a": (0.7, 0.7, 0.7)}, cases=2).rows
    alone = (rows["site"] == "Birch") & (rows["case"] == "001")
    counts = [
        made_row("a", 0, 5, "Cedar", quantity, value, "testing", "000")
        for quantity, value in (("true_positives", 0.0), ("false_negatives", 0.0), ("false_positives", 9.0))
    ]
    rows = pd.concat([rows[~alone], made_results(counts, ["a"]).rows], ignore_index=True)
    rows.loc[(rows["site"] == "Alder") & (rows["case"] == "001") & (rows["seed"] == 0), "value"] = np.nan
    results = Results(rows)
    few, empty, false = caveats.list_case_caveats(results)
    assert "Alder (2), Birch (1) and Cedar (2)" in few
    assert "of fewer than 3 there is no CI (Alder, Birch and Cedar)" in few
    assert empty.startswith("1 pair of test case and label")
    assert false.startswith("1 test cases with an empty reference")
    (own,) = caveats.list_case_caveats(results, "Birch")
    assert "Alder" not in own


def test_the_run_with_the_fewest_cases_of_a_site_is_told() -> None:
    """Of six in each of three seeds four are gone in one."""
    rows = made_dice({"fedce": (0.8, 0.7, 0.9)}).rows
    gone = (rows["site"] == "Birch") & (rows["seed"] == 1) & (rows["case"] > "001")
    results = Results(rows[~gone])
    (few,) = caveats.list_case_caveats(results)
    assert few.startswith("Fewer than 5 test patients in a run: Birch (2).")
    assert select_sites(results.dice.intervals, "dice").loc[("fedce", "Birch"), ["low", "high"]].isna().all()


def test_contributions_that_overlap_and_negative_sums() -> None:
    contributions = {
        "a": [(0.5, 0.5, 0.5), (0.2, 0.3, 0.25), (0.2, 0.1, 0.25)],
        "b": [(-0.5, -0.6, -0.4), (0.1, 0.1, 0.1), (0.2, 0.2, 0.2)],
        "c": [(-0.1, -0.1, -0.1), (0.3, 0.3, 0.3), (0.6, 0.6, 0.6)],
    }
    results = made_results(made_rounds("contribution", contributions), ["a", "b", "c"])
    found = results.rounds.intervals
    ends = select_sites(found, "contribution").loc["a", "Birch"]
    reach = 4.3 * 0.05 / 3**0.5  # standard errors of three seeds
    assert (ends["mean"], ends["low"], ends["high"]) == pytest.approx((0.25, 0.25 - reach, 0.25 + reach), abs=0.02)
    sums, negative = caveats.list_contribution_caveats(results)
    assert "with b sum to 0 or less" in sums
    assert "with c are negative" in negative


def test_one_seed_has_no_interval_of_contributions(tmp_path: Path) -> None:
    (run,) = open_runs([make_run(tmp_path / "run", rounds=2)])
    results = combine_results([run])
    assert list(caveats.list_contribution_caveats(results)) == []
    assert "One seed" in " ".join(caveats.list_run_caveats([run], results))


def test_of_two_seeds_it_is_told_how_wide_their_intervals_are(tmp_path: Path) -> None:
    runs = open_runs([make_run(tmp_path / str(seed), rounds=2, seed=seed) for seed in range(3)])
    told = (
        "2 seeds: confidence intervals over seeds are very wide (12.7 standard errors; 3 seeds: 4.3). Run more seeds."
    )
    assert told in list(caveats.list_run_caveats(runs[:2], combine_results(runs[:2])))
    assert told not in " ".join(caveats.list_run_caveats(runs, combine_results(runs)))


@pytest.mark.parametrize("differ", [True, False])
def test_runs_on_images_prepared_otherwise_cannot_be_compared(tmp_path: Path, differ: bool) -> None:
    digests = dict.fromkeys(SITES, "a" * 64)
    other = digests | ({"Cedar": "b" * 64} if differ else {})
    runs = open_runs([
        make_run(tmp_path / "fedce", sites=SITES, site_digests=digests),
        make_run(tmp_path / "fedavg", sites=SITES, method="fedavg", site_digests=other),
        make_run(tmp_path / "second", sites=SITES, seed=1, site_digests=dict.fromkeys(SITES, "c" * 64)),
    ])  # fmt: skip
    said = caveats.list_run_caveats(runs, combine_results(runs))
    assert ("Runs of one seed were tested on different cases: their Dice cannot be compared." in said) is differ


def test_a_reader_is_told_who_joined_and_who_left(tmp_path: Path) -> None:
    (run,) = open_runs([make_run(tmp_path / "run", rounds=2)])
    ledger = Ledger(run.path / "ledger.jsonl")
    for record in ({"round": 0}, {"round": 1, "joined": ["Birch"], "left": {"Cedar": {"rounds": 1}}}):
        ledger.append(record)
    said = " ".join(caveats.list_run_caveats([run], run.results))
    assert "Birch joined with round 1: its means and shares are over its rounds." in said
    assert "Cedar left before round 1" in said
    assert "a site left" in " ".join(caveats.list_run_caveats([run], run.results, sites_named=False))


def test_a_reader_of_an_encrypted_run_is_told_what_nobody_checked(tmp_path: Path) -> None:
    for privacy, told in ((["he"], True), ([], False), (["gaussian:clip=1,noise=0.01"], False)):
        (run,) = open_runs([make_run(tmp_path / str(len(privacy) + told), sites=SITES, privacy=privacy)])
        said = " ".join(caveats.list_run_caveats([run], run.results))
        assert ("updates were encrypted: the server could check neither" in said) is told
        assert not any(site in said for site in SITES)


def test_a_reader_is_told_that_sites_measured_their_errors_and_whether_models_were_shared(tmp_path: Path) -> None:
    for name, measured, engine, shares in (
        ("own", None, "prod", False),
        ("rated", 0.3, "prod", True),
        ("here", 0.3, "local", True),
    ):
        folder = make_run(tmp_path / name, sites=SITES, engine=engine, plan={"share_models": shares})
        values = {"minus_error": 0.4, "measured_error": measured}
        add_rows(folder, [Row(name, "fedce", 0, 1, "Alder", *one) for one in values.items()])
        (run,) = open_runs([folder])
        said = " ".join(caveats.list_run_caveats([run], run.results))
        assert ("each site itself reported the error of the model without it" in said) is (measured is None)
        assert ("sites were sent models made of single other sites' updates" in said) is (name == "rated")
