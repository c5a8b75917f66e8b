"""STD-DAGMM, S2-WEF and FLDetector: their features, clusters and scores."""

import math
from dataclasses import replace

import pytest
import torch
from monitored_rounds import monitored_round
from pulling_sites import updates_of
from scipy.linalg import hadamard

from fedmerit_lab.detection.detectors import (
    WEF_LEAST,
    EvolvingWeights,
    PredictedUpdates,
    StdDagmm,
    correlations,
    curvature_times,
    energy,
    features,
    two_clusters,
)

# STD-DAGMM


def test_energy_is_high_far_from_the_others():
    others = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert energy(torch.zeros(3).double(), others) < energy(torch.full((3,), 6.0).double(), others) - 5


def test_features_are_spread_reconstruction_error_and_cosine():
    updates = torch.randn(5, 500, generator=torch.Generator().manual_seed(0))
    updates[4] *= 3
    found = features(updates, torch.tensor([True, True, True, False, True]))
    assert found[3].isnan().all()
    assert float(found[4, 0]) == pytest.approx(math.log(3), abs=0.1)
    assert float(found[4, 2]) > 0.9  # the longest one is the first component
    assert (found[:3, 1] > 0.1).all()


def test_a_mixture_needs_five_updates_of_others():
    """With three others one round is too few, two are enough."""
    detector, found = StdDagmm(), []
    for number in range(2):
        updates = updates_of(number)[:4].clone()
        updates[3] = 0
        found.append(detector.see(monitored_round(number, updates)))
    assert found[0].suspicion.isnan().all()
    assert not found[0].flagged.any()
    assert found[1].flagged.tolist() == [False, False, False, True]


def test_an_absent_site_is_unknown_and_not_in_the_mixture():
    updates = updates_of(0)
    updates[3] = 1e6  # not counted
    present = torch.tensor([True, True, True, False, True, True])
    detector, without = StdDagmm(), StdDagmm()
    for number in range(2):
        found = detector.see(replace(monitored_round(number, updates), present=present))
        expected = without.see(monitored_round(number, updates[present]))
    assert found.suspicion.isnan().tolist() == [False, False, False, True, False, False]
    assert not found.flagged[3]
    torch.testing.assert_close(found.suspicion[present], expected.suspicion)


def test_patterns_are_of_the_entries_that_moved_much():
    one = torch.tensor([3.0, -3.0, 0.1, 0.1])
    assert correlations([one, -2 * one, one.flip(0), torch.zeros(4)])[0].tolist() == pytest.approx([1, 1, -1, 0])


def test_a_site_that_moves_other_entries_than_all_is_flagged():
    """The others are alike, each 0 from the median one; the last is 1 - (-1) from it, in units of `WEF_LEAST`."""
    updates = torch.tensor([[1.0, -2.0, 0.1, 0.0]] * 4 + [[0.0, 0.1, 2.0, -1.0]])
    found = EvolvingWeights().see(monitored_round(0, updates))
    assert found.suspicion.tolist() == pytest.approx([0, 0, 0, 0, 2 / WEF_LEAST])
    assert found.flagged.tolist() == [False] * 4 + [True]
    present = torch.tensor([False, True, True, True, True])
    found = EvolvingWeights().see(replace(monitored_round(0, updates), present=present))
    assert found.suspicion.tolist() == pytest.approx([math.nan, 0, 0, 0, 2 / WEF_LEAST], nan_ok=True)


def test_a_site_that_moves_the_entries_of_the_last_three_steps_is_flagged():
    """Patterns without any correlation, except one that is a step's: 1, the others have 0, by `WEF_LEAST`."""
    patterns = torch.from_numpy(hadamard(8)).float() * 0.45 + 0.55  # entries 1 and 0.1
    updates, steps = patterns[1:5], [-3 * patterns[4], *patterns[5:8]]
    detector = EvolvingWeights()
    found = [detector.see(monitored_round(number, updates, step)) for number, step in enumerate(steps)]
    for one in found[:3]:
        assert one.suspicion.tolist() == pytest.approx([0, 0, 0, 1 / WEF_LEAST], abs=1e-4)
        assert one.flagged.tolist() == [False, False, False, True]
    assert not found[3].flagged.any()


def test_curvature_keeps_the_secant_equation():
    """B s = y of the last pair, as for every BFGS matrix; and B is symmetric."""
    random = torch.Generator().manual_seed(0)
    root = torch.randn(8, 8, generator=random, dtype=torch.float64)
    hessian = root @ root.T + torch.eye(8)
    moves = torch.randn(3, 8, generator=random, dtype=torch.float64)
    changes = moves @ hessian
    assert torch.allclose(curvature_times(moves, changes, moves[-1]), changes[-1], rtol=1e-8)
    whole = torch.stack([curvature_times(moves, changes, row) for row in torch.eye(8, dtype=torch.float64)])
    assert torch.allclose(whole, whole.T, atol=1e-8)


def test_scores_are_clustered_only_if_there_are_two_clusters():
    two = torch.tensor([0.10, 0.11, 0.10, 0.12, math.nan, 0.45], dtype=torch.float64)
    assert two_clusters(two, 0).tolist() == [False] * 5 + [True]
    assert not two_clusters(torch.linspace(0.1, 0.2, 6, dtype=torch.float64), 0).any()
    assert not two_clusters(torch.full((6,), 0.2, dtype=torch.float64), 0).any()


def test_scores_are_shares_of_the_distance_from_the_prediction():
    """All updates are 2 w + c_i, on average too, except one that stays, 2 |move| away, and one twice as steep."""
    random = torch.Generator().manual_seed(0)
    models, own = torch.randn(4, 7, generator=random), torch.randn(6, 7, generator=random)
    slopes = torch.tensor([2.0, 2.0, 2.0, 2.0, 4.0, 0.0])
    detector, found = PredictedUpdates(), []
    for number, model in enumerate(models):
        seen = monitored_round(number, slopes[:, None] * model + own)
        found.append(detector.see(replace(seen, received=model.expand(6, -1))))
    assert found[0].suspicion.isnan().all()
    assert found[1].suspicion.isnan().all()  # after the first move the curvature is still unknown
    for one in found[2:]:
        assert one.suspicion.tolist() == pytest.approx([0, 0, 0, 0, 0.5, 0.5], abs=1e-6)
        assert one.flagged.tolist() == [False, False, False, False, True, True]
