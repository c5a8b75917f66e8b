"""Intervals of Dice and contributions, from results made for them."""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from made_results import made_dice, made_results, made_rounds
from scipy.stats import ttest_1samp
from simulated_studies import STABLE, USUAL, wrong_leads, wrong_shares, wrong_verdicts

from fedmerit_evaluation.statistics.inference import holm, p_values
from fedmerit_evaluation.statistics.intervals import (
    NONE,
    contribution_intervals,
    dice_intervals,
    drop_small_sample_intervals,
    select_methods,
    select_sites,
    sort_by_mean,
)


def test_dice_intervals_differences_are_paired_by_case() -> None:
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


def _cases(values: dict[tuple[str, int, str], list[float]]) -> pd.Series:
    rows = {(*key, f"{place:03d}"): dice for key, those in values.items() for place, dice in enumerate(those)}
    return pd.Series(rows, dtype=float).rename_axis(["method", "seed", "site", "case"])


def test_dice_intervals_equal_hand_computed() -> None:
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
        ("mean", "fedce", ""): (0.65, 0.6, 0.7),
        ("gain", "fedce", "A"): (0.35, 0.3, 0.4), ("gain", "fedce", "B"): (-0.1, -0.2, 0.0),
        ("mean_gain", "fedce", ""): (0.125, 0.1, 0.15), ("rank", "fedce", ""): (1, 1, 2),
        ("difference", "fedce", "standalone"): (0.125, 0.1, 0.15),
        ("dice", "standalone", "A"): (0.5, 0.5, 0.5), ("dice", "standalone", "B"): (0.55, 0.5, 0.6),
        ("mean", "standalone", ""): (0.525, 0.5, 0.55),
        ("rank", "standalone", ""): (2, 1, 2),
    }  # fmt: skip
    assert set(found) == set(expected)
    for key, (mean, low, high) in expected.items():
        if key[0] != "rank":
            least = 0 if key[0] in ("dice", "mean") else -1
            low, high = max(least, mean - 12.7 * (mean - low)), min(1, mean + 12.7 * (high - mean))
        assert found[key].to_list() == pytest.approx([mean, low, high, 2], abs=0.1), key


def test_dice_intervals_compare_over_shared_sites() -> None:
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
    assert select_methods(found, "rank")["mean"].to_dict() == {"a": 2, "b": 1, "c": 3}


def test_dice_intervals_tied_methods_share_better_rank() -> None:
    cases = _cases({(method, 0, "A"): [dice] for method, dice in {"a": 0.8, "b": 0.8, "c": 0.5}.items()})
    ranks = select_methods(dice_intervals(cases, ["a", "b", "c"], "standalone"), "rank")["mean"]
    assert ranks.to_dict() == {"a": 1, "b": 1, "c": 3}


def test_dice_intervals_site_with_few_cases_has_no_interval() -> None:
    table = dice_intervals(
        _cases({("a", seed, site): [0.5, 0.7] for seed in (0, 1) for site in "AB"}), ["a"], "standalone"
    )
    left = drop_small_sample_intervals(table, ["B"])
    assert left["low"].dropna().index.to_list() == left["high"].dropna().index.to_list() == [("dice", "a", "A")]
    assert left["mean"].equals(table["mean"])
    assert drop_small_sample_intervals(table, []).equals(table)


