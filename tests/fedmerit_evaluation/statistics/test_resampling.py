"""Intervals by resampling: means known explicitly, coverage, pairing, what a case and a seed are."""

import math

import numpy as np
import pandas as pd
import pytest

from fedmerit.errors import BadInput
from fedmerit_evaluation.fairness import measures
from fedmerit_evaluation.statistics.resampling import CrossedEffects, StudentDraws, observed_dice
from fedmerit_evaluation.statistics.resampling import bootstrap as bootstrap_effects


def cases(values):
    """Dice by (method, seed, site, case) from a mapping of the first three to a list."""
    rows = {(*key, f"{place:03d}"): dice for key, those in values.items() for place, dice in enumerate(those)}
    return pd.Series(rows, dtype=float).rename_axis(["method", "seed", "site", "case"])


def bootstrap(table, *arguments, **options):
    return bootstrap_effects(CrossedEffects.from_cases(table), *arguments, **options)


def drawn_mean(dice):
    """The mean over sites of each method."""
    return {method: measures.mean(dice.of(method)) for method in dice.methods}


def synthetic(methods=("a", "b"), seeds=(0, 1, 2), sites="ABC", count=20, spread=0.1, shift=0.0):
    random = np.random.default_rng([len(sites), count])
    level = {(seed, site): random.uniform(0.4, 0.8, count) for seed in seeds for site in sites}
    return cases(
        {
            (method, seed, site): level[seed, site] + shift * place + random.normal(0, spread * place, count)
            for place, method in enumerate(methods)
            for seed in seeds
            for site in sites
        }
    )


def test_observed_dice_is_mean_of_known_cases():
    seen = observed_dice(
        CrossedEffects.from_cases(
            cases({("a", 0, "A"): [0.6, math.nan, 0.8], ("a", 0, "B"): [0.5], ("a", 1, "A"): [0.4]})
        )
    )
    assert (seen.seeds, seen.methods, seen.sites) == ([0, 1], ["a"], ["A", "B"])
    assert seen.of("a") == pytest.approx(np.array([[0.7, 0.5], [0.4, math.nan]]), nan_ok=True)


def test_bootstrap_mean_and_std_are_over_seeds():
    found = bootstrap(
        cases({("a", 0, "A"): [0.6], ("a", 0, "B"): [0.4], ("a", 1, "A"): [0.8], ("a", 1, "B"): [0.6]}),
        drawn_mean
    )["a"]  # fmt: skip
    assert found["mean"] == pytest.approx(0.6)
    assert found["std"] == pytest.approx(math.sqrt(2 * 0.1**2))
    assert found["seeds"] == 2
    # one case a site: only seeds are drawn; the standard error is 0.1, the quantile of t with one degree 12.7
    assert (found["low"], found["high"]) == pytest.approx((0.6 - 1.27, 0.6 + 1.27), abs=0.2)


