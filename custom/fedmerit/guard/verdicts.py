"""Verdicts: signs of two independent kinds that last; lifted when they end."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmerit.guard.rule import Rule

KINDS_NEEDED = 2
ROUNDS = 3  # on end, for a kind to stand; without two kinds, for a verdict to be lifted

RULE = Rule(
    "verdicts",
    f"Signs of {KINDS_NEEDED} kinds that stand for {ROUNDS} rounds are a verdict: by `--on-verdict` it is shown, "
    "contribution, weight and reward are withheld while the evidence stands and the site trains on with its own model, "
    f"or the site is excluded for good. {ROUNDS} rounds without two kinds lift it: the site is paid again.",
    "riders who are named and paid",
    "an honest outlier shows one kind at most, and is paid",
)


@dataclass(frozen=True)
class Verdicts:
    """What stands against each of n sites."""

    lasted: Tensor  # (kinds, n) rounds on end in which a sign was seen
    quiet: Tensor  # (n,) rounds on end without two kinds
    against: Tensor  # (n,) bool: a verdict stands

    @classmethod
    def none(cls, kinds: int, sites: int) -> "Verdicts":
        """Before round 0."""
        zeros = torch.zeros(sites, dtype=torch.long)
        return cls(torch.zeros(kinds, sites, dtype=torch.long), zeros, zeros.bool())

    def after(self, seen: Tensor, known: Tensor, present: Tensor, for_good: bool) -> "Verdicts":
        """After a round in which signs were ``seen`` (kinds, n) bool of the ``present`` (n,) sites.

        Where a kind is not ``known`` (kinds, n) bool, it counts as it stood, and for no round more: that evidence
        cannot be looked for speaks for no site.
        """
        lasted = torch.where(present & known, (self.lasted + 1) * seen, self.lasted)
        quiet = torch.where((lasted > 0).sum(dim=0) < KINDS_NEEDED, self.quiet + 1, 0).where(present, self.quiet)
        found = present & ((lasted >= ROUNDS).sum(dim=0) >= KINDS_NEEDED)
        stays = self.against if for_good else self.against & (quiet < ROUNDS)
        return Verdicts(lasted, quiet, stays | found)
