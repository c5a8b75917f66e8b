"""What a site notes of its own work."""

import math

import pytest
import torch

from fedmerit.guard.work import REMEMBERED
from fedmerit.site.step_evidence import OWN, WIDTH, list_old_parts, measure_work
from fedmerit.trainers.memory import Memory

SIZE, ROUNDS, WEIGHT = 2 * WIDTH + 5, 6, 0.25


def normal(seed: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def score(sums: dict[str, float]) -> float:
    own = WEIGHT
    variance = sums["rrqq"] - 2 * own * sums["rrrq"] + own**2 * sums["rrrr"]
    return (sums["rq"] - own * sums["rr"]) / math.sqrt(variance) if variance > 0 else 0.0


def scores(update) -> list[float]:
    """Of a site that sends ``update`` of the round, its common part, and the model's last step."""
    model, before, found, step = torch.zeros(SIZE), None, [], torch.zeros(SIZE)
    for round in range(ROUNDS + 1):
        old = list_old_parts(model, before, 0)
        if before is not None:
            found.append(score(measure_work(old, before)))
        common = normal(round)
        own = update(round, common, step)
        before = Memory(model, model + own, {}, old=old)
        step = WEIGHT * own + (1 - WEIGHT) * (common + normal(1000 + round))
        model = model + step
    return found


@pytest.mark.parametrize(
    ("update", "least", "most"),
    [
        (lambda round, common, step: common + normal(50 + round), 20, 33),  # √4096 / √6: half of each is common
        (lambda round, common, step: -common, 25, 40),  # √4096 / √4
        (lambda round, common, step: normal(50 + round), 0, 4),
        (lambda round, common, step: step + 0.1 * normal(50 + round), 0, 4),
        (lambda round, common, step: common if not round else normal(0), None, 4),  # its first, again and again
        (lambda round, common, step: torch.zeros(SIZE), 0, 0),
    ],
)
def test_only_work_of_the_round_shows(update, least, most):
    first, *found = (abs(z) for z in scores(update))
    assert all((least or 0) <= z <= most for z in found)
    assert least is None or least <= first <= most


def test_nothing_is_noted_without_the_round_before():
    assert measure_work(normal(0)[None], None) == {}
    assert measure_work(normal(0)[None], Memory(normal(1), normal(2), {})) == {}, "a run that judges nobody"


def test_memory_of_old_parts_is_bounded():
    before, models = None, [normal(seed)[:50] for seed in range(REMEMBERED + 5)]
    for model in models:
        before = Memory(model, model + 1, {}, old=list_old_parts(model, before, 0))
    assert before is not None
    assert before.old.shape == (OWN + REMEMBERED, 50)
