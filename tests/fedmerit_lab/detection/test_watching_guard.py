"""The guard as a detector: how long two kinds of signs stand, and whether a verdict does."""

from dataclasses import replace

import torch
from pulling_sites import updates_of
from watched_rounds import round_of

from fedmerit.guard.indicators import KINDS
from fedmerit_lab.detection.detectors import GuardDetector

RIDER = 5


def test_suspicion_counts_rounds_with_two_kinds_and_a_verdict_as_three_more():
    """Zeros and wrong claims for three rounds are a verdict, in the third; three honest rounds lift it."""
    guard, step, said = GuardDetector(), None, []
    for number in range(6):
        updates, rides = updates_of(number), number < 3
        updates[RIDER] *= not rides
        wrong = torch.tensor([False] * RIDER + [rides])
        said.append(guard.see(replace(round_of(number, updates, step), wrong=wrong)))
        step = updates.mean(dim=0)
    assert [float(one.suspicion[RIDER]) for one in said] == [1, 2, 6, 3, 3, 0]
    assert [bool(one.flagged[RIDER]) for one in said] == [False, False, True, True, True, False]
    assert not any(one.suspicion[:RIDER].any() for one in said)


def test_one_kind_alone_is_no_suspicion():
    guard = GuardDetector()
    for number in range(4):
        wrong = torch.tensor([False] * RIDER + [True])
        said = guard.see(replace(round_of(number, updates_of(number), None), wrong=wrong))
        assert not said.suspicion.any()
    assert guard.history.verdicts.rounds[KINDS.index("claim")].tolist() == [0, 0, 0, 0, 0, 4]
