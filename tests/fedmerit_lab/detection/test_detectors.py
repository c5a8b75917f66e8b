"""Detectors that monitor updates: what each flags, and what it does not."""

import math
from dataclasses import replace

import pytest
import torch
from monitored_rounds import monitored_round
from pulling_sites import updates_of

from fedmerit_lab.detection.detector import Detection, apply_detectors, compare_with_others
from fedmerit_lab.detection.detectors import ChallengeImages, GuardDetector, TrustedRoot, all_detectors

ATTACKER, OUTLIER, TRUSTED, ROUNDS = 5, 3, 1, 12


def test_distances_are_in_deviations_of_the_others():
    values = torch.tensor([1.0, 2.0, 3.0, 9.0], dtype=torch.float64)
    distance = compare_with_others(values, torch.ones(4).bool(), 0.01)
    assert float(distance[3]) == pytest.approx((9 - 2) / 1.4826)
    assert compare_with_others(values, torch.tensor([True, True, False, False]), 0.01).isnan().all()
    values = torch.tensor([1.0, 1.0, 1.0, math.nan, 1.5], dtype=torch.float64)
    assert float(compare_with_others(values, torch.ones(5).bool(), 0.25)[4]) == pytest.approx(0.5 / 0.25)
    assert compare_with_others(values[2:], torch.ones(3).bool(), 0.25).isnan().all()  # only one other is known


def test_a_site_is_flagged_above_the_threshold_and_never_without_data():
    flagged = Detection.above(torch.tensor([0.9, 1.0, 1.1, math.nan]), 1.0).flagged
    assert flagged.tolist() == [False, False, True, False]
    unknown = Detection.unknown(3)
    assert unknown.suspicion.isnan().all()
    assert unknown.flagged.tolist() == [False] * 3


def test_detectors_are_run_by_name():
    updates = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    found = apply_detectors([TrustedRoot(0), TrustedRoot(1, name="another root")], monitored_round(0, updates))
    assert list(found) == ["trusted root", "another root"]
    assert [one.flagged.tolist() for one in found.values()] == [[False, True], [True, False]]


# trusted root


UPDATES = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 1.0], [0.0, 3.0], [0.0, 0.0]])


def test_an_update_without_the_direction_of_the_trusted_one_is_flagged():
    """Cosines to the first: 1, -1/√2, 0 and, of a zero update, 0. The trusted site itself is not judged."""
    found = TrustedRoot(0).see(monitored_round(0, UPDATES))
    assert found.suspicion.tolist() == pytest.approx([math.nan, -1, 0.5**0.5, 0, 0], nan_ok=True)
    assert found.flagged.tolist() == [False, False, True, True, True]


def test_absent_sites_are_not_judged_and_without_the_trusted_site_none_is():
    present = replace(monitored_round(0, UPDATES), present=torch.tensor([True, True, False, True, True]))
    found = TrustedRoot(0).see(present)
    assert found.suspicion.isnan().tolist() == [True, False, True, False, False]
    assert found.flagged.tolist() == [False, False, False, True, True]
    found = TrustedRoot(2).see(present)
    assert found.suspicion.isnan().all()
    assert not found.flagged.any()


def test_a_model_that_knows_its_own_images_no_better_than_others_do_is_flagged():
    challenge = torch.tensor([[0.2, 0.5, 0.5], [0.4, 0.1, 0.5], [0.4, 0.5, 0.5]], dtype=torch.float64)
    updates = torch.ones(3, 4)
    found = ChallengeImages().see(monitored_round(0, updates, challenge=challenge))
    assert found.suspicion.tolist() == pytest.approx([-0.2, -0.4, 0.0])
    assert found.flagged.tolist() == [False, False, True]
    assert ChallengeImages().see(monitored_round(0, updates)).suspicion.isnan().all()
    challenge[0, 1:] = 0.9  # the model of an absent site does not count
    absent = replace(monitored_round(0, updates, challenge=challenge), present=torch.tensor([False, True, True]))
    assert ChallengeImages().see(absent).suspicion.tolist() == pytest.approx([math.nan, -0.4, 0.0], nan_ok=True)


def test_suspicion_is_the_evidence_and_three_rounds_of_zeros_are_a_verdict():
    guard, step, found = GuardDetector(20), None, []
    for number in range(6):
        updates = updates_of(number)
        updates[ATTACKER] *= number >= 3
        found.append(guard.see(monitored_round(number, updates, step)))
        step = updates.mean(dim=0)
    suspicions = [float(one.suspicion[ATTACKER]) for one in found]
    assert suspicions[:3] == sorted(suspicions[:3])
    assert suspicions[2:] == sorted(suspicions[2:], reverse=True)
    assert [bool(one.flagged[ATTACKER]) for one in found] == [False, False, True, True, True, False]
    assert not any(one.flagged[:ATTACKER].any() for one in found)


def detect(change):
    """Every detector's result of each round; ``change`` (number, updates, last step) makes the attacker's update."""
    detectors, step, found = all_detectors(TRUSTED), None, []
    for number in range(ROUNDS):
        updates = updates_of(number)
        if change is not None and step is not None:
            updates[ATTACKER] = change(number, updates, step)
        found.append(apply_detectors(detectors, monitored_round(number, updates, step)))
        step = updates.mean(dim=0)
    return found


@pytest.fixture(scope="module")
def attacked():
    def noise(number, updates, step):
        drawn = torch.randn(updates.shape[1], generator=torch.Generator().manual_seed(number))
        return drawn * updates[0].norm() / drawn.norm()

    return {
        "honest": detect(None),
        "zero": detect(lambda number, updates, step: torch.zeros_like(updates[0])),
        "noise": detect(noise),
        "last step": detect(lambda number, updates, step: step * updates[0].norm() / step.norm()),
    }


@pytest.mark.parametrize(
    ("kind", "detector"),
    [("zero", "guard"), ("zero", "STD-DAGMM"), ("zero", "trusted root"), ("noise", "guard"), ("last step", "guard"),
     ("last step", "S2-WEF")],
)  # fmt: skip
def test_a_free_rider_is_flagged(attacked, kind, detector):
    found = attacked[kind][-1][detector]
    assert bool(found.flagged[ATTACKER])
    honest = [site for site in range(5) if site not in (OUTLIER, TRUSTED)]
    assert float(found.suspicion[ATTACKER]) > float(found.suspicion[honest].max())


def test_the_guard_flags_no_honest_site(attacked):
    assert not any(found["guard"].flagged[:ATTACKER].any() for rounds in attacked.values() for found in rounds)
    assert not any(found["guard"].flagged.any() for found in attacked["honest"])