def test_bootstrap_interval_is_clipped_to_bounds():
    table = cases({("a", 0, "A"): [0.6], ("a", 1, "A"): [0.8]})
    found = bootstrap(table, drawn_mean, bounds=lambda method: {"a": (0, 1)}[method])["a"]
    assert (found["mean"], found["low"], found["high"]) == pytest.approx((0.7, 0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_student_draws_of_seeds_cover_true_mean(seeds):
    """Drawn with replacement, 51, 73 and 85 % of them did."""
    random = np.random.default_rng(seeds)
    held = []
    for _ in range(3000):
        numbers = np.broadcast_to(random.normal(0.6, 0.05, seeds), (1000, seeds))
        low, high = np.quantile(StudentDraws.even(seeds, 1000, random).mean(numbers), [0.025, 0.975])
        held.append(low <= 0.6 <= high)
    assert 0.92 <= np.mean(held) <= 0.98


def test_student_draws_skip_missing_seeds():
    """With none it is none, with one its number; a draw of equal numbers is that number."""
    drawn = StudentDraws.even(3, 5, np.random.default_rng(0))
    numbers = np.array([[np.nan] * 3, [np.nan, 0.4, np.nan], [0.7] * 3, [0.2, np.nan, 0.7], [0.2, 0.4, 0.6]])
    means = drawn.mean(numbers)
    assert means[:3].tolist() == pytest.approx([np.nan, 0.4, 0.7], nan_ok=True)
    assert np.isfinite(means[3:]).all()
    other = drawn.mean(1 - numbers)
    assert (means + other)[1:].tolist() == pytest.approx([1] * 4)  # the same draw of all statistics


def test_bootstrap_statistic_of_one_seed_of_several_has_no_interval():
    table = cases({("a", 0, "A"): [0.5, 0.6], ("b", 0, "A"): [0.5, 0.6], ("b", 1, "A"): [0.5, 0.7]})
    found = bootstrap(table, drawn_mean, 50)
    assert math.isnan(found["a"]["low"])
    assert math.isfinite(found["b"]["low"])


def test_bootstrap_interval_of_mean_equals_students_t():
    """One seed, one site of 200 cases: half the width is 1.97 standard errors."""
    dice = np.random.default_rng(1).uniform(0.3, 0.9, 200)
    found = bootstrap(cases({("a", 0, "A"): dice}), drawn_mean, 20000)["a"]
    error = dice.std(ddof=1) / math.sqrt(200)
    assert found["mean"] == pytest.approx(dice.mean())
    assert math.isnan(found["std"])
    assert (found["low"], found["high"]) == pytest.approx(
        (dice.mean() - 1.97 * error, dice.mean() + 1.97 * error), abs=0.1 * error
    )


def test_bootstrap_difference_of_methods_is_paired():
    """Methods that differ by 0.05 in every case differ by 0.05 in every draw."""
    table = synthetic(spread=0, shift=0.05)
    between = bootstrap(table, lambda dice: {"d": drawn_mean(dice)["b"] - drawn_mean(dice)["a"]}, 200)
    difference = between["d"]
    assert (difference["low"], difference["high"]) == pytest.approx((0.05, 0.05))
    single = bootstrap(table, drawn_mean, 200)["a"]
    assert single["high"] - single["low"] > 0.01


def test_bootstrap_union_cases_are_shared_by_sites():
    dice = np.random.default_rng(4).uniform(size=30)
    rows = {
        ("a", 0, site, f"{'A' if place < 10 else 'B'}/{place:03d}"): value + (site == "B") * 0.1
        for site in "AB"
        for place, value in enumerate(dice)
    }
    table = pd.Series(rows).rename_axis(["method", "seed", "site", "case"])
    found = bootstrap(table, lambda d: {"d": d.of("a")[..., 1] - d.of("a")[..., 0]}, 100)["d"]
    assert (found["low"], found["high"]) == pytest.approx((0.1, 0.1))


def test_bootstrap_draws_cases_within_site():
    """Each site's mean stays that of its cases, however many another has."""
    table = cases({("a", 0, "A"): [0.2] * 50, ("a", 0, "B"): [0.8, 0.9]})
    found = bootstrap(table, lambda d: {site: d.of("a")[..., place] for place, site in enumerate("AB")}, 20000)
    assert (found["A"]["low"], found["A"]["high"]) == pytest.approx((0.2, 0.2))
    ends = 0.85 - 12.7 * 0.05, 0.85 + 12.7 * 0.05  # Student's of one degree, and the standard error
    assert (found["B"]["low"], found["B"]["high"]) == pytest.approx(ends, abs=0.15)


def test_bootstrap_same_patients_in_all_seeds_keep_width():
    """The same Dice in three seeds tells as much as in one."""
    dice = np.random.default_rng(7).uniform(0.3, 0.9, 8)
    one, three = (
        bootstrap(cases({("a", seed, "A"): dice for seed in range(seeds)}), drawn_mean)["a"] for seeds in (1, 3)
    )
    assert three["high"] - three["low"] == pytest.approx(one["high"] - one["low"], rel=0.1)


def test_bootstrap_repeats_with_same_seed():
    table = synthetic()
    first, again, other = (bootstrap(table, drawn_mean, 100, seed) for seed in (5, 5, 6))
    assert first == again
    assert first["a"]["low"] != other["a"]["low"]
    shuffled = table.sample(frac=1, random_state=np.random.default_rng(0))
    assert bootstrap(shuffled, drawn_mean, 100, 5) == first


def test_bootstrap_method_without_a_seed_counts_other_seeds():
    table = synthetic()
    table = table[~((table.index.get_level_values("method") == "b") & (table.index.get_level_values("seed") == 1))]
    found = bootstrap(table, drawn_mean, 200)
    assert (found["a"]["seeds"], found["b"]["seeds"]) == (3, 2)
    assert math.isfinite(found["b"]["low"])


def test_bootstrap_undefined_statistic_has_no_interval():
    table = cases({("a", 0, site): [0.5, 0.6] for site in "ABC"})
    flat = bootstrap(table, lambda d: {"r": measures.pearson(d.of("a"), [1, 2, 3])}, 200)["r"]
    assert math.isnan(flat["mean"])  # all sites have 0.55
    assert flat["seeds"] == 0
    assert math.isnan(flat["low"])
    often = cases({("a", 0, "A"): [0.5, 0.6], ("a", 0, "B"): [0.5, 0.7], ("a", 0, "C"): [0.5, 0.8]})
    found = bootstrap(often, lambda d: {"r": measures.pearson(d.of("a"), [1, 2, 3])}, 400)["r"]
    assert found["mean"] == pytest.approx(100)
    assert math.isfinite(found["low"])
    half = bootstrap(often, lambda d: {"r": np.where(d.of("a")[..., 0] < 0.52, np.nan, 1.0)}, 400)["r"]
    assert math.isnan(half["low"])


def test_crossed_effects_without_cases_raise():
    with pytest.raises(BadInput, match="no test case"):
        CrossedEffects.from_cases(synthetic().iloc[:0])
