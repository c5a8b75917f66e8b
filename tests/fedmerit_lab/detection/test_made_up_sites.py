"""A federation of made-up sites: its arithmetic, what a server sees, what a player knows and says."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch

from fedmerit.guard.guard import Enrolled, Guard
from fedmerit.guard.settings import GuardSettings
from fedmerit.methods.registry import build_method
from fedmerit_lab.detection.synthetic_sites import IMAGES, NOISE, OUTLIER, SITES, STEP, Player, play

HONEST = [Player(site) for site in range(SITES)]
ONLOOKER = 2


@dataclass(frozen=True)
class Onlooker(Player):
    """An honest site that keeps what it is told."""

    told: list = field(default_factory=list, compare=False)
    values: list = field(default_factory=list, compare=False)

    def update(self, honest, seen):
        self.told.append((honest, seen))
        return honest

    def claim(self, values):
        self.values.append(values)
        return values


@dataclass(frozen=True)
class Lazy(Player):
    """Sends zeros."""

    def update(self, honest, seen):
        return torch.zeros_like(honest)


def played(method, players=HONEST, seed=0, rounds=3, guard=None):
    """What came of it, and what the server saw of each round."""
    seen = []
    return play(build_method(method, {}), players, seed, rounds, guard, seen.append), seen


def test_the_server_sees_models_move_by_the_weighted_mean_of_updates():
    players = [*HONEST[:-1], Player(SITES - 1, images=4 * IMAGES)]
    found, seen = played("fedavg", players)
    shares = torch.tensor([1, 1, 1, 1, 1, 4], dtype=torch.float64) / 9
    assert found.weights.tolist() == [pytest.approx(shares.tolist())] * 3
    assert [one.number for one in seen] == [0, 1, 2]
    assert seen[0].last_step is None
    assert not seen[0].received.any()
    for before, after in pairwise(seen):
        step = shares.float() @ before.updates
        torch.testing.assert_close(after.last_step, step)
        torch.testing.assert_close(after.received, before.received + step)
    assert found.reward.tolist() == [[1] * SITES] * 3  # one model for all


def test_dice_is_of_the_distance_to_the_sites_optimum():
    """Of an update STEP (c - w + noise) the length tells ‖c - w‖² + NOISE², but for a tenth; a loss is 1 - Dice."""
    site = Onlooker(ONLOOKER)
    played("qfedavg", [*HONEST[:ONLOOKER], site, *HONEST[ONLOOKER + 1 :]])
    for (honest, _), values in zip(site.told, site.values, strict=True):
        distance = float((honest / STEP).norm()) ** 2 - NOISE**2
        assert values["loss"] == pytest.approx(1 - 1 / (1 + distance), abs=0.05)


def test_models_that_stay_at_their_sites_have_the_dice_that_challenge_images_told():
    found, seen = played("standalone")
    assert found.dice.tolist() == pytest.approx((1 - seen[-1].challenge.diagonal()).tolist(), abs=1e-6)
    assert seen[-1].challenge.argmin(dim=0).tolist() == list(range(SITES))  # on its images its own model is the best


def test_the_outlier_pulls_the_other_way_and_the_rest_one_way():
    _, seen = played("fedavg", rounds=1)
    units = torch.nn.functional.normalize(seen[0].updates, dim=1)
    cosines = units @ units.T
    rest = [site for site in range(SITES) if site != OUTLIER]
    assert (cosines[OUTLIER, rest] < 0).all()
    assert (cosines[rest][:, rest] > 0.1).all()


def test_training_together_pays_and_the_seed_alone_decides():
    short, _ = played("fedavg", rounds=1)
    long, seen = played("fedavg", rounds=12)
    rest = [site for site in range(SITES) if site != OUTLIER]
    assert (long.dice[rest] > short.dice[rest] + 0.02).all()
    again, same = played("fedavg", rounds=12)
    assert again.dice.equal(long.dice)
    assert all(one.updates.equal(other.updates) for one, other in zip(seen, same, strict=True))
    _, other = played("fedavg", seed=1, rounds=1)
    assert not other[0].updates.equal(seen[0].updates)


def test_a_player_knows_what_it_sent_and_how_its_model_moved():
    site = Onlooker(ONLOOKER)
    _, seen = played("fedavg", [*HONEST[:ONLOOKER], site, *HONEST[ONLOOKER + 1 :]])
    sent = [honest for honest, _ in site.told]
    known = [one for _, one in site.told]
    assert [one.round for one in known] == [0, 1, 2]
    assert known[0].last is None
    assert known[0].first is None
    assert not known[0].step.any()
    assert known[2].last.equal(sent[1])
    assert known[2].first.equal(sent[0])
    assert known[2].step.equal(seen[2].received[ONLOOKER] - seen[1].received[ONLOOKER])
    assert known[2].peers.equal(seen[2].updates)


def test_the_guard_withholds_the_reward_of_who_sends_zeros():
    guard = Guard(GuardSettings("on", "withhold"), Enrolled.nothing(SITES))
    found, seen = played("fedavg", [*HONEST[:-1], Lazy(SITES - 1)], rounds=12, guard=guard)
    assert found.verdicts[0].tolist() == [0] * SITES
    assert found.verdicts[-1].tolist() == [0, 0, 0, 0, 0, 1]
    assert found.reward[-1].tolist() == [1, 1, 1, 1, 1, 0]
    assert found.weights[-1].tolist() == pytest.approx([0.2] * 5 + [0])
    assert seen[-1].alone.tolist() == [False] * 5 + [True]
    assert not seen[-1].received[-1].equal(seen[-1].received[0])  # it goes on from its own


def test_under_the_guard_sites_are_asked_for_no_claims():
    """FedAVE's losses, which only a site itself can know."""
    method = build_method("fedave", {})
    assert method.asks
    found = play(method.without_self_reports, HONEST, 0, 2, None, lambda seen: None)
    assert all(row.isfinite().all() for row in found.weights)
