"""Worked numbers: how they are compared, and what the readers of the methods share."""

import torch

from fedmerit.contract.method import Reports


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def assert_equal(ours, oracle, what):
    """Equal to 1e-6."""
    assert torch.allclose(torch.as_tensor(ours, dtype=torch.float64), tensor(oracle), rtol=0, atol=1e-6), what


def everyone(samples, values=None, candidates=None):
    """Reports of a round that no site missed."""
    return Reports(tensor(samples), torch.ones(len(samples), dtype=torch.bool), values or {}, candidates)


def contains(content, entry):
    """Whether a file has the entry."""
    return entry in content
