"""What lies pay on made-up sites, with the guard and without: attacks by methods."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from fedmerit.core import Method
from fedmerit.guard.guard import Enrolled, Guard
from fedmerit.guard.settings import GuardSettings
from fedmerit.methods.registry import build_method
from fedmerit_lab.detection.detector import MonitoredRound
from fedmerit_lab.detection.synthetic_sites import OUTLIER, SITES, STEP, Player, Seen, SimulatedRounds, play

ATTACKER = SITES - 1
PARTNER = 0  # of two who collude
ROUNDS = 15


@dataclass(frozen=True)
class Zero(Player):
    """Sends zeros."""

    def update(self, honest: Tensor, seen: Seen) -> Tensor:
        """Zeros."""
        return torch.zeros_like(honest)


@dataclass(frozen=True)
class LateZero(Player):
    """Sends zeros from the middle of the run on."""

    def update(self, honest: Tensor, seen: Seen) -> Tensor:
        """Zeros, later."""
        return torch.zeros_like(honest) if seen.round >= ROUNDS // 2 else honest


@dataclass(frozen=True)
class SkippedTraining(Player):
    """Works ``works`` rounds of every ``of``, and sends zeros in the others: no sign of it is seen for long on end."""

    works: int = 1
    of: int = 3

    def update(self, honest: Tensor, seen: Seen) -> Tensor:
        """Honest in the first rounds of each turn."""
        return honest if seen.round % self.of < self.works else torch.zeros_like(honest)


@dataclass(frozen=True)
class Noise(Player):
    """Sends noise of the norm of an honest update."""

    def update(self, honest: Tensor, seen: Seen) -> Tensor:
        """Noise."""
        noise = torch.randn(len(honest), generator=seen.random)
        return noise * float(honest.norm() / noise.norm())


@dataclass(frozen=True)
class LastStep(Player):
    """Sends the last step back with noise, at a ``cosine`` to it, with the norm of an honest update."""

    cosine: float = 0.83

    def update(self, honest: Tensor, seen: Seen) -> Tensor:
        """The step and noise; honest in round 0."""
        length = seen.step.norm()
        if length == 0:
            return honest
        noise = torch.randn(len(honest), generator=seen.random)
        mixed: Tensor = self.cosine * seen.step / length + (1 - self.cosine**2) ** 0.5 * noise / noise.norm()
        return mixed * float(honest.norm() / mixed.norm())


@dataclass(frozen=True)
class Replay(Player):
    """Sends the update of round 1 again and again."""

    def update(self, honest: Tensor, seen: Seen) -> Tensor:
        """What it sent last."""
        return honest if seen.round < 2 or seen.last is None else seen.last


@dataclass(frozen=True)
class Adaptive(Player):
    """Knows the guard's rules: sends what it trained in round 0 again, at a cosine of .8, as long as usual."""

    def update(self, honest: Tensor, seen: Seen) -> Tensor:
        """That update and noise; honest in round 0."""
        if seen.first is None:
            return honest
        noise = torch.randn(len(honest), generator=seen.random)
        mixed: Tensor = 0.8 * seen.first / seen.first.norm() + 0.6 * noise / noise.norm()
        return mixed * float(honest.norm() / mixed.norm())


@dataclass(frozen=True)
class OffTarget(Player):
    """Trains towards another optimum than its own, ``by`` away, always the same one: what wrong or few images make."""

    by: float = 1.0

    def update(self, honest: Tensor, seen: Seen) -> Tensor:
        """The honest update, and a step to there."""
        away = torch.randn(len(honest), generator=torch.Generator().manual_seed(self.site))
        return honest + away * (STEP * self.by / float(away.norm()))


@dataclass(frozen=True)
class Partial(Player):
    """Trains on a part of its images: two fifths of the way, and noise of its own besides."""

    def update(self, honest: Tensor, seen: Seen) -> Tensor:
        """The shorter, noisier update."""
        noise = torch.randn(len(honest), generator=seen.random)
        return 0.4 * (honest + noise * float(honest.norm() / noise.norm()))


@dataclass(frozen=True)
class Scaled(Player):
    """Sends its update times ``by``."""

    by: float = 1.0

    def update(self, honest: Tensor, seen: Seen) -> Tensor:
        """The scaled update."""
        return self.by * honest


