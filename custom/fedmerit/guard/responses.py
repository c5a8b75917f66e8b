"""How updates respond to what others made of the model: whoever minimises a loss asks for less of what it was given.

Of two rounds s < t, the change Δ_t - Δ_s of a site's update points against the way that the others' updates moved the
model in between, for any loss that is convex on it, wherever its minimum lies: (Δ_t - Δ_s) · (w_t - w_s) < 0. Reversed
signs point along. Noise and half the signs reversed point neither way, but so did an honest hospital for some rounds:
that a site does not respond is no sign. A site's own part of the way is left out, since it holds the noise of its own
updates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmerit.guard.rule import Rule, median_of_others

PART = -0.5  # of the others' median response
EASED = 0.5  # times that, while a verdict stands
SHOWN = 8.0  # times what chance gives: median response of the others that is enough to compare with
MEMORY = 0.5  # weight of a round beside the one after it
MOST = 0.5  # weight in the aggregation above which a site makes its own way: nothing is known of it then

RULE = Rule(
    "sign: response",
    "Where all have one model, the update asks for more of what others gave the model: the cosine of that way and of "
    f"how the update changed on it, reversed and mean over rounds, is under {PART:g} times the median of the others; "
    f"{EASED * PART:g} times, while a verdict stands. Where that median is under {SHOWN:g} times what chance gives, as "
    "late in training, the sign stays as it was.",
    "reversed signs",
    "a sign alone does nothing; an honest outlier asks for less, or for nothing",
)


@dataclass(frozen=True)
class Responses:
    """Sums over rounds s, of weights that fade, of sketches of n sites; places are relative to the model as it is."""

    updates: Tensor  # (n, m) float64, Σ Δ_s
    places: Tensor  # (n, m) Σ w_s
    inner: Tensor  # (n,) Σ Δ_s · w_s
    lengths: Tensor  # (n,) Σ ‖Δ_s‖²
    ways: Tensor  # (n,) Σ ‖w_s‖²
    counts: Tensor  # (n,) Σ 1

    @classmethod
    def none(cls, sites: int, width: int) -> "Responses":
        """Before round 0."""
        vectors = torch.zeros(sites, width, dtype=torch.float64)
        return cls(vectors, vectors, *[torch.zeros(sites, dtype=torch.float64)] * 4)

    def cosines(self, updates: Tensor) -> Tensor:
        """(n,) -Σ (Δ - Δ_s) · (w - w_s), by the norms, of this round's ``updates`` Δ (n, m); NaN: nothing moved yet."""
        now = updates.double()
        along = (now * self.places).sum(dim=1) - self.inner  # w is 0
        changes = self.counts * now.square().sum(dim=1) - 2 * (now * self.updates).sum(dim=1) + self.lengths
        scale = (changes.clamp(min=0) * self.ways.clamp(min=0)).sqrt()
        return torch.where(scale > 0, along / scale.where(scale > 0, 1.0), torch.nan)

    def after(self, updates: Tensor, parts: Tensor, present: Tensor, alone: Tensor) -> "Responses":
        """After a round.

        Args:
            updates: (n, m) of it.
            parts: (n, m) what each added to the model of all.
            present: (n,) bool: whose updates came.
            alone: (n,) bool: who goes on from its own model: its way is its own updates', each before it is compared.
        """
        now, moved = updates.double(), parts.double().sum(dim=0) - parts.double()
        own = alone[:, None]
        return self._moved(now.where(own, 0.0))._with(now, present)._moved(moved.where(~own, 0.0))

    def of(self, sites: Tensor) -> "Responses":
        """Of the ``sites`` (n,) bool alone, the others as before round 0."""
        kept: Mapping[str, Tensor] = vars(self)
        return Responses(**{name: _by_site(sites, value, torch.zeros_like(value)) for name, value in kept.items()})

    def _moved(self, by: Tensor) -> "Responses":
        return replace(
            self,
            places=self.places - self.counts[:, None] * by,
            inner=self.inner - (self.updates * by).sum(dim=1),
            ways=self.ways - 2 * (self.places * by).sum(dim=1) + self.counts * by.square().sum(dim=1),
        )

    def _with(self, updates: Tensor, present: Tensor) -> "Responses":
        """With a round whose place is the model as it is."""
        new = {"updates": updates, "lengths": updates.square().sum(dim=1), "counts": torch.ones_like(self.counts)}
        kept: Mapping[str, Tensor] = vars(self)
        return Responses(
            **{name: _by_site(present, MEMORY * value + new.get(name, 0.0), value) for name, value in kept.items()}
        )


def _by_site(sites: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(sites.view(-1, *[1] * (one.ndim - 1)), one, other)


def compared(responses: Tensor, present: Tensor, size: int) -> Tensor:
    """(n,) bool: whose ``responses`` (n,), NaN: not known, of vectors of ``size`` can be compared with the others'."""
    known = present & responses.isfinite()
    shown: float = SHOWN / size**0.5
    return known & (median_of_others(responses, known) > shown)


def opposed(responses: Tensor, present: Tensor, size: int, against: Tensor) -> Tensor:
    """(n,) bool: whose updates point along; less is enough of those that a verdict stands ``against`` (n,)."""
    usual = median_of_others(responses, present & responses.isfinite())
    return compared(responses, present, size) & (responses < PART * usual * torch.where(against, EASED, 1.0))
