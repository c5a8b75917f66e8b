"""Profiles: beside a slow reference; of trained updates, of an outlier, and of what was not trained."""

import math

import numpy as np
import pytest
import torch

from fedmerit.guard import indicators
from fedmerit.guard.indicators import PROFILE_BLOCK

BLOCKS = 1000
SIZE = BLOCKS * PROFILE_BLOCK + 5  # what is beyond the last block is in no profile
ALL = torch.ones(5, dtype=torch.bool)
NOBODY = ~ALL


def trained(sites=5, seed=0):
    """Updates that are long in the same blocks, whatever their entries; the last site's half as much so."""
    random = torch.Generator().manual_seed(seed)
    scale = torch.randn(BLOCKS, generator=random).exp()
    scales = scale.expand(sites, -1).clone()
    scales[-1] = scale.sqrt() * torch.randn(BLOCKS, generator=random).mul(0.5).exp()
    entries = torch.randn(sites, SIZE, generator=random)
    entries[:, : BLOCKS * PROFILE_BLOCK] *= scales.repeat_interleave(PROFILE_BLOCK, dim=1)
    return entries


def noise(like, seed=9):
    return torch.randn(len(like), generator=torch.Generator().manual_seed(seed)) * like.norm() / len(like) ** 0.5


def test_likeness_is_the_median_correlation_of_lengths_of_blocks():
    updates = trained()
    lengths = np.linalg.norm(
        updates[:, : BLOCKS * PROFILE_BLOCK].double().numpy().reshape(5, BLOCKS, PROFILE_BLOCK), axis=2
    )
    correlations = np.corrcoef(lengths)
    expected = [np.median(np.delete(row, place)) for place, row in enumerate(correlations)]
    assert indicators.likeness(updates, ALL).tolist() == pytest.approx(expected, abs=1e-6)
    away = torch.tensor([True, True, False, True, True])
    expected = [np.median(np.delete(row, [place, 2])) for place, row in enumerate(correlations)]
    expected[2] = math.nan
    assert indicators.likeness(updates, away).tolist() == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_reversed_or_scaled_updates_have_the_profile_that_they_had():
    updates = trained()
    before = indicators.likeness(updates, ALL)
    updates[1] *= -3
    assert indicators.likeness(updates, ALL).tolist() == pytest.approx(before.tolist(), abs=1e-6)


def test_noise_shows_the_sign_and_an_honest_outlier_does_not():
    updates = trained()
    assert not indicators.is_unlike(indicators.likeness(updates, ALL), ALL, SIZE, NOBODY).any()
    updates[1] = noise(updates[1])
    found = indicators.likeness(updates, ALL)
    assert abs(found[1]) < 0.1
    assert indicators.is_unlike(found, ALL, SIZE, NOBODY).tolist() == [False, True, False, False, False]


def test_nothing_sent_and_nothing_there_are_flat():
    updates = trained()
    updates[0], updates[1] = 0, 1
    assert indicators.likeness(updates, ALL)[:2].tolist() == [0, 0]
    assert indicators.likeness(torch.zeros(5, 3), ALL).tolist() == [0] * 5  # a model of less than a block


def test_of_others_who_have_little_in_common_nothing_is_told():
    said = torch.tensor([0.6, 0.6, 0.6, 0.6, 0.05]).double()
    last = [False] * 4 + [True]
    assert indicators.is_unlike(said, ALL, BLOCKS * PROFILE_BLOCK, NOBODY).tolist() == last
    for likeness, size in ((said.clamp(max=0.39), BLOCKS * PROFILE_BLOCK), (said, 40 * PROFILE_BLOCK)):  # 4 / √40 = .63
        assert not indicators.is_unlike(likeness, ALL, size, NOBODY).any()
        assert not indicators.is_profile_comparable(likeness, ALL, size).any()
    assert not indicators.is_unlike(
        said, torch.tensor([True, False, False, False, True]), BLOCKS * PROFILE_BLOCK, NOBODY
    ).any()


@pytest.mark.parametrize(
    ("likeness", "accused", "sign"), [(0.14, False, True), (0.16, False, False), (0.29, True, True)]
)
def test_under_a_quarter_of_the_others_and_under_a_half_while_a_verdict_stands(likeness, accused, sign):
    said = torch.tensor([0.6, 0.6, 0.6, 0.6, likeness]).double()
    against = torch.tensor([False] * 4 + [accused])
    assert indicators.is_unlike(said, ALL, BLOCKS * PROFILE_BLOCK, against).tolist() == [False] * 4 + [sign]
