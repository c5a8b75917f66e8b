"""The verbs on updates, models and Gram matrices."""

import math
from itertools import pairwise

import pytest
import reference_rewards
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from rounds import few

from fedmerit.contract.vectors import (
    BLOCK,
    LARGE,
    add_masked,
    aggregate,
    cosine_to_others,
    cosine_to_sum,
    distances,
    extremes,
    fresh_zeros,
    gram,
    keep_largest,
    keep_largest_per_tensor,
    norms_outside,
    quota_counts,
    remember,
    reshare,
    share,
    trained_models,
)


@pytest.fixture
def random():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (3, 7), (5, 1000), (2, BLOCK), (2, BLOCK + 1)])
def test_gram_is_every_inner_product_in_float64(n, d, random):
    updates = torch.randn(n, d, generator=random)  # (n, d) float32
    products = gram(updates)
    assert products.dtype == torch.float64
    for i in range(n):
        for j in range(n):
            assert abs(products[i, j] - (updates[i].double() * updates[j].double()).sum()) <= 1e-12 * d


@pytest.mark.parametrize("n", [2, 3, 6])
def test_cosine_to_others_is_the_cosine_with_the_weighted_sum_of_the_others(n, random):
    updates = torch.randn(n, 40, generator=random, dtype=torch.float64)  # (n, 40)
    weights = torch.rand(n, generator=random, dtype=torch.float64)
    cosine = cosine_to_others(gram(updates), weights)
    for i in range(n):
        others = sum(weights[j] * updates[j] for j in range(n) if j != i)
        expected = updates[i] @ others / (updates[i].norm() * others.norm())
        assert abs(cosine[i] - expected) < 1e-12


def test_cosine_to_others_is_zero_where_a_vector_is_zero():
    zero, one = [0.0, 0.0], [1.0, 2.0]
    assert cosine_to_others(gram(torch.tensor([one])), torch.ones(1)).tolist() == [0]  # only
    assert cosine_to_others(gram(torch.tensor([one, zero])), torch.ones(2)).tolist() == [0, 0]
    assert cosine_to_others(gram(torch.tensor([zero, zero])), torch.ones(2)).tolist() == [0, 0]
    assert cosine_to_others(gram(torch.tensor([one, one, one])), torch.zeros(3)).tolist() == [0, 0, 0]


def test_cosine_to_others_stays_within_one(random):
    update = torch.randn(1, 1000, generator=random)
    parallel = torch.cat([update, update * 3, -update])  # (3, 1000)
    cosine = cosine_to_others(gram(parallel), torch.tensor([1.0, 1.0, 1.0]))
    assert cosine.abs().max() <= 1
    assert torch.allclose(cosine, torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64).where(cosine.abs() > 0.5, 0.0))


@pytest.mark.parametrize("d", [1, 7, BLOCK, BLOCK + 3])
def test_aggregate_is_the_model_plus_the_weighted_sum(d, random):
    model, updates = torch.randn(d, generator=random), torch.randn(3, d, generator=random)  # (d,), (3, d)
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    result = aggregate(model, weights, updates)
    expected = model.double() + sum(weight * update.double() for weight, update in zip(weights, updates, strict=True))
    assert result.dtype == torch.float32
    assert result.shape == (d,)
    assert (result.double() - expected).abs().max() <= 2**-24 * expected.abs().max()  # rounded once
    assert torch.equal(result, aggregate(model.clone(), weights.clone(), updates.clone()))


def test_share_normalises_over_present_sites():
    present = torch.tensor([True, False, True])
    assert share(torch.tensor([1.0, 100.0, 3.0]), present).tolist() == [0.25, 0, 0.75]
    assert share(torch.tensor([1.0, math.nan, 3.0]), present).tolist() == [0.25, 0, 0.75]
    assert share(torch.tensor([0.0, 100.0, 0.0]), present).tolist() == [0.5, 0, 0.5]


