"""Divergences of histograms of losses."""

import math

import pytest
import torch

from fedmerit.methods.loss_distributions import distribution, divergence, floored_divergence, sampling_divergence


def test_the_divergence_of_worked_numbers():
    p, q = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64), torch.full((2, 2), 0.5, dtype=torch.float64)
    expected = [0.0, 0.9 * math.log(1.8) + 0.1 * math.log(0.2)]
    assert divergence(p, q).tolist() == pytest.approx(expected, abs=1e-12)


def test_the_floor_is_what_samples_of_one_distribution_are_apart():
    """The mean over many pairs of samples, of which enough fall into every bin."""
    draw, bins, n, m = torch.Generator().manual_seed(1), 5, 2000, 3000
    shares = torch.tensor([1.0, 2, 3, 2, 1])
    pairs = [torch.multinomial(shares.expand(400, bins), size, True, generator=draw) for size in (n, m)]
    counts = [torch.stack([row.bincount(minlength=bins) for row in rows]) for rows in pairs]
    found = divergence(*(distribution(count, 0.0) for count in counts)).mean()
    one = torch.ones(1, dtype=torch.float64)
    assert float(found) == pytest.approx(float(sampling_divergence(n * one, m * one, bins)), rel=0.1)


def test_a_histogram_that_is_not_available_counts_as_even_and_nothing_is_0():
    own = torch.tensor([[torch.nan, torch.nan], [3.0, 3.0]]).double()
    validation = torch.tensor([[5.0, 5.0], [5.0, 5.0]]).double()
    assert floored_divergence(own, validation, 1.0, 0.01).tolist() == [0.01, 0.01]
    assert floored_divergence(own, validation, 1.0, None).tolist() == pytest.approx([0.5 * 1.1, 0.5 * (1 / 6 + 0.1)])
    assert (floored_divergence(own[:, :1], validation[:, :1], 1.0, None) > 0).all()
