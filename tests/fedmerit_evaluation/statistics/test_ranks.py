"""Rankings: what is distinguished and what is not, ranks as intervals, flips."""

import numpy as np
import pytest
from noisy_trainings import WORTH, trained

from fedmerit.contract.semivalues import leave_one_out_weights
from fedmerit_evaluation.ground_truth.reliability import resample, semivalue_function
from fedmerit_evaluation.statistics.inference import SampleSize
from fedmerit_evaluation.statistics.ranks import count_rank_flips, ranking


def drawn(means, sd, seeds=1, draws=2000, seed=0):
    """(s, n, D) independent normal draws about the observed means."""
    noise = np.random.default_rng(seed).normal(0, sd, (1, len(means), draws))
    values = np.repeat(np.array(means)[None, :, None], 1 + draws, axis=2)
    values[:, :, 1:] += noise
    return np.repeat(values, seeds, axis=0)


def test_ranking_tied_sites_share_ranks():
    one = ranking(["A", "B", "C", "D"], drawn([4.0, 4.0, 4.0, 1.0], 0.1))
    assert (one.highest_rank.tolist(), one.lowest_rank.tolist()) == ([1, 1, 1, 4], [3, 3, 3, 4])


def test_ranking_separates_only_distant_sites():
    one = ranking(["A", "B", "C"], drawn([5.0, 1.0, 1.2], 0.5))
    assert one.order == ["A", "C", "B"]
    assert one.order_signs.tolist() == [[0, 1, 1], [-1, 0, 0], [-1, 0, 0]]
    assert (one.highest_rank.tolist(), one.lowest_rank.tolist()) == ([1, 2, 2], [1, 3, 3])
    assert one.table.loc["C", ["ranks", "tied"]].tolist() == ["2 to 3", "B"]
    np.testing.assert_allclose([one.low[0], one.high[0]], [5 - 1.96 * 0.5, 5 + 1.96 * 0.5], atol=0.08)


def test_ranking_equal_values_have_no_significant_pair():
    """In 200 studies of 4 equal sites some pair differs significantly in at most 5 of 100; uncorrected, in 18 to 29."""
    reported = [
        ranking("ABCD", drawn(np.random.default_rng(k).normal(0, 1, 4), 1.0, draws=400)).order_signs for k in range(200)
    ]
    assert np.mean([one.any() for one in reported]) <= 0.05 + 0.03


def test_ranking_seeds_widen_intervals():
    """Three seeds that differ, and nothing else: Student's interval, 4.3 standard errors to either side."""
    values = np.array([[1.0, 3.0], [2.0, 3.5], [3.0, 4.0]])[:, :, None]
    one = ranking(["A", "B"], values)
    assert one.value.tolist() == [2.0, 3.5]
    assert [one.low[0], one.high[0]] == pytest.approx([2 - 4.3 / 3**0.5, 2 + 4.3 / 3**0.5], abs=0.3)
    assert one.order_signs[1, 0] == 1  # B leads by 2, 1.5 and 1
    assert ranking(["A", "B"], values[:2]).order_signs[1, 0] == 0  # which two seeds do not show


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_ranking_sites_that_differ_by_seed_are_rarely_significant(seeds):
    """Of 4 equal sites some pair by chance in at most 5 of 100 studies, corrected over the six pairs."""
    random = np.random.default_rng(seeds)
    reported = [ranking("ABCD", random.normal(size=(seeds, 4, 1)), seed=k).order_signs for k in range(500)]
    assert np.mean([one.any() for one in reported]) <= 0.05 + 0.03


def test_ranking_of_counts_has_no_interval():
    """Nor, of one seed, a significant difference."""
    one = ranking(["A", "B"], np.array([[[1.0], [900.0]]]))
    assert not one.measured
    assert np.isnan(one.low).all()
    assert (one.has_significant_pairs, one.insufficient_data) == (False, "no variance was measured")
    sums = np.array([[3 * [0.3, 0.1 + 0.2], [0.7] * 6]] * 3)  # the same, added up in another order
    assert not ranking(["A", "B"], sums).measured


def test_ranking_unknown_site_leaves_others_unchanged():
    counts = ranking(["A", "B", "C"], np.array([[[1.0], [2.0], [np.nan]]] * 2))
    assert not counts.measured
    assert np.isnan(counts.low).all()
    assert np.isnan(counts.high).all()
    drawn_ones = drawn([1.0, 3.0, np.nan], 0.1)
    one, without = ranking(["A", "B", "C"], drawn_ones), ranking(["A", "B"], drawn_ones[:, :2])
    assert one.measured
    np.testing.assert_array_equal(one.low, [*without.low, np.nan])
    assert one.order_signs.tolist() == [[0, -1, 0], [1, 0, 0], [0, 0, 0]]
    assert not ranking(["A"], np.full((1, 1, 5), np.nan)).measured


def test_share_with_negative_value_is_nan():
    assert ranking(["A", "B"], drawn([1.0, 3.0], 0.1)).share == pytest.approx([0.25, 0.75])
    assert np.isnan(ranking(["A", "B"], drawn([-1.0, 3.0], 0.1)).share).all()


def test_count_rank_flips_counts_flips_and_contradictions():
    sites = ["A", "B", "C"]
    first, second = ranking(sites, drawn([3.0, 2.0, 1.0], 0.1)), ranking(sites, drawn([1.0, 2.0, 2.1], 0.1))
    row = count_rank_flips({"x": first, "y": second}).iloc[0]
    assert (row["flips"], row["contradictions"], row["pairs"]) == (3, 2, 3)  # C over B is not sure


@pytest.mark.parametrize(("patients", "seeds"), [(4, 3), (5, 1)])
def test_ranking_small_sample_has_no_significant_pair(patients, seeds):
    values = drawn([5.0, 1.0, 3.0], 0.1, seeds=seeds)
    one = ranking("ABC", values, sample=SampleSize(patients, seeds, "validation patients"))
    assert not one.has_significant_pairs
    assert (one.highest_rank.tolist(), one.lowest_rank.tolist()) == ([1] * 3, [3] * 3)
    assert one.insufficient_data in ("too few validation patients (4; at least 5 are needed)", "only one seed")
    assert ranking("ABC", values, sample=SampleSize(5, 2)).has_significant_pairs
    assert np.array_equal(one.low, ranking("ABC", values).low)


def test_resample_sample_is_site_with_fewest_patients():
    one = resample(trained(WORTH, patients=(4, 9, 9, 9, 9)), semivalue_function(leave_one_out_weights), 20)
    assert one.fewest == 4
    assert one.ranking.insufficient_data == "too few test patients (4; at least 5 are needed)"
