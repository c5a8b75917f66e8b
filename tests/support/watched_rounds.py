"""Rounds as detectors of free riders watch them."""

import torch

from fedmerit_lab.detection.detector import MonitoredRound


def round_of(number, updates, step, challenge=None):
    n, d = updates.shape
    nothing = torch.zeros(n, dtype=torch.bool)
    return MonitoredRound(
        number, torch.zeros(n, d), updates, ~nothing, torch.full((n,), 50.0), step, nothing, nothing, challenge
    )
