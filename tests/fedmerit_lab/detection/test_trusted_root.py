"""FLTrust's root of trust, by cosines worked out by hand."""

from dataclasses import replace

import pytest
import torch
from watched_rounds import round_of

from fedmerit_lab.detection.detectors import TrustedRoot

UPDATES = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 1.0], [0.0, 3.0], [0.0, 0.0]])


def test_who_does_not_point_with_the_trusted_site_is_flagged():
    """Cosines to the first: 1, -1/√2, 0 and, of nothing at all, 0."""
    said = TrustedRoot(0).see(round_of(0, UPDATES, None))
    assert said.suspicion[1:].tolist() == pytest.approx([-1, 0.5**0.5, 0, 0])
    assert said.flagged.tolist() == [False, False, True, True, True]


def test_who_is_absent_is_not_judged_and_without_the_trusted_site_nobody_is():
    there = replace(round_of(0, UPDATES, None), present=torch.tensor([True, True, False, True, True]))
    said = TrustedRoot(0).see(there)
    assert said.suspicion.isnan().tolist() == [True, False, True, False, False]
    assert said.flagged.tolist() == [False, False, False, True, True]
    said = TrustedRoot(2).see(there)
    assert said.suspicion.isnan().all()
    assert not said.flagged.any()
