"""Which rounds are observed."""

import pytest
from observing import some_rounds

from fedmerit.observers import MultiRoundReconstruction


@pytest.mark.parametrize(("every", "expected"), [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (3, [1, 4]), (0, [4])])
def test_every_so_many_rounds_are_observed_and_the_last_one_always(every, expected):
    observed = [view.round for view in some_rounds(5) if MultiRoundReconstruction(every=every).observe({}, view)[1]]
    assert observed == expected