def test_cosine_to_sum_is_the_cosine_with_the_weighted_sum():
    updates = torch.randn(5, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = torch.tensor([0.5, 0.2, 0.2, 0.1, 0.0], dtype=torch.float64)
    total = weights @ updates
    expected = updates @ total / (updates.norm(dim=1) * total.norm())
    assert torch.allclose(cosine_to_sum(gram(updates), weights), expected, rtol=0, atol=1e-12)


def test_cosine_to_sum_is_zero_where_a_vector_is_zero_and_stays_within_one():
    updates = torch.tensor([[0.0, 0.0], [0.1, 0.3]])
    assert cosine_to_sum(gram(updates), torch.tensor([0.5, 0.5])).tolist() == pytest.approx([0, 1])
    assert cosine_to_sum(gram(updates), torch.tensor([1.0, 0.0])).tolist() == [0, 0]
    parallel = torch.randn(1, 1000, generator=torch.Generator().manual_seed(2)) * torch.tensor([[1.0], [3.0], [-1.0]])
    assert cosine_to_sum(gram(parallel), torch.ones(3)).abs().max() <= 1


close = st.integers(-40, 40).map(lambda steps: (1 + abs(steps) * 2.0**-23) * (-1.0 if steps < 0 else 1.0))
vectors = st.lists(st.sampled_from([-2.0, -1.0, 0.0, -0.0, 0.5, 1.0, 2.0, 3.5]) | close, min_size=1, max_size=12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(vector=vectors, counts=st.lists(st.integers(0, 12), max_size=4))
@few
def test_keep_largest_takes_the_largest_magnitudes_ties_to_the_lower_index(dtype, vector, counts):
    counts = [min(count, len(vector)) for count in counts]
    masks = keep_largest(torch.tensor(vector, dtype=dtype), counts)
    assert masks.shape == (len(counts), len(vector))
    assert masks.dtype == torch.bool
    for mask, count in zip(masks, counts, strict=True):
        assert mask.nonzero().flatten().tolist() == reference_rewards.largest(vector, count)


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_keep_largest_of_equal_entries_beyond_a_block_takes_the_first(value):
    vector = torch.full((BLOCK + 10,), value)
    vector[::2] *= -1
    vector[BLOCK + 5] = -2.0
    counts = [0, 1, 2, BLOCK, BLOCK + 3, BLOCK + 3, BLOCK + 10]
    for mask, count in zip(keep_largest(vector, counts), counts, strict=True):
        assert mask.nonzero().flatten().tolist() == reference_rewards.largest(vector.tolist(), count)


@given(
    vector=vectors,
    quotas=st.lists(st.sampled_from([0.0, 1e-6, 0.02, 0.3, 0.5, 0.9, 1.0]), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 11), max_size=3),
)
@example(vector=[1.0, 2.0, 3.0], quotas=[1.0, 0.0, 0.01], cuts=[1])  # a tensor of one element
@few
def test_keep_largest_per_tensor_is_the_released_rule(vector, quotas, cuts):
    places = sorted({cut for cut in cuts if cut < len(vector)} | {0, len(vector)})
    sizes = [stop - start for start, stop in pairwise(places)]
    masks = keep_largest_per_tensor(torch.tensor(vector), torch.tensor(quotas, dtype=torch.float64), sizes)
    for mask, quota in zip(masks, quotas, strict=True):
        assert mask.nonzero().flatten().tolist() == reference_rewards.largest_per_tensor(vector, quota, sizes)


def test_quota_counts_are_floors_that_forgive_rounding():
    quotas = torch.tensor([0.0, 0.29999999999999999, 0.1 + 0.2, 0.35, 0.999, 1.0, -0.5], dtype=torch.float64)
    assert quota_counts(quotas, 10) == [0, 3, 3, 3, 9, 10, 0]
    assert quota_counts(torch.tensor([0.7 * (1 - 1e-16), 1 + 1e-12], dtype=torch.float64), 10) == [7, 10]
    assert quota_counts(torch.tensor([0.5]), 1) == [0]


def test_remember_mixes_past_and_present_and_keeps_what_absent_sites_have():
    memory, now = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([5.0, 6.0, math.nan]).double()
    present = torch.tensor([True, True, False])
    assert remember(memory, now, 0.75, present).tolist() == [2, 3, 3]


def test_reshare_divides_what_the_present_sites_held():
    memory, amounts = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([3.0, 1.0, math.nan]).double()
    present = torch.tensor([True, True, False])
    assert reshare(memory, amounts, present).tolist() == pytest.approx([0.6, 0.2, 0.2])
    assert reshare(memory, torch.zeros(3), present).tolist() == pytest.approx([0.4, 0.4, 0.2])
    assert reshare(torch.zeros(3).double(), amounts, present).tolist() == pytest.approx([0.75, 0.25, 0])
    newcomers_had_nobody_else = torch.tensor([1.0, 1.0, 0.0]).double()
    assert reshare(newcomers_had_nobody_else, amounts, present).tolist() == pytest.approx([0.75, 0.25, 0])


@pytest.mark.parametrize("size", [1, 7, BLOCK, BLOCK + 3])
def test_add_masked_adds_what_is_marked_and_elsewhere_what_is_instead(size, random):
    models, own = torch.randn(3, size, generator=random), torch.randn(3, size, generator=random)
    update, masks = torch.randn(size, generator=random), torch.rand(3, size, generator=random) < 0.5
    kept, given_masks = models.clone(), masks.clone()
    assert torch.equal(add_masked(models, update, masks), torch.where(masks, models + update, models))
    assert torch.equal(add_masked(models, update, masks, own), torch.where(masks, models + update, models + own))
    assert torch.equal(models, kept)
    assert torch.equal(masks, given_masks)


@pytest.mark.parametrize("size", [7, BLOCK + 3])
def test_distances_and_what_masks_leave_out(size):
    random = torch.Generator().manual_seed(size)
    vectors, point = torch.randn(3, size, generator=random), torch.randn(size, generator=random)
    assert torch.allclose(distances(vectors, point), (vectors.double() - point.double()).norm(dim=1), rtol=1e-12)
    masks = torch.rand(3, size, generator=random) < 0.5
    masks[0] = True
    left_out = (point.double() * ~masks).norm(dim=1)
    assert torch.allclose(norms_outside(point, masks), left_out, rtol=1e-12)
    assert norms_outside(point, masks)[0] == 0


def test_trained_models_of_one_model_and_of_one_per_site():
    updates, present = torch.arange(6.0).view(3, 2), torch.tensor([True, False, True])
    assert trained_models(torch.ones(2), updates, present).tolist() == [[1, 2], [5, 6]]
    assert trained_models(10 * updates, updates, present).tolist() == [[0, 11], [44, 55]]
    also = torch.tensor([7.0, 8.0])
    assert trained_models(torch.ones(2), updates, present, also).tolist() == [[1, 2], [5, 6], [7, 8]]
    assert updates[0].tolist() == [0, 1]


def test_extremes_of_all_entries():
    assert extremes(torch.tensor([[3.0, -2.0], [0.5, 1.0]])) == (-2.0, 3.0)
    assert extremes(torch.zeros(0, 4)) == (0.0, 0.0)
    assert all(map(math.isnan, extremes(torch.tensor([1.0, math.nan, -math.inf]))))


@pytest.mark.parametrize("columns", [1, LARGE // 8, LARGE // 8 + 1])  # below, at and above what is large
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_zeros_that_can_be_written(columns, dtype):
    matrix = fresh_zeros(2, columns, dtype=dtype)
    assert (matrix.shape, matrix.dtype, matrix.is_contiguous()) == ((2, columns), dtype, True)
    assert not matrix.any()
    matrix[1] = 1
    assert matrix.sum(dim=1).tolist() == [0, columns]
