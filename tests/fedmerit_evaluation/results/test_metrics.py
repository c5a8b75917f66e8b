"""Metrics that others bring: what they are given of a case, and what is no metric."""

import math

import numpy as np
import pytest
from torch import Tensor, nn, zeros

from fedmerit import plugins
from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import Case
from fedmerit_evaluation.results.evaluation import METRICS, compute_metrics


class _Split(nn.Module):
    """Logits of two labels: the image above 1, and above 2."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(zeros(1))

    def forward(self, images: Tensor) -> Tensor:
        return (images > zeros(2, 1, 1).add_(1).cumsum(0)).float() - 0.5


@pytest.fixture
def case(tmp_path):
    """Two slices of 1 x 3 pixels."""
    image = np.array([[[[0.0, 1.5, 2.5]]], [[[3.0, 3.0, 0.0]]]], np.float32)
    label = np.array([[[[0, 1, 1]], [[0, 0, 0]]], [[[1, 0, 0]], [[0, 0, 0]]]], np.uint8)
    np.save(tmp_path / "image.npy", image)
    np.save(tmp_path / "label.npy", label)
    return Case("000", "p", tmp_path / "image.npy", tmp_path / "label.npy", spacing=(3.0, 1.0, 0.5))


def test_compute_metrics_passes_masks_reference_and_spacing(case):
    seen = []

    def wrong(prediction, reference, spacing):
        seen.append((prediction.shape, prediction.dtype, reference.dtype, spacing))
        return np.float32((prediction != reference).sum())

    def volume(prediction, reference, spacing):
        return prediction.sum() * math.prod(spacing) if prediction.sum() > 3 else None

    found = list(compute_metrics(_Split(), case, ("disc", "cup"), {"wrong": wrong, "volume": volume}))
    # disc: 0 1 1 and 1 1 0 against 0 1 1 and 1 0 0; cup: 0 0 1 and 1 1 0 against nothing
    assert found == [("wrong", "disc", 1.0), ("volume", "disc", 6.0), ("wrong", "cup", 3.0), ("volume", "cup", None)]
    assert [type(value) for _, _, value in found[:3]] == [float] * 3
    assert seen == [((2, 1, 3), np.bool_, np.bool_, (3.0, 1.0, 0.5))] * 2


def test_metrics_reject_what_cannot_be_called(monkeypatch):
    monkeypatch.setitem(plugins._registered, ("metrics", "seven"), 7)
    assert "seven" in list(METRICS)
    with pytest.raises(BadInput, match="'seven' is 7; expected a function of prediction, reference and spacing"):
        METRICS["seven"]
