"""Rewards by contributions that are known beforehand, in the place of reputations."""

import pytest
import torch
from rounds import layout, make_rounds, outcomes

from fedmerit.methods.cffl import CFFL
from fedmerit.methods.cgsv import CGSV
from fedmerit.methods.earnings import deserved
from fedmerit.methods.fedave import FedAVE

GIVEN = (0.2, 0.4, 0.8, 0.6)


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
