"""The model and the update without one site, and the cosine to the others, beside literal means."""

import pytest
import torch

from fedmerit.contract import flat
from fedmerit.contract.vectors import BLOCK
from fedmerit.methods.fedce import cosine_to_others_mean, minus_model


@pytest.mark.parametrize("weights", [[0.5, 0.3, 0.2], [0.0, 0.5, 0.5], [0.999, 0.0005, 0.0005], [0.0, 1e-9, 1 - 1e-9]])
def test_the_minus_model_is_the_weighted_mean_of_the_others_models(weights):
    """Models (3, 100), also BatchNorm's buffers, by the same shares."""
    random = torch.Generator().manual_seed(0)
    shares = torch.tensor(weights, dtype=torch.float64)
    models = torch.randn(3, 100, generator=random, dtype=torch.float64)
    buffers = [{"running_var": torch.rand(8, generator=random, dtype=torch.float64)} for _ in models]
    received, mean = shares @ models, flat.average_buffers(buffers, shares)
    for i in range(3):
        others = [j for j in range(3) if j != i]
        renormalised = shares[others] / shares[others].sum()
        tolerance = 1e-14 / (1 - weights[i])
        assert torch.allclose(
            minus_model(received, models[i], weights[i]), renormalised @ models[others], rtol=0, atol=tolerance
        )
        without = flat.leave_out_buffers(mean, buffers[i], weights[i])
        expected = flat.average_buffers([buffers[j] for j in others], renormalised)
        assert torch.allclose(without["running_var"], expected["running_var"], rtol=0, atol=tolerance)
        assert (without["running_var"] >= 0).all()


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.9])
def test_the_sites_cosine_is_that_of_its_update_and_the_others_mean(weight):
    random = torch.Generator().manual_seed(0)
    before, own, others = torch.randn(3, 40, generator=random, dtype=torch.float64)  # (40,) each
    received = before + weight * own + (1 - weight) * others
    expected = own @ others / (own.norm() * others.norm())
    assert cosine_to_others_mean(received, before, before + own, weight) == pytest.approx(float(expected), abs=1e-12)


def test_the_sites_cosine_is_zero_where_nobody_moved():
    still, moved = torch.ones(3), torch.tensor([1.0, 2.0, 1.0])
    assert cosine_to_others_mean(still, still, still, 0.5) == 0
    assert cosine_to_others_mean(moved, still, still, 0.5) == 0  # it did not move itself
    assert cosine_to_others_mean(still, still, moved, 0.0) == 0  # the others did not


def test_models_of_more_than_one_block_are_taken_whole():
    """Entry by entry 1 + i, 4 of it the site's own at a weight of a half: (2 (1 + i) - 4)."""
    received, own = torch.arange(BLOCK + 3.0) + 1, torch.full((BLOCK + 3,), 4.0)
    assert torch.equal(minus_model(received, own, 0.5), 2 * received - 4)
    previous = torch.zeros(BLOCK + 3)
    previous[0], previous[-1] = 1.0, -1.0  # what moves lies in two blocks
    moved, received = previous.clone(), previous.clone()
    moved[0], moved[-1] = 5.0, 2.0  # by (4, 3)
    received[-1] = 4.0  # by (0, 5)
    assert cosine_to_others_mean(received, previous, moved, 0.0) == pytest.approx(3 / 5)
