"""Games of sites: Shapley values, the cosine game, coalitions of updates."""

from itertools import combinations

import pytest
import reference_rewards
import torch
from hypothesis import given
from hypothesis import strategies as st
from rounds import few

from fedmerit.contract.games import coalition_candidates, coalitions_to_evaluate, cosine_game, sampled_shapley, shapley
from fedmerit.contract.method import Reports
from fedmerit.contract.vectors import gram


@given(utilities=st.integers(1, 5).flatmap(lambda n: st.lists(st.floats(-10, 10), min_size=2**n, max_size=2**n)))
@few
def test_shapley_is_the_mean_over_all_orders(utilities):
    utilities = [0.0, *utilities[1:]]
    n = len(utilities).bit_length() - 1
    expected = reference_rewards.by_orders(n, lambda who: utilities[sum(1 << i for i in who)])
    values = shapley(torch.tensor(utilities, dtype=torch.float64))
    assert values.tolist() == pytest.approx(expected, abs=1e-9)
    assert values.sum().item() == pytest.approx(utilities[-1], abs=1e-9)


def unit_products(n, seed=0, common=0.5):
    """(n, n) cosines of n vectors with something in common, and (n,) weights."""
    random = torch.Generator().manual_seed(seed)
    vectors = torch.randn(n, 30, generator=random, dtype=torch.float64)
    vectors = vectors + common * torch.randn(30, generator=random, dtype=torch.float64)
    weights = torch.rand(n, generator=random, dtype=torch.float64)
    return gram(vectors / vectors.norm(dim=1, keepdim=True)), weights / weights.sum()


@pytest.mark.parametrize("n", range(1, 8))
def test_the_cosine_game_is_the_cosine_of_every_coalition(n):
    products, weights = unit_products(n)
    game = cosine_game(products, weights)
    assert len(game) == 2**n
    assert game[0] == 0
    for size in range(1, n + 1):
        for coalition in combinations(range(n), size):
            who = torch.zeros(n, dtype=torch.float64)
            who[list(coalition)] = weights[list(coalition)]
            norms = (who @ products @ who).sqrt() * (weights @ products @ weights).sqrt()
            entry = game[sum(1 << i for i in coalition)]
            assert entry == pytest.approx(float(who @ products @ weights / norms), abs=1e-12)


def test_updates_that_cancel_are_worth_nothing():
    signs = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    weights = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    game = cosine_game(signs[:, None] * signs, weights)
    assert game.tolist() == pytest.approx([0, 1, -1, 0, 1, 1, 1, 1])  # {0, 1} is entry 3
    for weight in (0.1, 0.2, 0.3, 0.7):  # 3 w - w - 2 w leaves rounding
        parts = torch.tensor([3 * weight, weight, 2 * weight, 1.0], dtype=torch.float64)
        signs4 = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
        assert cosine_game(signs4[:, None] * signs4, parts / parts.sum())[7] == 0
        assert (cosine_game(signs4[:3, None] * signs4[:3], parts[:3] / parts[:3].sum()) == 0).all()  # u_N is zero


def test_the_exact_values_of_a_game_sum_to_one_and_nobody_without_weight_has_any():
    products, weights = unit_products(6)
    weights[2] = 0
    values = shapley(cosine_game(products, weights))
    assert values.sum().item() == pytest.approx(1, abs=1e-12)
    assert values[2].item() == pytest.approx(0, abs=1e-12)


def test_sampled_values_agree_with_the_exact_ones_within_their_errors():
    products, weights = unit_products(9)
    exact = shapley(cosine_game(products, weights))
    deviations = []
    for seed in range(60):
        values, errors = sampled_shapley(products, weights, 400, torch.Generator().manual_seed(seed))
        assert values.sum().item() == pytest.approx(1, abs=1e-12)
        assert (errors > 0).all()
        deviations.append((values - exact) / errors)
    deviations = torch.stack(deviations)  # of 540 normal numbers
    assert 0.9 < deviations.std() < 1.1
    assert deviations.mean().abs() < 0.15


def test_sampling_follows_its_seed():
    products, weights = unit_products(5)
    first, again, other = (
        sampled_shapley(products, weights, 10, torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_single_site_has_the_whole_game_with_no_error():
    values, errors = sampled_shapley(torch.ones(1, 1).double(), torch.ones(1), 10, torch.Generator())
    assert values.tolist() == [1]
    assert errors.tolist() == [0]


def test_coalitions_are_means_by_images_and_so_are_their_statistics():
    updates = torch.tensor([[1.0, 0.0], [9.0, 9.0], [0.0, 4.0]])
    reports = Reports(torch.tensor([10.0, 99.0, 30.0]).double(), torch.tensor([True, False, True]))
    candidates = coalition_candidates(torch.ones(2), updates, reports)
    assert (candidates.mixtures @ candidates.models.double()).tolist() == [[1, 1], [2, 1], [1, 5], [1.25, 4]]
    assert candidates.shares.tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 1], [0.25, 0, 0.75]]
    assert candidates.mixtures.sum(dim=1).tolist() == [1, 1, 1, 1]


def test_of_many_sites_as_many_coalitions_are_drawn_in_pairs():
    drawn = coalitions_to_evaluate(12, 60, 3)
    rows = {tuple(row) for row in drawn.tolist()}
    assert len(rows) == len(drawn) == 60
    assert {tuple(1 - value for value in row) for row in rows} == rows  # with each, its complement
    assert torch.equal(drawn, coalitions_to_evaluate(12, 60, 3))
    assert not torch.equal(drawn, coalitions_to_evaluate(12, 60, 4))
    sizes = torch.bincount(drawn.sum(dim=1), minlength=13)
    assert sizes[1] == sizes[11] == 12  # all of them, before any other is drawn
    many = torch.cat([coalitions_to_evaluate(12, 60, seed) for seed in range(40)]).sum(dim=1)
    counts = torch.bincount(many, minlength=13).double()
    assert float(counts[2] / counts[6]) == pytest.approx(36 / 20, rel=0.3)  # by the kernel, 1 / (s (n - s))
