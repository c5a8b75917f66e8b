"""What the guard remembers of n sites from round to round, only tensors so that a checkpoint holds it; verdicts.

A verdict stands while indicators of two independent kinds are seen again and again, and is lifted when they end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedmerit.guard.indicators import KINDS, Responses

KINDS_NEEDED = 2
ROUNDS = 3  # with an indicator, for its kind to stand; in a row without two kinds, for a verdict to be lifted
WINDOW = 9  # the last rounds, of which those are counted: a free rider in every fourth round is detected, too


@dataclass(frozen=True)
class Verdicts:
    """Verdicts against n sites, and the indicators they rest on."""

    seen: Tensor  # (kinds, n, WINDOW) bool: in the last rounds in which an indicator could be looked for, oldest first
    quiet: Tensor  # (n,) rounds in a row without two kinds
    against: Tensor  # (n,) bool: a verdict stands

    @classmethod
    def none(cls, kinds: int, sites: int) -> "Verdicts":
        """Before round 0."""
        zeros = torch.zeros(sites, dtype=torch.long)
        return cls(torch.zeros(kinds, sites, WINDOW, dtype=torch.bool), zeros, zeros.bool())

    @property
    def now(self) -> Tensor:
        """(kinds, n) bool: seen in the last round."""
        return self.seen[..., -1]

    @property
    def rounds(self) -> Tensor:
        """(kinds, n) in how many of the last `WINDOW` rounds an indicator was seen; 0 if it was not in the last one."""
        return self.seen.sum(dim=2) * self.now

    @property
    def standing(self) -> Tensor:
        """(kinds, n) bool: seen in the last round and often enough."""
        return self.rounds >= ROUNDS

    def after(self, seen: Tensor, known: Tensor, present: Tensor, permanent: bool) -> "Verdicts":
        """After a round in which indicators were ``seen`` (kinds, n) bool of the ``present`` (n,) sites.

        A kind that is not ``known`` (kinds, n) bool keeps its state: evidence that cannot be looked for clears no
        site, and founds no verdict.
        """
        later = torch.cat([self.seen[..., 1:], seen[..., None]], dim=2)
        found = replace(self, seen=torch.where((present & known)[..., None], later, self.seen))
        quiet = torch.where(found.now.sum(dim=0) < KINDS_NEEDED, self.quiet + 1, 0).where(present, self.quiet)
        stays = self.against if permanent else self.against & (quiet < ROUNDS)
        against = stays | (present & ((found.standing & known).sum(dim=0) >= KINDS_NEEDED))
        return replace(found, quiet=quiet, against=against)


WIDTH = 16384  # of a sketch: cosines of two are within some 0.01 of the vectors'
MEMORY = 0.5  # of means over rounds


@dataclass(frozen=True)
class History:
    """Before a round. Means over rounds are NaN until there is a value."""

    usual: Tensor  # (n,) the last median norm of the others' updates; NaN: none yet
    sketches: Tensor  # (n, m) float32, of each site's last update; zero rows: none yet
    nearness: Tensor  # (n, n) cosines of updates, mean over rounds
    copied: Tensor  # (n, n) bool: near copies
    direction: Tensor  # (n,) cosine to the others, mean over rounds
    own_cosine: Tensor  # (n,) cosine to the site's own update before, mean over rounds
    response: Tensor  # (n,) `indicators.Responses.cosines`, mean over rounds
    responses: Responses
    likeness: Tensor  # (n,) `indicators.likeness`, mean over rounds
    verdicts: Verdicts
    claim_was_wrong: Tensor  # (n,) bool: in the last round
    update_was_changed: Tensor  # (n,) bool: the last aggregation had the update clipped, or averaged with others
    keeps_own_model: Tensor  # (n,) bool: the site continues from its own model
    dominates_step: Tensor  # (n,) bool: most of the model's last step is this site's update
    is_outlier_rater: Tensor  # (n,) bool: in the site's last ratings
    rater_distance: Tensor  # (n,) `cross_evaluation.distances` of these; NaN: none yet, or the site has no vote
    leave_one_out_error: Tensor  # (n,) of the model without each site, measured by the others; NaN: not yet
    rounds: Tensor  # (n,) rounds so far
    rounds_worked: Tensor  # (n,) those in which the site showed work
    was_judged: Tensor  # (n,) bool: a verdict stood against it in any of them

    @classmethod
    def empty(cls, sites: int, width: int = WIDTH) -> "History":
        """Before round 0; ``width`` of the sketches."""
        unknown = torch.full((sites,), torch.nan, dtype=torch.float64)
        no = torch.zeros(sites, dtype=torch.bool)
        means = ("usual", "direction", "own_cosine", "response", "likeness", "rater_distance", "leave_one_out_error")
        flags = (
            "claim_was_wrong",
            "update_was_changed",
            "keeps_own_model",
            "dominates_step",
            "is_outlier_rater",
            "was_judged",
        )
        return cls(
            sketches=torch.zeros(sites, width),
            nearness=unknown.repeat(sites, 1),
            copied=torch.zeros(sites, sites, dtype=torch.bool),
            responses=Responses.none(sites, width),
            verdicts=Verdicts.none(len(KINDS), sites),
            **dict.fromkeys(means, unknown),
            **dict.fromkeys(flags, no),
            **dict.fromkeys(("rounds", "rounds_worked"), torch.zeros(sites, dtype=torch.float64)),
        )

    def after_work(self, worked: Tensor) -> "History":
        """With a round in which these sites ``worked`` (n,) bool."""
        return replace(
            self,
            rounds=self.rounds + 1,
            rounds_worked=self.rounds_worked + worked,
            was_judged=self.was_judged | self.verdicts.against,
        )

    @property
    def credit(self) -> Tensor:
        """(n,) factor above 0 of what a site earns: once a verdict stood, the share of rounds in which it worked."""
        return torch.where(self.was_judged, self.rounds_worked.clamp(min=1) / self.rounds.clamp(min=1), 1.0)

    def content(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {**vars(self), "verdicts": dict(vars(self.verdicts)), "responses": dict(vars(self.responses))}

    @classmethod
    def restore(cls, content: Mapping[str, Any]) -> "History":
        """The inverse of `content`."""
        parts = {"verdicts": Verdicts(**content["verdicts"]), "responses": Responses(**content["responses"])}
        return cls(**{**content, **parts})


def sketch(updates: Tensor, seed: int) -> Tensor:
    """(n, m) count sketch of ``updates`` (n, d): entries m apart are added with random signs; keeps cosines."""
    n, d = updates.shape
    whole = d // WIDTH * WIDTH
    signed = updates * _random_signs(d, seed)
    result = signed[:, :whole].view(n, -1, WIDTH).sum(dim=1)
    result[:, : d - whole] += signed[:, whole:]
    return result


@lru_cache(maxsize=1)
def _random_signs(size: int, seed: int) -> Tensor:
    """(size,) int8, -1 or 1; the same in every round of a run."""
    return torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(seed), dtype=torch.int8) * 2 - 1


def running_mean(memory: Tensor, now: Tensor) -> Tensor:
    """The mean over rounds: an unknown value (NaN) leaves it unchanged, the first known one is taken whole."""
    return torch.where(now.isnan(), memory, torch.where(memory.isnan(), now, MEMORY * memory + (1 - MEMORY) * now))
