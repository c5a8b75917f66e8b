"""FedBN: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021.

Normalisation stays at the site: γ, β and running statistics. All other parameters are averaged.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.core import About, Layout, Method, Outcome, Reports
from fedmerit.vectors import aggregate


@dataclass(frozen=True)
class FedBNState:
    """What FedBN remembers."""

    models: Tensor  # (n, d) one per site, equal except in the norms
    norms: Tensor  # (d,) bool: the parameters of normalisation layers


@dataclass(frozen=True)
class FedBN(Method):
    """FedAvg of all but the norms (Algorithm 1, Li et al. 2021).

    The paper has only BatchNorm; here every norm with γ and β counts, also group norms and affine instance norms.
    Without norms it is FedAvg. An absent site keeps its norms and gets the rest. A site's norms enter no other model;
    they pass through the server, which has every site's model, and in the final test through the sites.
    """

    own_statistics: ClassVar[bool] = True
    has_site_models: ClassVar[bool] = True
    about: ClassVar[About] = About(
        download="global model, with its own norms and their statistics", paper="Li et al. 2021, FedBN"
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedBNState:
        """The state before round 0; ``model`` is (d,)."""
        return FedBNState(model.repeat(num_sites, 1), layout.in_norms)

    def round(self, state: FedBNState, updates: Tensor, reports: Reports) -> tuple[FedBNState, Outcome]:
        """``updates`` (n, d): w ← w + Σ p_i Δ_i, in norms w_i ← w_i + Δ_i."""
        weights = reports.data_share
        averaged = aggregate(state.models[0], weights, updates)  # not used for norms
        models = torch.where(state.norms, state.models + updates, averaged)
        outcome = Outcome.by_weights(weights, reports, models, statistics="own")
        return FedBNState(models, state.norms), outcome

    def restart_from(self, state: FedBNState, models: Tensor) -> FedBNState:
        """The norms of ``models`` (n, d) are the sites'; the rest stays that of all."""
        return replace(state, models=torch.where(state.norms, models, state.models))
