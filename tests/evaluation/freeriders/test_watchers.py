"""Detectors that watch updates: what each tells and does not tell, and the formulas in them."""

import math

import pytest
import torch
from pulling_sites import updates_of

from evaluation.freeriders.challenge_images import ChallengeImages
from evaluation.freeriders.evolving_weights import correlations
from evaluation.freeriders.predicted_updates import curvature_times, two_clusters
from evaluation.freeriders.std_dagmm import energy, features
from evaluation.freeriders.watched import WatchedRound, beside_others, watch
from evaluation.freeriders.watchers import watchers

RIDER, OUTLIER, TRUSTED, ROUNDS = 5, 3, 1, 8


def round_of(number, updates, step, challenge=None):
    n, d = updates.shape
    nothing = torch.zeros(n, dtype=torch.bool)
    return WatchedRound(
        number, torch.zeros(n, d), updates, ~nothing, torch.full((n,), 50.0), step, nothing, nothing, challenge
    )


def play(change):
    """What every detector says of each round; ``change`` (number, updates, last step) makes the rider's update."""
    those, step, said = watchers(TRUSTED), None, []
    for number in range(ROUNDS):
        updates = updates_of(number)
        if change is not None and step is not None:
            updates[RIDER] = change(number, updates, step)
        said.append(watch(those, round_of(number, updates, step)))
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


def test_who_knows_its_own_images_no_better_than_others_do_is_flagged():
    challenge = torch.tensor([[0.2, 0.5, 0.5], [0.4, 0.1, 0.5], [0.4, 0.5, 0.5]], dtype=torch.float64)
    updates = torch.ones(3, 4)
    said = ChallengeImages().see(round_of(0, updates, None, challenge))
    assert said.suspicion.tolist() == pytest.approx([-0.2, -0.4, 0.0])
    assert said.flagged.tolist() == [False, False, True]
    assert ChallengeImages().see(round_of(0, updates, None)).suspicion.isnan().all()


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


def test_patterns_are_of_the_entries_that_moved_much():
    one = torch.tensor([3.0, -3.0, 0.1, 0.1])
    found = correlations([one, -2 * one, one.flip(0), torch.zeros(4)])
    assert found[0].tolist() == pytest.approx([1, 1, -1, 0])


def test_distances_are_in_deviations_of_the_others():
    values = torch.tensor([1.0, 2.0, 3.0, 9.0], dtype=torch.float64)
    away = beside_others(values, torch.ones(4).bool(), 0.01)
    assert float(away[3]) == pytest.approx((9 - 2) / 1.4826)
    assert beside_others(values, torch.tensor([True, True, False, False]), 0.01).isnan().all()
