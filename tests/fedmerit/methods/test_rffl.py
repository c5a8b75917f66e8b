"""RFFL against its slow reference, and what is particular to it."""

import pytest
import reference_rewards
import torch
from comparing import assert_equals, expected_of
from hypothesis import given
from rounds import Rounds, few, make_rounds, outcomes, random_rounds

from fedmerit.methods.rffl import RFFL


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"coef": 0.9, "warmup": 1},
        {"alpha": 0.1, "coef": 0.99, "warmup": 0, "boost": False},
        {"gamma": 2.0, "coef": 0.9, "warmup": 1, "keep_own": True},
    ],
    ids=["default", "strict", "at once", "keep own"],
)
@given(rounds=random_rounds)
@few
def test_rffl_is_the_reference(parameters, rounds):
    expected = expected_of(reference_rewards.rffl, rounds, **parameters)
    for outcome, round in zip(outcomes(RFFL(**parameters), rounds), expected, strict=True):
        assert_equals(outcome, round)
        assert outcome.quantities["expelled"].nonzero().flatten().tolist() == round["removed"]


def opposed(rounds=4, n=4, d=10):
    """Rounds in which the last site uploads the opposite of what the others have in common."""
    made = make_rounds(n=n, d=d, rounds=rounds, dtype=torch.float64)
    random = torch.Generator().manual_seed(5)
    common = torch.randn(rounds, 1, d, generator=random, dtype=torch.float64)
    updates = common + 0.1 * made.updates
    updates[:, -1] *= -1
    return Rounds(torch.ones(n, dtype=torch.float64), updates, made.present, made.centres)


@pytest.mark.parametrize("warmup", [0, 2])
def test_an_opposed_site_is_removed_after_the_warmup_and_trains_on_alone(warmup):
    rounds = opposed()
    model = torch.zeros(10, dtype=torch.float64)
    for number, outcome in enumerate(outcomes(RFFL(warmup=warmup), rounds)):
        removed = number >= warmup
        assert outcome.quantities["expelled"].tolist() == [0, 0, 0, removed]
        if removed:
            model = model + rounds.updates[number, 3]
            assert outcome.reputation[3] == 0
        if number > warmup:
            assert outcome.weights[3] == 0
        assert outcome.quantities["quota"][3] == 0
        assert torch.allclose(outcome.models[3], model, rtol=0, atol=1e-12)
        assert outcome.contribution[3] < 0
        assert outcome.reputation.sum().item() == pytest.approx(1, abs=1e-12)


def test_the_warmup_counts_the_rounds_of_each_site():
    """A site that comes late is not judged by its first round."""
    rounds = opposed()
    rounds.present[:2, 3] = False
    rounds.updates[:2, 3] = 0
    removed = [outcome.quantities["expelled"][3].item() for outcome in outcomes(RFFL(warmup=1), rounds)]
    assert removed == [0, 0, 0, 1]


def test_where_only_removed_sites_come_nobody_is_rewarded():
    rounds = opposed()
    rounds.present[2, :3] = False
    rounds.updates[2, :3] = 0
    before, outcome, after = outcomes(RFFL(warmup=0), rounds)[1:]
    assert outcome.weights.tolist() == [0, 0, 0, 1]
    assert torch.equal(outcome.reputation, before.reputation)
    assert torch.equal(outcome.models[:3], before.models[:3])
    assert torch.allclose(outcome.models[3], before.models[3] + rounds.updates[2, 3], rtol=0, atol=1e-12)
    assert after.weights[3] == 0


def test_one_of_the_sites_present_always_stays():
    rounds = make_rounds(n=5, rounds=6, absences=True)
    for outcome in outcomes(RFFL(alpha=0.0, coef=0.99, warmup=0), rounds):
        assert (outcome.quantities["expelled"] < 1).any()
        assert outcome.weights.sum().item() == pytest.approx(1, abs=1e-12)


def test_rffl_clips_long_updates_alone():
    rounds = make_rounds(n=1, dtype=torch.float64)
    update = rounds.updates[0, 0]
    for gamma, size in ((0.5, 0.5), (1e6, update.norm())):
        model = outcomes(RFFL(gamma=gamma), rounds)[0].models[0]
        assert torch.allclose(model, update / update.norm() * size, rtol=0, atol=1e-12)


def test_without_the_clamp_a_negative_reputation_is_a_negative_weight():
    first, second = outcomes(RFFL(clamp=False, boost=False), opposed(rounds=2))
    assert first.reputation[3] < 0
    assert torch.allclose(second.weights, first.reputation)
    assert (second.quantities["quota"] >= 0).all()
