"""Caveats and intervals of the report, from results made for them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from run_factory import make_run

from evaluation.report import caveats, summary
from evaluation.report.hospitals import grounds_of
from evaluation.report.judgements import Grounds
from evaluation.results.intervals import by_rank, chains, of_methods, of_sites
from evaluation.results.run_folders import open_runs, together
from evaluation.results.views import Results

SITES = ("Alder", "Birch", "Cedar")


def _row(method: str, seed: int, number: int, site: str, quantity: str, value: float, split: str = "", case: str = ""):
    label = "prostate" if split else ""
    return ("x", method, seed, number, site, "", split, case, label, quantity, value)


def _results(dice: dict[str, Sequence[float]], *, cases: int = 6, seeds: int = 3, noise: float = 0.02) -> Results:
    """Test Dice by method, one level per site, with noise that all methods of a case share."""
    random = np.random.default_rng(0)
    shared = random.normal(0, noise, (seeds, len(SITES), cases))
    rows = [
        _row(method, seed, 5, site, "dice", level + shared[seed, place, case], "testing", f"{case:03d}")
        for method, levels in dice.items()
        for seed in range(seeds)
        for place, (site, level) in enumerate(zip(SITES, levels, strict=True))
        for case in range(cases)
    ]
    return _table(rows, list(dice))


def _table(rows: list[tuple], methods: list[str]) -> Results:
    columns = ["run", "method", "seed", "round", "site", "coalition", "split", "case", "label", "quantity", "value"]
    table = pd.DataFrame(rows, columns=columns)
    return Results(table.assign(method=pd.Categorical(table["method"], methods)))


def test_differences_are_taken_case_by_case() -> None:
    """Cases differ far more than methods: paired, the smaller difference is found all the same."""
    results = _results({"a": (0.70, 0.72, 0.74), "b": (0.71, 0.73, 0.75)}, noise=0.1)
    found = results.dice.intervals
    assert by_rank(of_methods(found, "mean")) == ["b", "a"]
    difference = of_sites(found, "difference").loc["b", "a"]
    assert difference[["mean", "low", "high"]].tolist() == pytest.approx([0.01] * 3)
    assert of_methods(found, "mean").loc["a", "high"] > of_methods(found, "mean").loc["b", "low"]  # they overlap
    assert of_methods(found, "rank")[["low", "high"]].to_numpy().tolist() == [[1, 1], [2, 2]]
    assert list(caveats.of_ranks(results)) == []


def test_methods_that_cannot_be_told_apart_are_named() -> None:
    results = _results({"a": (0.8, 0.8, 0.8), "b": (0.5, 0.5, 0.5), "c": (0.5, 0.5, 0.5)})
    (said,) = caveats.of_ranks(results)
    assert "ranks 2 and 3 (b, c) are not distinguishable" in said
    words = summary.sentences(results)
    assert any("intervals of what a is above each other method leave out 0" in text for text in words)


def test_who_gained_and_who_lost() -> None:
    results = _results({"standalone": (0.6, 0.6, 0.6), "a": (0.7, 0.5, 0.6), "b": (0.8, 0.55, 0.7)})
    said = summary.sentences(results)
    assert "Alder gained under 2 of 2 methods (2 with an interval that leaves out 0), against training alone." in said
    assert any(
        text.startswith("Birch lost under 2 (2 with") and "most under a (\N{MINUS SIGN}10.0" in text for text in said
    )


def test_what_a_comparison_rests_on_is_what_was_tested_in_all_of_it() -> None:
    """A seed that trained and was not tested, or that training alone has not, is no ground."""
    rows = _results({"standalone": (0.6, 0.6, 0.6), "a": (0.7, 0.7, 0.7), "b": (0.7, 0.7, 0.7)}).rows
    gone = ((rows["method"] == "standalone") & (rows["seed"] > 0)) | ((rows["method"] == "b") & (rows["seed"] == 2))
    results = Results(rows[~gone])
    assert grounds_of(results, methods=["a"]) == Grounds(6, 3)
    assert grounds_of(results, methods=["a", "b"]) == Grounds(6, 2)
    assert grounds_of(results, "Alder", ["a", "standalone"]) == Grounds(6, 1)
    assert grounds_of(results, "Dogwood") == grounds_of(Results(rows.iloc[:0])) == Grounds(0, 0)
    assert any(
        text.endswith("against training alone: one seed is not enough to judge.") for text in summary.sentences(results)
    )


def test_who_ties_is_named_together() -> None:
    tied = _results({"a": (0.8, 0.8, 0.6), "b": (0.8, 0.8, 0.6)}, noise=0.0)
    notes = {fact.name: fact.note for fact in summary.facts(tied)}
    assert notes["Highest mean Dice"] == notes["Highest worst-site Dice"] == "a and b"
    assert "highest at Alder and Birch (80.0 %)" in dict(summary.method_by_method(tied))["a"]


def test_chains_of_neighbours() -> None:
    assert list(chains(["a", "b", "c", "d", "e"], [True, False, True, True])) == [(1, ["a", "b"]), (3, ["c", "d", "e"])]
    assert list(chains(["a", "b"], [False])) == []
    assert list(chains([], [])) == []


def test_few_cases_and_empty_ones_are_counted() -> None:
    rows = _results({"a": (0.7, 0.7, 0.7)}, cases=2).rows
    alone = (rows["site"] == "Birch") & (rows["case"] == "001")
    counts = [
        _row("a", 0, 5, "Cedar", quantity, value, "testing", "000")
        for quantity, value in (("true_positives", 0.0), ("false_negatives", 0.0), ("false_positives", 9.0))
    ]
    rows = pd.concat([rows[~alone], _table(counts, ["a"]).rows], ignore_index=True)
    rows.loc[(rows["site"] == "Alder") & (rows["case"] == "001") & (rows["seed"] == 0), "value"] = np.nan
    results = Results(rows)
    few, empty, false = caveats.of_cases(results)
    assert "Alder (2), Birch (1) and Cedar (2)" in few
    assert "fewer than 3 (Alder, Birch and Cedar) are nothing to resample: no interval" in few
    assert empty.startswith("1 pair of test case and label")
    assert false.startswith("1 test cases whose reference is empty")
    (own,) = caveats.of_cases(results, "Birch")
    assert "Alder" not in own


def test_contributions_that_overlap_and_negative_sums() -> None:
    rows = [
        _row(method, seed, 0, site, "contribution", value)
        for method, values in {
            "a": [(0.5, 0.5, 0.5), (0.2, 0.3, 0.25), (0.2, 0.1, 0.25)],
            "b": [(-0.5, -0.6, -0.4), (0.1, 0.1, 0.1), (0.2, 0.2, 0.2)],
            "c": [(-0.1, -0.1, -0.1), (0.3, 0.3, 0.3), (0.6, 0.6, 0.6)],
        }.items()
        for site, of_seeds in zip(SITES, values, strict=True)
        for seed, value in enumerate(of_seeds)
    ]
    results = _table(rows, ["a", "b", "c"])
    found = results.rounds.intervals
    ends = of_sites(found, "contribution").loc["a", "Birch"]
    assert (ends["mean"], ends["low"], ends["high"]) == pytest.approx((0.25, 0.2, 0.3))
    overlap, sums, negative = caveats.of_contributions(results)
    assert "a, ranks 2 and 3 (Birch, Cedar)" in overlap
    assert "b" not in overlap.split("a, ranks")[0].replace("Contributions: intervals overlap", "")
    assert "sum to 0 or less under b:" in sums
    assert "negative under c:" in negative


def test_one_seed_has_no_interval_of_contributions(tmp_path: Path) -> None:
    (run,) = open_runs([make_run(tmp_path / "run", rounds=2)])
    results = together([run])
    assert list(caveats.of_contributions(results)) == []
    assert "One seed" in " ".join(caveats.of_runs([run], results))


def test_without_test_dice_there_are_no_intervals(tmp_path: Path) -> None:
    (run,) = open_runs([make_run(tmp_path / "run", rounds=4, done=2)])
    results = together([run])
    found = results.dice.intervals
    assert found.empty
    assert list(caveats.of_ranks(results)) == []
    assert of_sites(found, "gain").empty


def test_a_reader_of_an_encrypted_run_is_told_what_nobody_checked(tmp_path: Path) -> None:
    for privacy, told in ((["he"], True), ([], False), (["gaussian:clip=1,noise=0.01"], False)):
        (run,) = open_runs([make_run(tmp_path / str(len(privacy) + told), sites=SITES, privacy=privacy)])
        said = " ".join(caveats.of_runs([run], run.results))
        assert ("updates were encrypted: the server could check neither" in said) is told
        assert not any(site in said for site in SITES)
