"""Membership of challenge images, by losses that are known."""

import math
from dataclasses import replace

import pytest
import torch
from watched_rounds import round_of

from fedmerit_lab.detection.detectors import ChallengeImages


def test_who_knows_its_own_images_no_better_than_others_do_is_flagged():
    challenge = torch.tensor([[0.2, 0.5, 0.5], [0.4, 0.1, 0.5], [0.4, 0.5, 0.5]], dtype=torch.float64)
    updates = torch.ones(3, 4)
    said = ChallengeImages().see(round_of(0, updates, None, challenge))
    assert said.suspicion.tolist() == pytest.approx([-0.2, -0.4, 0.0])
    assert said.flagged.tolist() == [False, False, True]
    assert ChallengeImages().see(round_of(0, updates, None)).suspicion.isnan().all()


def test_the_models_of_absent_sites_do_not_count():
    """Without the first site's model: 0.1 less 0.5 for the second, 0.5 less 0.5 for the third."""
    challenge = torch.tensor([[0.2, 0.9, 0.9], [0.4, 0.1, 0.5], [0.4, 0.5, 0.5]], dtype=torch.float64)
    there = replace(round_of(0, torch.ones(3, 4), None, challenge), present=torch.tensor([False, True, True]))
    said = ChallengeImages().see(there)
    assert said.suspicion.tolist() == pytest.approx([math.nan, -0.4, 0.0], nan_ok=True)
    assert said.flagged.tolist() == [False, False, True]
