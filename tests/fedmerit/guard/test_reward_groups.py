"""Who earns as one."""

import pytest
import torch

from fedmerit.guard.reward_groups import find_reward_groups, find_shared_cases

ORGANISATIONS = torch.tensor([0, 1, 1, 1])


def test_sites_are_copies_by_cases_where_each_has_half_of_the_others():
    hospital = [f"{number:032x}" for number in range(10)]
    sites = [frozenset(hospital), frozenset(hospital[:1]), frozenset(hospital[:5]), frozenset()]
    shared = find_shared_cases(sites)
    assert shared.nonzero().tolist() == [[0, 2], [2, 0]]  # one image of ten, and all that a site has, is not enough


@pytest.mark.parametrize(
    ("counted", "first", "parts"),
    [
        ([True, True, True, True], [0, 1, 1, 1], [1, 0.25, 0.25, 0.5]),
        ([True, False, True, True], [0, 1, 1, 1], [1, 0, 1 / 3, 2 / 3]),
        ([True, False, False, True], [0, 1, 1, 1], [1, 0, 0, 1]),
        ([True, False, False, False], [0, 1, 2, 3], [1, 1, 1, 1]),
    ],
)
def test_a_group_stands_in_the_row_of_its_first_site_whoever_is_away(counted, first, parts):
    counts, none = torch.tensor([50.0, 10.0, 10.0, 20.0]), torch.zeros(4, 4).bool()
    found = find_reward_groups(torch.tensor(counted), counts, none, ORGANISATIONS)
    assert found.first.tolist() == first
    assert found.parts.tolist() == pytest.approx(parts)
    merged = found.averaging_matrix @ torch.tensor([1.0, 5.0, 6.0, 9.0]).double()
    expected = sum(part * value for part, value in zip(parts[1:], (5.0, 6.0, 9.0), strict=True))
    assert float(merged[1]) == pytest.approx(expected if any(counted[1:]) else 5.0)


def test_copies_count_alike_whoever_is_away():
    counts, copied = torch.tensor([50.0, 10.0, 30.0]), torch.zeros(3, 3).bool()
    copied[0, 1] = copied[1, 0] = copied[1, 2] = copied[2, 1] = True
    apart = torch.arange(3)
    assert find_reward_groups(torch.ones(3).bool(), counts, copied, apart).parts.tolist() == pytest.approx([1 / 3] * 3)
    two = find_reward_groups(torch.tensor([True, False, True]), counts, copied, apart)
    assert (two.first.tolist(), two.parts.tolist()) == ([0, 0, 0], pytest.approx([0.5, 0, 0.5]))
