"""What images count, worked by hand: bounded by earner, divided by parts, copies once."""

import pytest
import torch

from fedmerit.guard.bounds import bound_counts


def counted(counts, earner=None, parts=None, copies=None):
    n = len(counts)
    found = bound_counts(
        torch.tensor(counts).double(),
        torch.arange(n) if earner is None else torch.tensor(earner),
        torch.ones(n).double() if parts is None else torch.tensor(parts).double(),
        torch.zeros(n, dtype=torch.bool) if copies is None else torch.tensor(copies),
    )
    return pytest.approx(found.tolist())


def test_ordinary_counts_stay_as_they_are_and_an_invented_one_is_three_times_the_median():
    assert counted([10, 20, 30, 40]) == [10, 20, 30, 40]
    assert counted([10, 20, 30, 1e9]) == [10, 20, 30, 60]


def test_a_count_that_is_not_known_is_nothing_and_bounds_nobody():
    """Known are 10, 20 and 100: to the last, the others' median is 15."""
    assert counted([10, 20, 0, 100]) == [10, 20, 0, 45]


def test_an_organisation_is_bounded_as_one_and_divides_what_it_counts():
    """600 and 400 images earn as one: 1000 are over three times the others' median of 20."""
    assert counted([10, 20, 30, 600, 400], [0, 1, 2, 3, 3], [1, 1, 1, 0.6, 0.4]) == [10, 20, 30, 36, 24]


def test_the_images_of_copies_count_once():
    """Of 50 and 40 the larger alone, half for each."""
    copies = [True, True, False, False]
    assert counted([50, 40, 60, 70], [0, 0, 2, 3], [0.5, 0.5, 1, 1], copies) == [25, 25, 60, 70]


def test_an_earner_is_bounded_whichever_of_its_sites_is_not_known():
    """Sites 0 and 1 earn as one; with 1e9 images they count three times the median, 60, of the other three."""
    earner, parts = torch.tensor([0, 0, 2, 3, 4]), torch.tensor([0.5, 0.5, 1, 1, 1], dtype=torch.float64)
    nobody = torch.zeros(5, dtype=torch.bool)
    for counts in ([0, 1e9, 50, 60, 70], [1e9, 0, 50, 60, 70]):
        found = bound_counts(torch.tensor(counts, dtype=torch.float64), earner, parts, nobody)
        assert found.sum() == pytest.approx(90 + 50 + 60 + 70)
