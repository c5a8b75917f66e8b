"""Which precision is faster on a machine: measured by a few steps, once for all runs of a process."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.configuration.settings import TASKS
from fedmerit.trainers.monai import step_time

CONFIG = make_configuration("fedavg", "prostate", 1, 0, TASKS["prostate"], {"amp": "auto"})


@pytest.mark.parametrize(
    ("device", "has_instructions", "took", "expected"),
    [("cpu", True, 0.84, True), ("cpu", True, 0.86, False), ("cpu", False, 0.5, False), ("cuda", False, 0.5, True)],
)
def test_mixed_precision_is_chosen_where_it_saves_enough(monkeypatch, device, has_instructions, took, expected):
    asked = []

    def measure(config, folder, device, ways, **how):
        asked.extend(way.amp for way in ways.values())
        return {"float32": 1.0, "mixed": took}

    monkeypatch.setattr(step_time, "computes_bfloat16", lambda: has_instructions)
    monkeypatch.setattr(step_time, "seconds_per_image", measure)
    monkeypatch.setattr(step_time, "_measured", {})
    assert CONFIG.training.amp is False  # until somebody measures
    for _ in range(2):
        chosen, seconds = step_time.measure_precision(CONFIG, SimpleNamespace(path="site"), torch.device(device))
        assert chosen == replace(CONFIG, training=replace(CONFIG.training, amp=expected))
    is_measured = device == "cuda" or has_instructions
    assert asked == ([False, True] if is_measured else [])
    assert seconds == ({"float32": 1.0, "mixed": took} if is_measured else {})
