"""Theorem 1 and Lemma 1 of CGSV: the parts make up the whole, and the bounds hold."""

import numpy as np
import pytest
import torch

from fedmerit_lab.papers.cosine_bounds import parts, table


@pytest.mark.parametrize("gamma", [1.0, 0.3])
def test_the_parts_make_up_the_shapley_value(gamma):
    draw = torch.Generator().manual_seed(3)
    updates = torch.randn(5, 40, generator=draw, dtype=torch.float64) + 0.3
    weights = torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15], dtype=torch.float64)
    found = parts(updates, weights, gamma)
    np.testing.assert_allclose(found.factors * found.cosines + found.errors, found.values, atol=1e-12)
    u = gamma * updates / updates.norm(dim=1, keepdim=True)
    total = (weights[:, None] * u).sum(dim=0)
    np.testing.assert_allclose(found.cosines, torch.cosine_similarity(u, total[None]).numpy(), atol=1e-12)
    assert found.values.sum() == pytest.approx(1)


def test_the_bounds_hold_of_random_updates():
    found = table(sites=4, dimensions=50, repeats=4)
    assert (found["Within it [%]"] == 100).all()
    assert (found["Within it, L [%]"] == 100).all()
    assert (found["Error, largest"] > 0).all()