@dataclass(frozen=True)
class HalfFlipped(Player):
    """Reverses the sign of half of the entries, always the same ones."""

    def update(self, honest: Tensor, seen: Seen) -> Tensor:
        """Every other entry reversed."""
        return honest * torch.where(torch.arange(len(honest)) % 2 == 0, 1.0, -1.0)


@dataclass(frozen=True)
class Claims(Player):
    """Trains, and claims what pays most; with ``zero`` it does not train."""

    zero: bool = False

    def update(self, honest: Tensor, seen: Seen) -> Tensor:
        """Honest, or zeros."""
        return torch.zeros_like(honest) if self.zero else honest

    def claim(self, values: dict[str, float]) -> dict[str, float]:
        """An error of 1 without the cosine that could be compared; a loss of 1; losses that are all alike."""
        told = {name: 1.0 for name in ("minus_error", "loss") if name in values}
        bins = [name for name in values if name.startswith("loss_bin")]
        return told | {name: 20.0 * (name == f"loss_bin_{len(bins) // 2}") for name in bins}


@dataclass(frozen=True)
class RiggedRatings(Player):
    """Says that its friends' candidates are perfect, and all others worthless."""

    friends: tuple[int, ...] = ()

    def rate(self, dice: Tensor, members: Tensor) -> Tensor:
        """1 where a friend has a part, 0 elsewhere."""
        return members[:, list(self.friends)].any(dim=1).double()


@dataclass(frozen=True)
class Copies(Player):
    """Sends the update of another name, with noise of ``noise`` times its norm."""

    of: int = 0
    noise: float = 0.0

    def update(self, honest: Tensor, seen: Seen) -> Tensor:
        """The other's honest update, and noise."""
        twin = seen.peers[self.of]
        noise = torch.randn(len(honest), generator=seen.random)
        return twin + noise * (self.noise * float(twin.norm() / noise.norm()))


HONEST: tuple[Player, ...] = tuple(Player(site) for site in range(SITES))


def with_attacker(*players: Player) -> tuple[Player, ...]:
    """The honest sites, the attacker replaced."""
    return HONEST[:ATTACKER] + players


ATTACKS: Mapping[str, tuple[Player, ...]] = {
    "honest": HONEST,
    "zero update": with_attacker(Zero(ATTACKER)),
    "zero update from the middle on": with_attacker(LateZero(ATTACKER)),
    "zero update, two rounds of three": with_attacker(SkippedTraining(ATTACKER)),
    "zero update, every other round": with_attacker(SkippedTraining(ATTACKER, of=2)),
    "zero update, one round of three": with_attacker(SkippedTraining(ATTACKER, works=2)),
    "noise of an honest norm": with_attacker(Noise(ATTACKER)),
    "last step": with_attacker(LastStep(ATTACKER, cosine=1.0)),
    "last step and noise, cosine .83": with_attacker(LastStep(ATTACKER)),
    "replay": with_attacker(Replay(ATTACKER)),
    "knows the rules": with_attacker(Adaptive(ATTACKER)),
    "one image, repeated": with_attacker(OffTarget(ATTACKER, by=1.5)),
    "a part of the images": with_attacker(Partial(ATTACKER)),
    "shifted masks": with_attacker(OffTarget(ATTACKER)),
    "11 % of the honest update": with_attacker(Scaled(ATTACKER, by=0.11)),
    "10,000 times the honest update": with_attacker(Scaled(ATTACKER, by=1e4)),
    "signs reversed": with_attacker(Scaled(ATTACKER, by=-1.0)),
    "half the signs reversed": with_attacker(HalfFlipped(ATTACKER)),
    "claims the best of itself": with_attacker(Claims(ATTACKER)),
    "zero update and claims": with_attacker(Claims(ATTACKER, zero=True)),
    "claims 1e9 images": with_attacker(Player(ATTACKER, images=1e9)),
    "rigs the evaluation": with_attacker(RiggedRatings(ATTACKER, friends=(ATTACKER,))),
    "two rig the evaluation": (
        RiggedRatings(PARTNER, friends=(PARTNER, ATTACKER)),
        *HONEST[1:ATTACKER],
        RiggedRatings(ATTACKER, friends=(PARTNER, ATTACKER)),
    ),
    "two exact copies": with_attacker(Player(ATTACKER), Copies(ATTACKER, of=ATTACKER)),
    "two copies, cosine .77": with_attacker(
        Copies(ATTACKER, of=ATTACKER, noise=0.55), Copies(ATTACKER, of=ATTACKER, noise=0.55)
    ),
    "a site split in two": with_attacker(Player(ATTACKER, images=50), Player(ATTACKER, images=50)),
}
METHODS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "fedavg": ("fedavg", {}),
    "fedce times": ("fedce", {}),
    "fedce plus": ("fedce", {"combine": "plus"}),
    "fedce server": ("fedce_nvflare", {}),
    "cgsv": ("cgsv", {}),
    "rffl": ("rffl", {}),
    "cffl": ("cffl", {}),
    "fedave": ("fedave", {}),
    "fedci": ("fedci", {}),
    "qfedavg": ("qfedavg", {}),
}


