"""The readings of CFFL's released code, worked by hand; beside the slow reference they stand in test_cffl.py."""

import math

import pytest
import torch
from rounds import with_dice

from fedmerit.core import Layout, Reports
from fedmerit.methods.cffl import CFFL, CFFLState
from fedmerit.methods.cffl_released import CFFLReleased

SHARES = torch.tensor([0.5, 0.3, 0.2]).double()


def test_released_cffl_expels_all_but_the_best_of_six_near_equal_sites_and_the_resolved_form_does_not():
    """Standalone Dice of six prostate sites as constant scores: the released loop has two stable ends."""
    dice, updates = [0.867, 0.855, 0.862, 0.899, 0.798, 0.910], torch.ones(6, 5)
    remaining = {}
    for name, method in (
        ("released", CFFLReleased(alpha=5.0, aggregation="share", keep_own=False)),
        ("tamed", CFFLReleased(alpha=4.0, aggregation="share", keep_own=False)),
        ("resolved", CFFL()),
    ):
        state = method.start(torch.zeros(5), 6, Layout.of(5))
        for _ in range(60):
            state, outcome = with_dice(method, state, dice, updates)
        remaining[name] = int(6 - outcome.quantities["expelled"].sum())
    assert remaining == {"released": 1, "tamed": 6, "resolved": 6}


def test_own_updates_are_kept_once():
    with pytest.raises(ValueError, match="keep_own=True: sites keep what they trained everywhere; leave unrewarded"):
        CFFLReleased(unrewarded="own")


def state_of(round, reputation=(0.2, 0.3, 0.5)):
    reputation = torch.tensor(reputation).double()
    return CFFLState(torch.zeros(3, 2), reputation, torch.zeros(3).bool(), torch.tensor(float(round)).double())


def everyone():
    return Reports(torch.tensor([1.0, 2.0, 1.0]).double(), torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize(("growth", "expected"), [(0, [2, 2, 2, 2, 2]), (2, [2, 3, 4, 4, 4]), (4, [2, 2.5, 3, 3.5, 4])])
def test_alpha_doubles_in_so_many_rounds(growth, expected):
    method = CFFLReleased(alpha=2.0, alpha_growth=growth)
    assert [method.strength(state_of(round), everyone()) for round in range(5)] == expected


def test_a_released_reputation_fades_before_it_is_punished():
    """sinh(2 (0.8 c + 0.2 share)), of c = (0.2, 0.3, 0.5): sinh of 0.52, 0.6 and 0.88; otherwise c/2 + sinh(2 s)/2."""
    released = CFFLReleased(alpha=2.0)
    found = released.unnormalised_reputation(state_of(0), SHARES, everyone())
    assert found.tolist() == pytest.approx([math.sinh(0.52), math.sinh(0.6), math.sinh(0.88)])
    first = CFFLReleased(alpha=2.0, alpha_growth=5, reputation="sinh_first")
    found = first.unnormalised_reputation(state_of(0), SHARES, everyone())
    expected = [0.1 + math.sinh(1.0) / 2, 0.15 + math.sinh(0.6) / 2, 0.25 + math.sinh(0.4) / 2]
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("aggregation", "whole", "taken"),
    [
        ("share", [2.0, 3.0], [1 / 3, 2 / 3]),  # (3, 1) / 3 + 2 (1.5, 4) / 3
        ("mean", [1.5, 2.25], [1 / 2, 1]),  # (3, 1) / 4 + 2 (1.5, 4) / 4; n_i / max n is taken off
        ("sum", [4.5, 5.0], [1, 1]),  # (3, 1) + (1.5, 4)
    ],
)
def test_what_a_site_keeps_and_what_is_taken_off_its_download(aggregation, whole, taken):
    """Updates (3, 1), (1.5, 4), and (9, 9) of a site of one image in four that is removed.

    The second earns all, the first the larger half of the aggregate, which is its second entry; all keep their own.
    """
    updates = torch.tensor([[3.0, 1.0], [1.5, 4.0], [9.0, 9.0]]).double()
    remaining, quota = torch.tensor([True, True, False]), torch.tensor([0.5, 1.0, 0.0]).double()
    uploads = updates * remaining[:, None]
    method = CFFLReleased(aggregation=aggregation)
    models, weights = method.rewarded(torch.zeros(3, 2).double(), updates, uploads, quota, remaining, everyone())
    first = [3 - 3 * taken[0], 1 + whole[1] - taken[0]]
    second = [1.5 + whole[0] - 1.5 * taken[1], 4 + whole[1] - 4 * taken[1]]
    assert models.flatten().tolist() == pytest.approx([*first, *second, 9, 9])
    assert weights.tolist() == pytest.approx([1 / 2, 1 / 2, 0] if aggregation == "sum" else [1 / 3, 2 / 3, 0])
