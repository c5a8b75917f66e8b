import math

import pytest
import torch

from fedmerit.core import Reports
from fedmerit.vectors import aggregate, cosine_to_others, gram, share


@pytest.fixture
def random():
    return torch.Generator().manual_seed(0)


BLOCK = 1 << 20  # columns the reductions take at a time


@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (3, 7), (5, 1000), (2, BLOCK), (2, BLOCK + 1)])
def test_gram_is_every_inner_product_in_float64(n, d, random):
    updates = torch.randn(n, d, generator=random)  # (n, d) float32
    products = gram(updates)
    assert products.dtype == torch.float64
    for i in range(n):
        for j in range(n):
            assert abs(products[i, j] - (updates[i].double() * updates[j].double()).sum()) <= 1e-12 * d


def test_gram_of_huge_and_tiny_updates(random):
    updates = torch.randn(3, 50, generator=random)  # (3, 50)
    for scale in (1e30, 1e-30):
        assert torch.allclose(gram(updates * scale) / scale**2, gram(updates), rtol=1e-5)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_cosine_to_others_is_the_cosine_with_the_weighted_sum_of_the_others(n, random):
    updates = torch.randn(n, 40, generator=random, dtype=torch.float64)  # (n, 40)
    weights = torch.rand(n, generator=random, dtype=torch.float64)
    cosine = cosine_to_others(gram(updates), weights)
    for i in range(n):
        others = sum(weights[j] * updates[j] for j in range(n) if j != i)
        expected = updates[i] @ others / (updates[i].norm() * others.norm())
        assert abs(cosine[i] - expected) < 1e-12


def test_cosine_to_others_does_not_depend_on_the_sites_own_weight(random):
    products = gram(torch.randn(3, 10, generator=random))  # (3, 10)
    first = cosine_to_others(products, torch.tensor([0.1, 0.2, 0.7]))
    second = cosine_to_others(products, torch.tensor([0.9, 0.2, 0.7]))
    assert first[0] == second[0]


def test_cosine_to_others_is_zero_where_a_vector_is_zero():
    zero, one = [0.0, 0.0], [1.0, 2.0]
    assert cosine_to_others(gram(torch.tensor([one])), torch.ones(1)).tolist() == [0]  # alone
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


def test_aggregate_does_not_lose_small_sums(random):
    model = torch.full((4,), 1e8)  # (4,): the updates cancel exactly, below float32's resolution at 1e8
    updates = torch.tensor([[1.0] * 4, [-1.0] * 4])  # (2, 4)
    assert torch.equal(aggregate(model, torch.tensor([0.5, 0.5]), updates), model)


def test_share_normalises_over_present_sites():
    present = torch.tensor([True, False, True])
    assert share(torch.tensor([1.0, 100.0, 3.0]), present).tolist() == [0.25, 0, 0.75]
    assert share(torch.tensor([1.0, math.nan, 3.0]), present).tolist() == [0.25, 0, 0.75]
    assert share(torch.tensor([0.0, 100.0, 0.0]), present).tolist() == [0.5, 0, 0.5]


def test_data_share_counts_present_sites_alone():
    reports = Reports(torch.tensor([10.0, 20.0, math.nan]), torch.tensor([True, True, False]))
    assert reports.data_share.tolist() == [10 / 30, 20 / 30, 0]
    assert reports.data_share.dtype == torch.float64
