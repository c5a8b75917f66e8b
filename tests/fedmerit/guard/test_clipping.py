"""By how much a long update is shortened, worked by hand."""

import pytest
import torch

from fedmerit.guard.bounds import clip_norms

UNKNOWN = torch.full((6,), torch.nan).double()


def test_an_update_longer_than_three_times_the_median_of_the_others_is_shortened_to_that():
    """The others' median is 1: 50 becomes 3, and 2.9 in its place stays."""
    lengths = torch.tensor([0.8, 1.0, 1.2, 1.0, 50.0]).double()
    factors = clip_norms(lengths, torch.ones(5, dtype=torch.bool), UNKNOWN[:5])
    assert factors.tolist() == pytest.approx([1, 1, 1, 1, 3 / 50])
    lengths[4] = 2.9
    assert (clip_norms(lengths, torch.ones(5, dtype=torch.bool), UNKNOWN[:5]) == 1).all()


def test_an_absent_site_is_neither_shortened_nor_in_the_median():
    """With the three zeros of absent sites the median would be 0, and there would be no bound."""
    lengths = torch.tensor([1.0, 0.0, 0.0, 2.0, 0.0, 40.0]).double()
    present = lengths > 0
    assert clip_norms(lengths, present, UNKNOWN).tolist() == pytest.approx([1, 1, 1, 1, 1, 3 * 1.5 / 40])


def test_with_one_other_the_last_median_counts():
    lengths, present = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 1e6]).double(), torch.tensor([True, *[False] * 4, True])
    before = torch.tensor([2.0, 2.0, 2.0, 2.0, 2.0, 1.5]).double()
    assert clip_norms(lengths, present, before).tolist() == pytest.approx([1, 1, 1, 1, 1, 4.5e-6])
    assert (clip_norms(lengths, present, UNKNOWN) == 1).all()
