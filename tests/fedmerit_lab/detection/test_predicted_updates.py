"""FLDetector: its curvature, its clusters, its scores."""

from dataclasses import replace

import pytest
import torch
from watched_rounds import round_of

from fedmerit_lab.detection.predicted_updates import PredictedUpdates, curvature_times, two_clusters


def test_curvature_keeps_the_secant_equation():
    """B s = y of the last pair, as every BFGS matrix; and B is symmetric."""
    random = torch.Generator().manual_seed(0)
    root = torch.randn(8, 8, generator=random, dtype=torch.float64)
    hessian = root @ root.T + torch.eye(8)
    moves = torch.randn(3, 8, generator=random, dtype=torch.float64)
    changes = moves @ hessian
    assert torch.allclose(curvature_times(moves, changes, moves[-1]), changes[-1], rtol=1e-8)
    whole = torch.stack([curvature_times(moves, changes, row) for row in torch.eye(8, dtype=torch.float64)])
    assert torch.allclose(whole, whole.T, atol=1e-8)


def test_clusters_are_told_where_there_are_two():
    apart = torch.tensor([0.10, 0.11, 0.10, 0.12, float("nan"), 0.45], dtype=torch.float64)
    assert two_clusters(apart, 0).tolist() == [False] * 5 + [True]
    assert not two_clusters(torch.linspace(0.1, 0.2, 6, dtype=torch.float64), 0).any()
    assert not two_clusters(torch.full((6,), 0.2, dtype=torch.float64), 0).any()


def test_scores_are_shares_of_the_distance_from_what_the_curvature_predicts():
    """All updates are 2 w + c_i, on average too, but for one that stays, 2 |move| away, and one twice as steep."""
    random = torch.Generator().manual_seed(0)
    models, own = torch.randn(4, 7, generator=random), torch.randn(6, 7, generator=random)
    slopes = torch.tensor([2.0, 2.0, 2.0, 2.0, 4.0, 0.0])
    detector, said = PredictedUpdates(), []
    for number, model in enumerate(models):
        seen = round_of(number, slopes[:, None] * model + own, None)
        said.append(detector.see(replace(seen, received=model.expand(6, -1))))
    assert said[0].suspicion.isnan().all()
    assert said[1].suspicion.isnan().all()  # of the first move nothing is known of the curvature
    for one in said[2:]:
        assert one.suspicion.tolist() == pytest.approx([0, 0, 0, 0, 0.5, 0.5], abs=1e-6)
        assert one.flagged.tolist() == [False, False, False, False, True, True]