def played(
    method: Method,
    attack: str,
    seed: int,
    guarded: bool,
    on_verdict: str = "withhold",
    on_round: Callable[[MonitoredRound], None] = lambda seen: None,
) -> SimulatedRounds:
    """One federation; ``on_round`` as of `play`."""
    players = ATTACKS[attack]
    guard = Guard(GuardSettings("on", on_verdict), Enrolled.nothing(len(players))) if guarded else None
    return play(method, players, seed, ROUNDS, guard, on_round)


def list_attackers(attack: str) -> list[int]:
    """The places of the names that attack, both of a site that has two; without an attack none."""
    players = ATTACKS[attack]
    twice = len(players) > SITES
    return [
        place
        for place, player in enumerate(players)
        if player != Player(player.site) or (twice and player.site == ATTACKER)
    ]


def matrix(methods: Sequence[str], seeds: Sequence[int], guarded: bool, attacks: Sequence[str] = ()) -> pd.DataFrame:
    """One row per method, attack and seed: what the attacker's names earn beside the same site when it is honest.

    ``weight`` and ``reputation`` in the last round, sums over its names; ``reward`` its largest quota; ``named`` in
    how many rounds after the first a verdict first stood, NaN: never; ``accused`` how many honest names ever had one;
    ``dice`` of the honest sites' models, the outlier's left out.
    """
    rows = []
    for method in methods:
        name, parameters = METHODS[method]
        built = build_method(name, parameters)
        for seed in seeds:
            control = _row(played(built, "honest", seed, guarded), (ATTACKER,), (PARTNER, ATTACKER))
            for attack in attacks or ATTACKS:
                own = {ATTACKER, *list_attackers(attack)}
                found = played(built, attack, seed, guarded)
                row = _row(found, tuple(sorted(own)), tuple(sorted(own)))
                rows.append({"method": method, "attack": attack, "seed": seed, **row, **_beside(control, own)})
    return pd.DataFrame(rows)


def _beside(control: dict[str, float], own: set[int]) -> dict[str, float]:
    which = "pair " if PARTNER in own else ""
    return {
        "honest weight": control[f"{which}weight"],
        "honest reputation": control[f"{which}reputation"],
        "honest reward": control["reward"],
        "honest dice": control["dice"],
    }


def _row(found: SimulatedRounds, own: tuple[int, ...], pair: tuple[int, ...]) -> dict[str, float]:
    others = [place for place in range(found.weights.shape[1]) if place not in own]
    first = found.verdicts[:, list(own)].any(dim=1).nonzero().flatten()
    measured = [place for place in range(ATTACKER) if place not in own and place != OUTLIER]
    return {
        "weight": float(found.weights[-1, list(own)].sum()),
        "reputation": float(found.reputation[-1, list(own)].sum()),
        "pair weight": float(found.weights[-1, list(pair)].sum()),
        "pair reputation": float(found.reputation[-1, list(pair)].sum()),
        "reward": float(found.reward[-1, list(own)].max()),
        "named": float(first[0]) + 1 if len(first) else float("nan"),
        "accused": float(found.verdicts[:, others].any(dim=0).sum()),
        "dice": float(found.dice[measured].mean()),
    }
