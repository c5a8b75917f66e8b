"""Detectors that watch updates: what each tells and does not tell."""

import math

import pytest
import torch
from pulling_sites import updates_of
from watched_rounds import round_of

from fedmerit_lab.detection.detector import run_detector
from fedmerit_lab.detection.detectors import all_detectors

RIDER, OUTLIER, TRUSTED, ROUNDS = 5, 3, 1, 8


def play(change):
    """What every detector says of each round; ``change`` (number, updates, last step) makes the rider's update."""
    those, step, said = all_detectors(TRUSTED), None, []
    for number in range(ROUNDS):
        updates = updates_of(number)
        if change is not None and step is not None:
            updates[RIDER] = change(number, updates, step)
        said.append(run_detector(those, round_of(number, updates, step)))
        step = updates.mean(dim=0)
    return said


@pytest.fixture(scope="module")
def riding():
    def noise(number, updates, step):
        drawn = torch.randn(updates.shape[1], generator=torch.Generator().manual_seed(number))
        return drawn * updates[0].norm() / drawn.norm()

    return {
        "honest": play(None),
        "zero": play(lambda number, updates, step: torch.zeros_like(updates[0])),
        "noise": play(noise),
        "last step": play(lambda number, updates, step: step * updates[0].norm() / step.norm()),
    }


@pytest.mark.parametrize(
    ("kind", "detector"),
    [
        ("zero", "guard"),
        ("zero", "STD-DAGMM"),
        ("zero", "trusted root"),
        ("noise", "guard"),
        ("last step", "guard"),
        ("last step", "S2-WEF"),
    ],
)
def test_a_rider_is_flagged(riding, kind, detector):
    said = riding[kind][-1][detector]
    assert bool(said.flagged[RIDER])
    honest = [site for site in range(5) if site not in (OUTLIER, TRUSTED)]
    assert float(said.suspicion[RIDER]) > float(said.suspicion[honest].max())


def test_the_guard_flags_no_honest_site(riding):
    assert not any(said["guard"].flagged[:RIDER].any() for rounds in riding.values() for said in rounds)
    assert not any(said["guard"].flagged.any() for said in riding["honest"])


def test_the_trusted_site_is_not_judged(riding):
    said = riding["zero"][-1]["trusted root"]
    assert math.isnan(said.suspicion[TRUSTED])
    assert not said.flagged[TRUSTED]
