"""What a site is compared with: the median of the others, worked by hand."""

import pytest
import torch

from fedmerit.guard.rule import median_of_others, shrink_factors

ALL = torch.ones(4, dtype=torch.bool)
AMOUNTS = torch.tensor([1.0, 2.0, 4.0, 100.0])


def test_a_site_has_no_part_in_the_median_it_is_held_to():
    """Of 2, 4, 100: 4; of 1, 4, 100: 4; of 1, 2, 100: 2; of 1, 2, 4: 2."""
    assert median_of_others(AMOUNTS, ALL).tolist() == [4, 4, 2, 2]


def test_the_median_is_of_known_sites_and_of_two_the_middle():
    known = torch.tensor([True, True, True, False])
    spoilt = AMOUNTS.where(known, torch.nan)
    assert median_of_others(spoilt, known).tolist() == [3, 2.5, 1.5, 2]


def test_there_is_no_median_of_fewer_than_two_others():
    found = median_of_others(AMOUNTS, torch.tensor([True, True, False, False]))
    assert found.isnan().tolist() == [True, True, False, False]
    assert found[2:].tolist() == [1.5, 1.5]


def test_what_is_over_so_many_times_the_median_of_the_others_is_brought_to_that():
    assert shrink_factors(AMOUNTS, ALL, 3.0).tolist() == pytest.approx([1, 1, 1, 6 / 100])
    assert shrink_factors(AMOUNTS, ALL, 1.5).tolist() == pytest.approx([1, 1, 3 / 4, 3 / 100])


@pytest.mark.parametrize(
    ("amounts", "known"),
    [
        ([1.0, 1.0, 1.0, 3.0], [True] * 4),  # no more than three times
        ([1.0, 1.0, 1.0, 9.0], [True, True, True, False]),  # nothing is known of it
        ([1.0, 1.0, 1.0, 9.0], [True, False, False, True]),  # of one other there is no median
        ([0.0, 0.0, 0.0, 9.0], [True] * 4),  # three times nothing is no bound
    ],
)
def test_all_else_is_left_alone(amounts, known):
    assert shrink_factors(torch.tensor(amounts), torch.tensor(known), 3.0).tolist() == [1, 1, 1, 1]
