"""DW, dataset weighted download: a baseline of Xu et al., Gradient Driven Rewards, NeurIPS 2021 (Sec. 4.1).

The global update is FedAvg's; the more training images a site has, the more entries of it the site downloads.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.core import About, Layout, Method, Outcome, Reports
from fedmerit.methods.rewards import Reward, fractions_of_largest
from fedmerit.parameters import parameter
from fedmerit.vectors import aggregate


@dataclass(frozen=True)
class DataWeightedState:
    """One model per site."""

    models: Tensor  # (n, d)


@dataclass(frozen=True)
class DataWeighted(Method):
    """Weights and contribution are sample shares among the sites present, and so are the downloads; absent ones keep
    their model.
    """

    ratio: str = parameter(
        "max", "q_i = n_i / max n; or share: n_i / Σ n, so that nobody downloads all", choices=("max", "share")
    )

    has_site_models: ClassVar[bool] = True
    about: ClassVar[About] = About(
        contribution="share of training images",
        weights="share of training images",
        download="own model, plus the largest entries its images earn",
        site_work="training",
        paper="baseline of Xu et al. 2021",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> DataWeightedState:
        """All sites start from one model (d,)."""
        return DataWeightedState(model.repeat(num_sites, 1))

    def round(self, state: DataWeightedState, updates: Tensor, reports: Reports) -> tuple[DataWeightedState, Outcome]:
        """``updates`` (n, d): u_N = Σ p_i Δ_i, of which a site gets the q_i largest (Eq. 5, Xu et al. 2021)."""
        weights = reports.data_share
        u_N = aggregate(torch.zeros_like(updates[0]), weights, updates)
        quota = fractions_of_largest(weights, reports.present) if self.ratio == "max" else weights
        models = Reward(u_N, quota).add_to(state.models)
        return DataWeightedState(models), Outcome.by_weights(weights, reports, models, quantities={"quota": quota})
