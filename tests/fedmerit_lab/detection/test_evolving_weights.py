"""S2-WEF: patterns of the entries that a site moves."""

from dataclasses import replace

import pytest
import torch
from scipy.linalg import hadamard
from watched_rounds import round_of

from fedmerit_lab.detection.evolving_weights import LEAST, EvolvingWeights, correlations


def test_patterns_are_of_the_entries_that_moved_much():
    one = torch.tensor([3.0, -3.0, 0.1, 0.1])
    found = correlations([one, -2 * one, one.flip(0), torch.zeros(4)])
    assert found[0].tolist() == pytest.approx([1, 1, -1, 0])


def test_who_moves_other_entries_than_all_is_flagged():
    """The others are alike, each 0 from the median one; the last is 1 - (-1) from it, in units of `LEAST`."""
    updates = torch.tensor([[1.0, -2.0, 0.1, 0.0]] * 4 + [[0.0, 0.1, 2.0, -1.0]])
    said = EvolvingWeights().see(round_of(0, updates, None))
    assert said.suspicion.tolist() == pytest.approx([0, 0, 0, 0, 2 / LEAST])
    assert said.flagged.tolist() == [False] * 4 + [True]
    present = torch.tensor([False, True, True, True, True])
    said = EvolvingWeights().see(replace(round_of(0, updates, None), present=present))
    assert said.suspicion.tolist() == pytest.approx([float("nan"), 0, 0, 0, 2 / LEAST], nan_ok=True)


def test_who_moves_what_the_last_three_steps_moved_is_flagged():
    """Patterns without any correlation, but for one that is a step's: 1, where the others have 0, by `LEAST`."""
    patterns = torch.from_numpy(hadamard(8)).float() * 0.45 + 0.55  # entries 1 and 0.1
    updates, steps = patterns[1:5], [-3 * patterns[4], *patterns[5:8]]
    detector = EvolvingWeights()
    said = [detector.see(round_of(number, updates, step)) for number, step in enumerate(steps)]
    for one in said[:3]:
        assert one.suspicion.tolist() == pytest.approx([0, 0, 0, 1 / LEAST], abs=1e-4)
        assert one.flagged.tolist() == [False, False, False, True]
    assert not said[3].flagged.any()
