"""Rewards: which entries a site downloads, what it has elsewhere, and rewards by given contributions."""

import pytest
import torch
from rounds import layout, make_rounds, outcomes

from fedmerit.methods.cffl import CFFL
from fedmerit.methods.cgsv import CGSV
from fedmerit.methods.fedave import FedAVE
from fedmerit.methods.registry import METHODS, build_method
from fedmerit.methods.rewards import UNREWARDED, Reward, deserved, fractions_of_largest, kept
from fedmerit.parameters import rules

GIVEN = (0.2, 0.4, 0.8, 0.6)


UPDATES = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 9.0, 9.0, 9.0]])


@pytest.mark.parametrize(
    ("unrewarded", "sizes", "expected"),
    [
        ("nothing", (), [[100, 0, -300, 0], [0, 0, 0, 0], [100, 20, -300, 40]]),
        ("nothing", [1, 3], [[100, 0, -300, 40], [0, 0, 0, 0], [100, 0, -300, 40]]),
        ("own", (), [[100, 2, -300, 4], [5, 6, 7, 8], [100, 20, -300, 40]]),
    ],
)
def test_a_reward_is_the_quota_of_an_update(unrewarded, sizes, expected):
    """Of the aggregate (100, 20, -300, 40) the first site earns a half, the second nothing, the third all."""
    aggregate, quota = torch.tensor([100.0, 20.0, -300.0, 40.0]), torch.tensor([0.5, 0.0, 1.0])
    models = torch.ones(3, 4)
    found = Reward(aggregate, quota, sizes, kept(unrewarded, UPDATES)).add_to(models)
    assert (found - 1).tolist() == expected
    assert (models == 1).all()


def test_fractions_of_the_largest_amount_of_a_present_site():
    present = torch.tensor([True, False, True])
    assert fractions_of_largest(torch.tensor([2.0, 9.0, 4.0]), present).tolist() == [0.5, 0, 1]
    assert fractions_of_largest(torch.tensor([0.0, 9.0, 0.0]), present).tolist() == [0, 0, 0]


def test_methods_that_reward_by_entries_have_the_choice():
    by_entries = {"cgsv", "cffl", "cffl_released", "fedave", "eci"}
    assert {name for name, kind in METHODS.items() if "unrewarded" in rules(kind)} == by_entries
    for name in by_entries - {"cffl_released"}:  # which keeps own updates another way
        assert [build_method(name, {"unrewarded": one}).unrewarded for one in UNREWARDED] == ["nothing", "own"]


def first(method):
    return outcomes(method, make_rounds(n=4, d=40, rounds=1))[0]


def test_quotas_follow_what_is_given_and_reputations_stay_what_they_are():
    shares = torch.tensor(GIVEN, dtype=torch.float64) / sum(GIVEN)
    images = make_rounds(n=4, d=40, rounds=1).samples
    expected = {
        CGSV: torch.tanh(shares) / torch.tanh(shares).max(),
        FedAVE: torch.tanh(1.5 * shares) / torch.tanh(1.5 * shares).max(),
        CFFL: shares / shares.max() * images / images.max(),
    }
    for kind, quotas in expected.items():
        options = {"distributions": "none"} if kind is FedAVE else {}
        plain, given = first(kind(**options)), first(kind(**options, contributions=GIVEN))
        assert torch.equal(plain.reputation, given.reputation)
        assert torch.allclose(given.quantities["quota"], quotas)
        assert not torch.allclose(plain.quantities["quota"], quotas)


def test_absent_sites_have_no_share():
    present = torch.tensor([True, False, True, True])
    assert deserved(GIVEN, torch.zeros(4), present).tolist() == pytest.approx([0.125, 0, 0.5, 0.375])
    reputation = torch.rand(4)
    assert deserved((), reputation, present) is reputation


@pytest.mark.parametrize("kind", [CGSV, CFFL, FedAVE])
def test_what_does_not_fit_is_told(kind):
    with pytest.raises(ValueError, match="contributions: 4 of them for 3 sites"):
        kind(contributions=GIVEN).start(torch.zeros(6), 3, layout(6))
    if kind is not FedAVE:
        with pytest.raises(ValueError, match="contributions belong to reward='sparse'"):
            kind(contributions=GIVEN, reward="global")
