"""What the guard remembers of n sites from round to round, only tensors so that a checkpoint holds it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedmerit.contract.innovation import Broadcast
from fedmerit.guard.work import Evidence, Known

MEMORY = 0.5  # of means over rounds
PARTS: Mapping[str, type[Any]] = {"known": Known, "evidence": Evidence, "broadcast": Broadcast}


@dataclass(frozen=True)
class History:
    """A memory of the guard before a round. Means over rounds are NaN until there is a value."""

    usual: Tensor  # (n,) the last median norm of the others' updates; NaN: none yet
    known: Known
    nearness: Tensor  # (n, n) partial correlations of updates, mean over rounds
    copied: Tensor  # (n, n) bool: near copies
    evidence: Evidence
    shared: Tensor  # (n,) `work.shared_parts`, summed over rounds
    update_was_changed: Tensor  # (n,) bool: the last aggregation had the update clipped, or averaged with others
    is_outlier_rater: Tensor  # (n,) bool: in the site's last ratings
    rater_distance: Tensor  # (n,) `cross_evaluation.distances` of these; NaN: none yet, or the site has no vote
    leave_one_out_error: Tensor  # (n,) of the model without each site, measured by the others; NaN: not yet
    rounds: Tensor  # (n,) rounds so far
    rounds_worked: Tensor  # (n,) those in which the site showed work
    was_judged: Tensor  # (n,) bool: a verdict stood against it in any of them
    broadcast: Broadcast  # of forecasts; of no entries before the first one

    @classmethod
    def empty(cls, sites: int) -> "History":
        """Return the state before round 0."""
        unknown = torch.full((sites,), torch.nan, dtype=torch.float64)
        no, zero = torch.zeros(sites, dtype=torch.bool), torch.zeros(sites, dtype=torch.float64)
        return cls(
            known=Known.nothing(sites),
            nearness=unknown.repeat(sites, 1),
            copied=torch.zeros(sites, sites, dtype=torch.bool),
            evidence=Evidence.none(sites),
            broadcast=Broadcast.begin(torch.zeros(0)),
            **dict.fromkeys(("usual", "rater_distance", "leave_one_out_error"), unknown),
            **dict.fromkeys(("update_was_changed", "is_outlier_rater", "was_judged"), no),
            **dict.fromkeys(("shared", "rounds", "rounds_worked"), zero),
        )

    def after_work(self, worked: Tensor) -> "History":
        """Return the history with a round in which these sites ``worked`` (n,) bool."""
        return replace(
            self,
            rounds=self.rounds + 1,
            rounds_worked=self.rounds_worked + worked,
            was_judged=self.was_judged | self.evidence.against,
        )

    @property
    def credit(self) -> Tensor:
        """(n,) factor above 0 of what a site earns: once a verdict stood, the share of rounds in which it worked."""
        return torch.where(self.was_judged, self.rounds_worked.clamp(min=1) / self.rounds.clamp(min=1), 1.0)

    def content(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {**vars(self), **{name: dict(vars(getattr(self, name))) for name in PARTS}}

    @classmethod
    def restore(cls, content: Mapping[str, Any]) -> "History":
        """Return the history that `content` took apart."""
        return cls(**{**content, **{name: kind(**content[name]) for name, kind in PARTS.items()}})


def running_mean(memory: Tensor, now: Tensor) -> Tensor:
    """Return the mean over rounds: an unknown value (NaN) leaves it unchanged, the first known one is taken whole."""
    return torch.where(now.isnan(), memory, torch.where(memory.isnan(), now, MEMORY * memory + (1 - MEMORY) * now))
