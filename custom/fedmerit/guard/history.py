"""What the guard remembers of n sites from round to round: tensors alone, so that a checkpoint holds it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedmerit.guard.responses import Responses
from fedmerit.guard.signs import KINDS
from fedmerit.guard.verdicts import Verdicts

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


def remembered(memory: Tensor, now: Tensor) -> Tensor:
    """The mean over rounds: what is not known now stays, what was not known before counts whole."""
    return torch.where(now.isnan(), memory, torch.where(memory.isnan(), now, MEMORY * memory + (1 - MEMORY) * now))
