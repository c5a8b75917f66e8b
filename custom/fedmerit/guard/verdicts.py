"""Verdicts: signs of two independent kinds that are seen again and again; lifted when they end."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmerit.guard.rule import Rule

KINDS_NEEDED = 2
ROUNDS = 3  # with a sign, for its kind to stand; on end without two kinds, for a verdict to be lifted
WINDOW = 9  # the last rounds, of which those are counted: who rides in every fourth round is named, too

RULE = Rule(
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