def test_contribution_intervals_equal_hand_computed() -> None:
    said = made_results(made_rounds("contribution", {"a": [(0.1, 0.2), (0.5, 0.7), (0.3, 0.3)]}), ["a"])
    found = contribution_intervals(said.rounds.contributions["mean_contribution"])
    expected = {"Alder": (0.15, 0.1, 0.2), "Birch": (0.6, 0.5, 0.7), "Cedar": (0.3, 0.3, 0.3)}
    assert set(found.index) == {("contribution", "a", site) for site in expected}
    for site, (mean, low, high) in expected.items():
        ends = mean - 12.7 * (mean - low), mean + 12.7 * (high - mean)  # the seeds' numbers are a standard error apart
        row = found.loc["contribution", "a", site]
        assert row[["mean", "low", "high"]].to_list() == pytest.approx([mean, *ends], abs=0.15), site
    above = {"Alder": (0.2, 0.2), "Birch": (0.2, 0.3), "Cedar": (0.0, 0.1)}  # from the mean of .3 and .4, by seed
    p = [ttest_1samp(numbers, 0).pvalue if np.ptp(numbers) else 0.0 for numbers in above.values()]
    assert found["p"].to_list() == pytest.approx(p, abs=0.1)
    bounded = contribution_intervals(said.rounds.contributions["mean_contribution"], (0, 1))
    assert bounded.loc[("contribution", "a", "Birch"), ["low", "high"]].to_list() == [0, 1]
    assert contribution_intervals(pd.Series(dtype=float)) is NONE


def test_p_values_equal_students_test() -> None:
    numbers = np.random.default_rng(1).normal(1, 1, (6, 3))
    half = scipy.stats.t.ppf(0.975, 2) * numbers.std(axis=1, ddof=1) / 3**0.5
    p = p_values(numbers.mean(axis=1), numbers.mean(axis=1) - half, numbers.mean(axis=1) + half, 3)
    assert p == pytest.approx(ttest_1samp(numbers, 0, axis=1).pvalue)
    assert p_values([0.0, 0.1, math.nan, 0.1], [0.0, 0.1, 0.0, math.nan], [0.0, 0.1, 0.0, 1.0], 2) == pytest.approx(
        [1, 0, math.nan, math.nan], nan_ok=True
    )


def test_holm_equals_hand_computed() -> None:
    """The smallest times as many as there are, the next by one less, none below an earlier one."""
    assert holm([0.04, 0.01, math.nan, 0.03, 0.9]) == pytest.approx([0.09, 0.04, math.nan, 0.09, 0.9], nan_ok=True)
    assert holm([0.6, 0.7]).tolist() == [1, 1]


def test_holm_with_weights_equals_hand_computed() -> None:
    """Level shares 6, 1 and 1 of 8: .03 of 8/6 comes first, then .01 of 2 and .2 of 1."""
    assert holm([0.03, 0.01, 0.2], [6, 1, 1]) == pytest.approx([0.04, 0.04, 0.2])
    assert holm([0.03, 0.05, 0.2], [6, 1, 1]) == pytest.approx([0.04, 0.1, 0.2])
    assert holm([0.01, math.nan, 0.03], [1, 5, 1]) == pytest.approx([0.02, math.nan, 0.03], nan_ok=True)


@pytest.mark.parametrize(
    ("seeds", "patients", "hospitals"),
    [(3, 5, 4), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((5, 5, 8), (3, 30, 16), (10, 5, 16)))],
)
def test_gain_of_equal_methods_is_rarely_significant(seeds: int, patients: int, hospitals: int) -> None:
    """Of any of 16 it was 67 % at three seeds, 89 % at five. The standard error of 240 studies is 1.4 points."""
    assert wrong_verdicts(seeds, patients, STABLE, hospitals, 240) <= 5 + 3


@pytest.mark.parametrize(
    ("seeds", "hospitals"),
    [(3, 4), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((2, 16), (5, 16), (10, 8)))],
)
def test_share_of_equal_hospitals_is_rarely_significant(seeds: int, hospitals: int) -> None:
    """Of 16 hospitals some share was significantly unequal in 42 %, some pair different in most studies."""
    unequal, pairs = wrong_shares(seeds, hospitals, 150)
    assert unequal <= 5 + 5  # two and a half standard errors
    assert pairs <= 5 + 5


@pytest.mark.slow
@pytest.mark.parametrize("methods", [2, 5, 22])
def test_difference_of_equal_methods_is_rarely_significant(methods: int) -> None:
    """Of 22 some method was significantly below the best in 58 to 83 %."""
    assert wrong_leads(3, 5, USUAL, methods, 50) <= 5 + 7
