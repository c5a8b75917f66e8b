"""STD-DAGMM: what an update lacks, and how dense the others are where it lies."""

import math
from dataclasses import replace

import pytest
import torch
from pulling_sites import updates_of
from watched_rounds import round_of

from fedmerit_lab.detection.std_dagmm import StdDagmm, energy, features


def test_energy_is_high_where_there_are_no_others():
    others = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert energy(torch.zeros(3).double(), others) < energy(torch.full((3,), 6.0).double(), others) - 5


def test_features_say_what_an_update_lacks():
    updates = torch.randn(5, 500, generator=torch.Generator().manual_seed(0))
    updates[4] *= 3
    found = features(updates, torch.tensor([True, True, True, False, True]))
    assert found[3].isnan().all()
    assert float(found[4, 0]) == pytest.approx(math.log(3), abs=0.1)
    assert float(found[4, 2]) > 0.9  # the longest one is the first component
    assert (found[:3, 1] > 0.1).all()


def test_a_mixture_takes_five_updates_of_others():
    """Of three others one round is too few, two are enough."""
    detector = StdDagmm()
    said = []
    for number in range(2):
        updates = updates_of(number)[:4].clone()
        updates[3] = 0
        said.append(detector.see(round_of(number, updates, None)))
    assert said[0].suspicion.isnan().all()
    assert not said[0].flagged.any()
    assert said[1].flagged.tolist() == [False, False, False, True]


def test_who_is_absent_is_unknown_and_no_part_of_the_mixture():
    updates = updates_of(0)
    updates[3] = 1e6  # what it would be, if it were there
    present = torch.tensor([True, True, True, False, True, True])
    detector = StdDagmm()
    for number in range(2):
        said = detector.see(replace(round_of(number, updates, None), present=present))
    assert said.suspicion.isnan().tolist() == [False, False, False, True, False, False]
    assert not said.flagged[3]
    without = StdDagmm()
    for number in range(2):
        alone = without.see(round_of(number, updates[present], None))
    torch.testing.assert_close(said.suspicion[present], alone.suspicion)
