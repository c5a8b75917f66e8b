"""Verdicts: signs of two independent kinds that are seen again and again; lifted when they end.

What the guard remembers of n sites from round to round: tensors alone, so that a checkpoint holds it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedmerit.guard.indicators import KINDS, Responses
from fedmerit.guard.rule import Rule

KINDS_NEEDED = 2
ROUNDS = 3  # with a sign, for its kind to stand; on end without two kinds, for a verdict to be lifted
WINDOW = 9  # the last rounds, of which those are counted: who rides in every fourth round is named, too

VERDICT_RULE = Rule(
    "verdicts",
    f"Signs of {KINDS_NEEDED} kinds, both seen now and in {ROUNDS} of the last {WINDOW} rounds in which they could "
    "be looked for, are a verdict: by `--on-verdict` it is shown, "
    "contribution, weight and reward are withheld while the evidence stands and the site trains on with its own model, "
    f"or the site is excluded for good. {ROUNDS} rounds without two kinds lift it: the site is paid again.",
    "riders who are named and paid",
    "an honest outlier shows one kind at most, and is paid",
)


@dataclass(frozen=True)
class Verdicts:
    """What stands against each of n sites."""

    seen: Tensor  # (kinds, n, WINDOW) bool: in the last rounds in which a sign could be looked for, the last one last
    quiet: Tensor  # (n,) rounds on end without two kinds
    against: Tensor  # (n,) bool: a verdict stands

    @classmethod
    def none(cls, kinds: int, sites: int) -> "Verdicts":
        """Before round 0."""
        zeros = torch.zeros(sites, dtype=torch.long)
        return cls(torch.zeros(kinds, sites, WINDOW, dtype=torch.bool), zeros, zeros.bool())

    @classmethod
    def of(cls, content: Mapping[str, Tensor], kinds: int) -> "Verdicts":
        """What a checkpoint holds; earlier versions counted rounds on end, or fewer of them, of fewer kinds."""
        known = dict(content)
        if "lasted" in known:
            ages = torch.arange(WINDOW, 0, -1)
            known["seen"] = known.pop("lasted")[..., None] >= ages
        start, before = cls.none(kinds, len(known["against"])), known["seen"]
        start.seen[: len(before), :, WINDOW - before.shape[2] :] = before
        return cls(**{**known, "seen": start.seen})

    @property
    def now(self) -> Tensor:
        """(kinds, n) bool: seen in the last round."""
        return self.seen[..., -1]

    @property
    def rounds(self) -> Tensor:
        """(kinds, n) of the last `WINDOW` rounds those in which a sign was seen; 0 where it was not in the last one."""
        return self.seen.sum(dim=2) * self.now

    @property
    def standing(self) -> Tensor:
        """(kinds, n) bool: seen again, and often enough."""
        return self.rounds >= ROUNDS

    def after(self, seen: Tensor, known: Tensor, present: Tensor, for_good: bool) -> "Verdicts":
        """After a round in which signs were ``seen`` (kinds, n) bool of the ``present`` (n,) sites.

        Where a kind is not ``known`` (kinds, n) bool, it counts as it stood, and for no round more: that evidence
        cannot be looked for speaks for no site, and founds no verdict.
        """
        later = torch.cat([self.seen[..., 1:], seen[..., None]], dim=2)
        found = replace(self, seen=torch.where((present & known)[..., None], later, self.seen))
        quiet = torch.where(found.now.sum(dim=0) < KINDS_NEEDED, self.quiet + 1, 0).where(present, self.quiet)
        stays = self.against if for_good else self.against & (quiet < ROUNDS)
        against = stays | (present & ((found.standing & known).sum(dim=0) >= KINDS_NEEDED))
        return replace(found, quiet=quiet, against=against)


WIDTH = 16384  # of a sketch: cosines of two are within some 0.01 of the vectors'
MEMORY = 0.5  # of means over rounds


@dataclass(frozen=True)
class History:
    """Before a round."""

    usual: Tensor  # (n,) the last median norm of the others' updates; NaN: none yet
    sketches: Tensor  # (n, m) float32, of each site's last update; zero rows: none yet
    nearness: Tensor  # (n, n) cosines of updates, mean over rounds; NaN: none yet
    copied: Tensor  # (n, n) bool: near copies
    direction: Tensor  # (n,) cosine to the others, likewise
    lasting: Tensor  # (n,) cosine to the site's own update before, likewise
    response: Tensor  # (n,) to what the others moved the model by, likewise
    responses: Responses
    likeness: Tensor  # (n,) `profiles.likeness`, likewise
    verdicts: Verdicts
    claimed: Tensor  # (n,) bool: a claim was wrong in the last round
    bounded: Tensor  # (n,) bool: the update in the last aggregation is not the one sent: shortened, or with others'
    alone: Tensor  # (n,) bool: goes on from its own model
    made: Tensor  # (n,) bool: most of the model's last step is this site's
    apart: Tensor  # (n,) bool: the site's last ratings stood apart
    rater_distance: Tensor  # (n,) `raters.distances` of them; NaN: none yet, or not heard
    measured: Tensor  # (n,) error of the model without each site, as others measured it; NaN: not yet

    @classmethod
    def empty(cls, sites: int) -> "History":
        """Before round 0."""
        unknown = torch.full((sites,), torch.nan, dtype=torch.float64)
        zeros = torch.zeros(sites, dtype=torch.long)
        pairs = torch.zeros(sites, sites, dtype=torch.long)
        return cls(
            usual=unknown,
            sketches=torch.zeros(sites, WIDTH),
            nearness=unknown.repeat(sites, 1),
            copied=pairs.bool(),
            direction=unknown,
            lasting=unknown,
            response=unknown,
            responses=Responses.none(sites, WIDTH),
            likeness=unknown,
            verdicts=Verdicts.none(len(KINDS), sites),
            claimed=zeros.bool(),
            bounded=zeros.bool(),
            alone=zeros.bool(),
            made=zeros.bool(),
            apart=zeros.bool(),
            rater_distance=unknown,
            measured=unknown,
        )

    def content(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {**vars(self), "verdicts": dict(vars(self.verdicts)), "responses": dict(vars(self.responses))}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "History":
        """What `content` gave; what an earlier version did not remember is as before round 0."""
        start, known = cls.empty(len(content["apart"])), dict(content)
        known["verdicts"] = Verdicts.of(content["verdicts"], len(KINDS))
        known |= {"responses": Responses(**content["responses"])} if "responses" in content else {}
        return replace(start, **known)


def sketch(updates: Tensor, seed: int) -> Tensor:
    """(n, m) of ``updates`` (n, d): entries with random signs, added up m apart; keeps cosines (count sketch)."""
    n, d = updates.shape
    whole = d // WIDTH * WIDTH
    signed = updates * _signs(d, seed)
    result = signed[:, :whole].view(n, -1, WIDTH).sum(dim=1)
    result[:, : d - whole] += signed[:, whole:]
    return result


@lru_cache(maxsize=1)
def _signs(size: int, seed: int) -> Tensor:
    """(size,) int8, -1 or 1; a run's are the same every round."""
    return torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(seed), dtype=torch.int8) * 2 - 1


def running_mean(memory: Tensor, now: Tensor) -> Tensor:
    """The mean over rounds: what is not known now stays, what was not known before counts whole."""
    return torch.where(now.isnan(), memory, torch.where(memory.isnan(), now, MEMORY * memory + (1 - MEMORY) * now))
