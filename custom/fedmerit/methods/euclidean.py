"""EU, Euclidean distance: a baseline of Xu et al., Gradient Driven Rewards, NeurIPS 2021 (Sec. 4.1).

The global update is FedAvg's; the closer a site's update is to it, the more entries of it the site downloads.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.core import About, Layout, Method, Outcome, Reports, inner_products
from fedmerit.methods.rewards import Reward, fractions_of_largest
from fedmerit.vectors import aggregate, share

COINCIDES = 1e-12  # a squared distance this small beside its terms is rounding


@dataclass(frozen=True)
class EuclideanState:
    """One model per site."""

    models: Tensor  # (n, d)


@dataclass(frozen=True)
class Euclidean(Method):
    """Downloads in proportion to closeness; weights are sample shares.

    Xu et al. 2021 make downloads "proportional to the negative distance" d_i; the score here is positive,
    (1 - d_i / Σ d) / (N - 1), and sums to 1 over the N sites present. A site alone has score 1. Absent ones
    keep their model.
    """

    has_site_models: ClassVar[bool] = True
    about: ClassVar[About] = About(
        contribution="closeness of its update to the mean",
        weights="share of training images",
        download="own model, plus the largest entries its closeness earns",
        site_work="training",
        paper="baseline of Xu et al. 2021",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> EuclideanState:
        """All sites start from one model (d,)."""
        return EuclideanState(model.repeat(num_sites, 1))

    def round(self, state: EuclideanState, updates: Tensor, reports: Reports) -> tuple[EuclideanState, Outcome]:
        """``updates`` (n, d): u_N = Σ p_i Δ_i, of which a site gets what its score earns (Eq. 5, Xu et al. 2021)."""
        present, weights = reports.present, reports.data_share
        u_N = aggregate(torch.zeros_like(updates[0]), weights, updates)
        distance_share = share(distances_to_sum(inner_products(updates, reports), weights), present)
        others = int(present.sum()) - 1
        score = ((1 - distance_share) / others if others else distance_share).where(present, 0.0)
        quota = fractions_of_largest(score, present)
        models = Reward(u_N, quota).add_to(state.models)
        contribution = score.where(present, torch.nan)
        return EuclideanState(models), Outcome(contribution, score, weights, models, {"quota": quota})


def distances_to_sum(products: Tensor, weights: Tensor) -> Tensor:
    """(n,) ||Δ_i - Σ_j p_j Δ_j|| from the (n, n) Gram matrix of the updates and (n,) weights p."""
    inner = products @ weights
    terms = products.diagonal() + weights @ inner
    squared = terms - 2 * inner
    return squared.where(squared > COINCIDES * terms, 0.0).sqrt()
