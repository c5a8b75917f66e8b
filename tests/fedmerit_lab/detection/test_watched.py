"""What detectors that watch a federation share."""

import pytest
import torch
from watched_rounds import round_of

from fedmerit_lab.detection.detector import Detection, compare_with_others, run_detector
from fedmerit_lab.detection.detectors import TrustedRoot


def test_distances_are_in_deviations_of_the_others():
    values = torch.tensor([1.0, 2.0, 3.0, 9.0], dtype=torch.float64)
    away = compare_with_others(values, torch.ones(4).bool(), 0.01)
    assert float(away[3]) == pytest.approx((9 - 2) / 1.4826)
    assert compare_with_others(values, torch.tensor([True, True, False, False]), 0.01).isnan().all()


def test_deviations_are_at_least_so_much_and_of_known_others_alone():
    values = torch.tensor([1.0, 1.0, 1.0, float("nan"), 1.5], dtype=torch.float64)
    assert float(compare_with_others(values, torch.ones(5).bool(), 0.25)[4]) == pytest.approx(0.5 / 0.25)
    assert compare_with_others(values[2:], torch.ones(3).bool(), 0.25).isnan().all()  # one other that is known


def test_what_is_said_is_flagged_above_a_threshold_and_nothing_is_where_nothing_is_known():
    assert Detection.over(torch.tensor([0.9, 1.0, 1.1, float("nan")]), 1.0).flagged.tolist() == [
        False,
        False,
        True,
        False,
    ]
    nothing = Detection.nothing(3)
    assert nothing.suspicion.isnan().all()
    assert nothing.flagged.tolist() == [False] * 3


def test_every_watcher_is_heard_by_its_name():
    updates = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    said = run_detector([TrustedRoot(0), TrustedRoot(1, name="another root")], round_of(0, updates, None))
    assert list(said) == ["trusted root", "another root"]
    assert [one.flagged.tolist() for one in said.values()] == [[False, True], [True, False]]
