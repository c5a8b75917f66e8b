"""What a site has in the entries that it earned nothing for."""

import pytest
import torch

from fedmerit.methods.registry import METHODS, build_method
from fedmerit.methods.unrewarded import CHOICES, instead
from fedmerit.parameters import rules
from fedmerit.vectors import reward

UPDATES = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 9.0, 9.0, 9.0]])


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("nothing", [[100, 0, -300, 0], [0, 0, 0, 0], [100, 20, -300, 40]]),
        ("own", [[100, 2, -300, 4], [5, 6, 7, 8], [100, 20, -300, 40]]),
    ],
)
def test_it_stays_as_it_was_or_is_what_the_site_trained(choice, expected):
    """Of the aggregate (100, 20, -300, 40) the first site earns a half, the second nothing, the third all."""
    aggregate, quota = torch.tensor([100.0, 20.0, -300.0, 40.0]), torch.tensor([0.5, 0.0, 1.0])
    found = reward(torch.ones(3, 4), aggregate, quota, instead=instead(choice, UPDATES))
    assert (found - 1).tolist() == expected


def test_methods_that_reward_by_entries_have_the_choice_and_refuse_another():
    by_entries = {"cgsv", "cffl", "cffl_released", "fedave", "eci"}
    assert {name for name, kind in METHODS.items() if "unrewarded" in rules(kind)} == by_entries
    for name in by_entries - {"cffl_released"}:  # which keeps own updates another way
        assert [build_method(name, {"unrewarded": choice}).unrewarded for choice in CHOICES] == ["nothing", "own"]
        with pytest.raises(ValueError, match=r"^unrewarded='half': expected one of nothing, own$"):
            build_method(name, {"unrewarded": "half"})
