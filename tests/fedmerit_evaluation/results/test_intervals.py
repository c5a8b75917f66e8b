"""Intervals of Dice and contributions, from results made for them."""

import math
from pathlib import Path

import pandas as pd
import pytest
from made_results import made_dice, made_results, made_rounds
from run_factory import make_run

from fedmerit_evaluation.report import caveats
from fedmerit_evaluation.results.run_folders import combine_results, open_runs
from fedmerit_evaluation.statistics.intervals import (
    NONE,
    contains_zero,
    contribution_intervals,
    dice_intervals,
    drop_small_sample_intervals,
    group_ties,
    select_methods,
    select_sites,
    sort_by_mean,
)


def test_differences_are_taken_case_by_case() -> None:
    """Cases differ far more than methods: paired, the smaller difference is found all the same."""
    results = made_dice({"a": (0.70, 0.72, 0.74), "b": (0.71, 0.73, 0.75)}, noise=0.1)
    found = results.dice.intervals
    assert sort_by_mean(select_methods(found, "mean")) == ["b", "a"]
    difference = select_sites(found, "difference").loc["b", "a"]
    assert difference[["mean", "low", "high"]].tolist() == pytest.approx([0.01] * 3)
    assert (
        select_methods(found, "mean").loc["a", "high"] > select_methods(found, "mean").loc["b", "low"]
    )  # they overlap
    assert select_methods(found, "rank")[["low", "high"]].to_numpy().tolist() == [[1, 1], [2, 2]]
    assert list(caveats.list_rank_caveats(results)) == []


def test_chains_of_neighbours() -> None:
    assert list(group_ties(["a", "b", "c", "d", "e"], [True, False, True, True])) == [
        (1, ["a", "b"]),
        (3, ["c", "d", "e"]),
    ]
    assert list(group_ties(["a", "b"], [False])) == []
    assert list(group_ties([], [])) == []


def test_without_test_dice_there_are_no_intervals(tmp_path: Path) -> None:
    (run,) = open_runs([make_run(tmp_path / "run", rounds=4, done=2)])
    results = combine_results([run])
    found = results.dice.intervals
    assert found.empty
    assert list(caveats.list_rank_caveats(results)) == []
    assert select_sites(found, "gain").empty


def _cases(values: dict[tuple[str, int, str], list[float]]) -> pd.Series:
    rows = {(*key, f"{place:03d}"): dice for key, those in values.items() for place, dice in enumerate(those)}
    return pd.Series(rows, dtype=float).rename_axis(["method", "seed", "site", "case"])


def test_every_statistic_of_dice_by_hand() -> None:
    """One case a site, two seeds: half of what is between them, the standard error, 12.7 times to either side."""
    cases = _cases(
        {
            ("standalone", 0, "A"): [0.5], ("standalone", 0, "B"): [0.6],
            ("standalone", 1, "A"): [0.5], ("standalone", 1, "B"): [0.5],
            ("fedce", 0, "A"): [0.8], ("fedce", 0, "B"): [0.6],
            ("fedce", 1, "A"): [0.9], ("fedce", 1, "B"): [0.3],
        }
    )  # fmt: skip
    found = dice_intervals(cases, ["fedce", "standalone"], "standalone")[["mean", "low", "high", "seeds"]].T
    expected = {
        ("dice", "fedce", "A"): (0.85, 0.8, 0.9), ("dice", "fedce", "B"): (0.45, 0.3, 0.6),
        ("mean", "fedce", ""): (0.65, 0.6, 0.7), ("worst", "fedce", ""): (0.45, 0.3, 0.6),
        ("gain", "fedce", "A"): (0.35, 0.3, 0.4), ("gain", "fedce", "B"): (-0.1, -0.2, 0.0),
        ("mean_gain", "fedce", ""): (0.125, 0.1, 0.15), ("rank", "fedce", ""): (1, 1, 2),
        ("difference", "fedce", "standalone"): (0.125, 0.1, 0.15),
        ("dice", "standalone", "A"): (0.5, 0.5, 0.5), ("dice", "standalone", "B"): (0.55, 0.5, 0.6),
        ("mean", "standalone", ""): (0.525, 0.5, 0.55), ("worst", "standalone", ""): (0.5, 0.5, 0.5),
        ("rank", "standalone", ""): (2, 1, 2),
    }  # fmt: skip
    assert set(found) == set(expected)
    for key, (mean, low, high) in expected.items():
        if key[0] != "rank":
            least = 0 if key[0] in ("dice", "mean", "worst") else -1
            low, high = max(least, mean - 12.7 * (mean - low)), min(1, mean + 12.7 * (high - mean))
        assert found[key].to_list() == pytest.approx([mean, low, high, 2], abs=0.1), key


