"""Rewards: a site's quota decides how many of the largest entries of the aggregate it downloads.

In the papers of CGSV, CFFL, FedAVE and their baselines the entries that a site does not download stay what they were
before it trained, so a site that earns nothing trains the same first step for ever. FedAVE and ECI have it keep there
what it trained by default (``unrewarded="own"``): w_i ← w_i + M_i ⊙ u + (1 - M_i) ⊙ Δ_i, which is local-only training
for a quota of 0, and the aggregate u for a quota of 1. The download is as large as the model then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from torch import Tensor

from fedmerit.contract.vectors import add_masked, keep_largest, keep_largest_per_tensor, quota_counts
from fedmerit.schema.rules import About, Choice

UNREWARDED = ("nothing", "own")
Unrewarded = Annotated[
    str,
    Choice(UNREWARDED),
    About("Entries of its model that a site earns nothing for: as before training, or own: as it trained them."),
]


@dataclass(frozen=True)
class Reward:
    """A round's downloads: the largest entries of an update, as many for each site as its quota says (Eq. 5, CGSV)."""

    update: Tensor  # (d,) u
    quota: Tensor  # (n,) fraction of the entries that each site downloads, 0 to 1
    tensor_sizes: Sequence[int] = ()  # for the rule of `keep_largest_per_tensor`; none: the largest of all
    own: Tensor | None = None  # (n, d) what each site has in the other entries; None: nothing new

    @cached_property
    def masks(self) -> Tensor:
        """(n, d) bool: the entries that each site downloads."""
        if self.tensor_sizes:
            return keep_largest_per_tensor(self.update, self.quota, self.tensor_sizes)
        return keep_largest(self.update, quota_counts(self.quota, len(self.update)))

    def add_to(self, models: Tensor) -> Tensor:
        """Return (n, d) ``models`` (n, d), each plus its site's reward."""
        return add_masked(models, self.update, self.masks, self.own)


def fractions_of_largest(amounts: Tensor, present: Tensor) -> Tensor:
    """Return (n,) ``amounts`` (n,) of the present sites by the largest of them.

    0 for absent sites, and if all are 0.
    """
    amounts = amounts.where(present, 0.0)
    return amounts / amounts.max() if amounts.any() else amounts


def kept(unrewarded: str, updates: Tensor) -> Tensor | None:
    """Return `Reward.own`: ``updates`` (n, d) if sites keep what they trained, else None."""
    return updates if unrewarded == "own" else None
