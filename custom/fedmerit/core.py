"""What every method shares: the contract (Reports, Outcome, Method) and the verbs the papers have in common.

n sites, d trainable parameters. Rows are in site-name order, always; reductions are in float64.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reports:
    """What the sites of one round said, beside their updates. Rows of absent sites hold zero or NaN."""

    num_samples: Tensor  # (n,) training images, float64
    present: Tensor  # (n,) bool: whose update counts this round
    values: Mapping[str, Tensor] = field(default_factory=dict)  # what the method asked for, (n,); NaN: not available

    @property
    def data_share(self) -> Tensor:
        """(n,) share of the present sites' training images; 0 for absent sites."""
        return share(self.num_samples, self.present)


@dataclass(frozen=True)
class Outcome:
    """What one round gave."""

    contribution: Tensor  # (n,) this round's estimate; signed, higher is better; NaN for absent sites
    reputation: Tensor  # (n,) contribution remembered over rounds
    weights: Tensor  # (n,) aggregation weights, sum to 1, zero allowed
    models: Tensor  # (d,) one global model, or (n, d) one per site: where each starts the next round
    quantities: Mapping[str, Tensor] = field(default_factory=dict)  # (n,) each; further columns for results.csv


@dataclass(frozen=True)
class SiteView:
    """What a site holds when it receives w_t, if its own update of the round before is part of w_t."""

    received: Tensor  # (d,) w_t
    previous: Tensor  # (d,) w_{t-1}
    own_previous: Tensor  # (d,) w_{t-1,i}, what it trained from w_{t-1}
    weight: float  # ρ_i, its weight in the aggregation that made w_t, in [0, 1)
    validation_dice: Callable[[Tensor], float]  # of (d,) on its validation split, with the others' BatchNorm statistics


RANGES: Mapping[str, tuple[float, float]] = {"cosine": (-1.0, 1.0), "minus_error": (0.0, 1.0)}  # of `Reports.values`


class Method(Protocol):
    """One paper's mechanism: frozen parameters, a pure server half, and what it asks of sites."""

    asks: ClassVar[tuple[str, ...]]  # what `report` returns: keys of `Reports.values` and `RANGES`
    shares_buffers: ClassVar[bool]  # False where sites keep their own BatchNorm statistics

    def start(self, model: Tensor, num_sites: int) -> Any:
        """The state before round 0, a frozen dataclass of tensors and numbers; ``model`` is (d,)."""
        ...

    def round(self, state: Any, updates: Tensor, reports: Reports) -> tuple[Any, Outcome]:
        """One aggregation. ``updates`` (n, d) float32: trained minus received, zero rows for absent sites."""
        ...

    def report(self, view: SiteView) -> dict[str, float]:
        """The site half: the quantities named in `asks`."""
        ...


def share(amounts: Tensor, present: Tensor) -> Tensor:
    """(n,) ``amounts`` normalised to sum 1 over the present sites; equal shares where they sum to 0."""
    amounts = torch.where(present, amounts.double(), 0.0)
    if amounts.sum() <= 0:
        amounts = present.double()
    return amounts / amounts.sum()


def gram(updates: Tensor) -> Tensor:
    """(n, n) float64 inner products of the rows of (n, d) ``updates``: every norm and cosine of a round."""
    n = len(updates)
    result = torch.zeros(n, n, dtype=torch.float64)
    for block in torch.split(updates, 1 << 20, dim=1):  # float64 copies of a block, never of the whole stack
        block = block.double()
        result += block @ block.T
    return result


def cosine_to_others(products: Tensor, weights: Tensor) -> Tensor:
    """(n,) cosine of each update and the weighted sum of the others, from their Gram matrix.

    0 where either vector is zero, as for a site alone.

    Args:
        products: (n, n) Gram matrix of the updates.
        weights: (n,) weights of the sum.
    """
    others = weights.double().repeat(len(weights), 1).fill_diagonal_(0.0)  # row i: the weights without site i
    inner = (others * products).sum(dim=1)
    others_norm = torch.einsum("ij,jk,ik->i", others, products, others).clamp(min=0).sqrt()
    norms = products.diagonal().clamp(min=0).sqrt() * others_norm
    return torch.where(norms > 0, inner / norms.where(norms > 0, torch.ones_like(norms)), 0.0).clamp(-1, 1)


def aggregate(model: Tensor, weights: Tensor, updates: Tensor) -> Tensor:
    """(d,) float32 ``model`` plus the weighted sum of ``updates`` (n, d), summed in float64 in site order."""
    result = torch.empty_like(model)
    for block in range(0, len(model), 1 << 20):
        part = slice(block, block + (1 << 20))
        result[part] = (model[part].double() + weights.double() @ updates[:, part].double()).to(model.dtype)
    return result