def test_a_site_that_a_method_was_not_tested_on_is_left_out_of_its_means() -> None:
    cases = _cases({("a", 0, "A"): [0.8], ("a", 0, "B"): [math.nan], ("b", 0, "A"): [0.7], ("b", 0, "B"): [0.5]})
    means = select_methods(dice_intervals(cases, ["a", "b"], "standalone"), "mean")["mean"]
    assert means.to_dict() == pytest.approx({"a": 0.8, "b": 0.6})


def test_methods_are_compared_over_the_sites_that_each_has() -> None:
    """B, the hardest, has no Dice of a in either seed: a leads in the mean of what it has, and not where both have."""
    seeds = (0, 1)
    cases = _cases(
        {("a", seed, "A"): [0.8, 0.7] for seed in seeds}
        | {("b", seed, "A"): [0.82, 0.72] for seed in seeds}
        | {("b", seed, "B"): [0.4, 0.3] for seed in seeds}
        | {("c", 1, "A"): [0.6, 0.5], ("c", 1, "B"): [0.6, 0.5]}  # which has no run of the first seed
    )
    found = dice_intervals(cases, ["a", "b", "c"], "standalone")
    assert select_methods(found, "mean")["mean"].to_dict() == pytest.approx({"a": 0.75, "b": 0.56, "c": 0.55})
    assert select_sites(found, "difference").loc["a", "b"][["mean", "low", "high"]].tolist() == pytest.approx(
        [-0.02] * 3
    )
    assert select_sites(found, "difference").loc["b", "c"][["mean", "seeds"]].tolist() == pytest.approx([0.01, 1])
    assert select_methods(found, "rank")["mean"].to_dict() == {"a": 2, "b": 1, "c": 3}


def test_methods_that_tie_share_the_better_rank() -> None:
    cases = _cases({(method, 0, "A"): [dice] for method, dice in {"a": 0.8, "b": 0.8, "c": 0.5}.items()})
    ranks = select_methods(dice_intervals(cases, ["a", "b", "c"], "standalone"), "rank")["mean"]
    assert ranks.to_dict() == {"a": 1, "b": 1, "c": 3}


def test_where_a_site_has_too_few_cases_no_method_has_an_interval() -> None:
    table = dice_intervals(
        _cases({("a", seed, site): [0.5, 0.7] for seed in (0, 1) for site in "AB"}), ["a"], "standalone"
    )
    left = drop_small_sample_intervals(table, ["B"])
    assert left["low"].dropna().index.to_list() == left["high"].dropna().index.to_list() == [("dice", "a", "A")]
    assert left["mean"].equals(table["mean"])
    assert drop_small_sample_intervals(table, []).equals(table)


def test_contributions_and_their_differences_to_the_next_in_rank() -> None:
    said = made_results(made_rounds("contribution", {"a": [(0.1, 0.2), (0.5, 0.7), (0.3, 0.3)]}), ["a"])
    found = contribution_intervals(said.rounds.contributions["mean_contribution"])
    expected = {
        ("contribution", "a", "Alder"): (0.15, 0.1, 0.2), ("contribution", "a", "Birch"): (0.6, 0.5, 0.7),
        ("contribution", "a", "Cedar"): (0.3, 0.3, 0.3),
        ("difference: Birch", "a", "Cedar"): (0.3, 0.2, 0.4), ("difference: Cedar", "a", "Alder"): (0.15, 0.1, 0.2),
    }  # fmt: skip
    assert set(found.index) == set(expected)
    for key, (mean, low, high) in expected.items():
        ends = mean - 12.7 * (mean - low), mean + 12.7 * (high - mean)  # the seeds' numbers are a standard error apart
        assert found.loc[key, ["mean", "low", "high"]].to_list() == pytest.approx([mean, *ends], abs=0.15), key
    bounded = contribution_intervals(said.rounds.contributions["mean_contribution"], (0, 1))
    assert bounded.loc[("contribution", "a", "Birch"), ["low", "high"]].to_list() == [0, 1]
    assert bounded.loc["difference: Birch"].equals(found.loc["difference: Birch"])
    assert contribution_intervals(pd.Series(dtype=float)) is NONE


def test_a_difference_whose_interval_holds_0_tells_nothing_apart() -> None:
    ends = pd.DataFrame({"low": [-0.1, 0.0, 0.1, -0.2, math.nan], "high": [0.1, 0.2, 0.3, -0.1, math.nan]})
    assert contains_zero(ends).to_list() == [True, True, False, False, False]


def test_names_by_mean_without_those_that_have_none() -> None:
    table = pd.DataFrame({"mean": [0.5, math.nan, 0.9, 0.5]}, list("abcd"))
    assert sort_by_mean(table) == ["c", "a", "d"]  # of equals the first
