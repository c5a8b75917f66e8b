"""RR, round robin: a baseline of Xu et al., Gradient Driven Rewards, NeurIPS 2021 (Sec. 4.1).

Sites take turns in a fixed order: each one's turn ends with a download of the whole server model. It estimates no
contribution.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.core import About, Layout, Method, Outcome, Reports
from fedmerit.parameters import parameter
from fedmerit.vectors import aggregate


@dataclass(frozen=True)
class RoundRobinState:
    """What the server and the sites have."""

    server: Tensor  # (d,)
    models: Tensor  # (n, d)
    served: Tensor  # (n,) turn at which a site was last served, from 1; 0: never (turns="one")


@dataclass(frozen=True)
class RoundRobin(Method):
    """Weights are sample shares of the sites present; contributions are zero. Absent ones keep their model and turn."""

    turns: str = parameter(
        "pass",
        "per round, each site adds p_i Δ_i, then downloads; one: all add, one downloads",
        choices=("pass", "one"),
    )

    has_site_models: ClassVar[bool] = True
    about: ClassVar[About] = About(
        contribution="none",
        weights="share of training images",
        download="server model, in turns",
        site_work="training",
        paper="baseline of Xu et al. 2021",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> RoundRobinState:
        """All start from one model (d,)."""
        return RoundRobinState(model, model.repeat(num_sites, 1), torch.zeros(num_sites, dtype=torch.long))

    def round(self, state: RoundRobinState, updates: Tensor, reports: Reports) -> tuple[RoundRobinState, Outcome]:
        """``updates`` (n, d): the turns of one round, of the sites present; of "one", that which waits longest."""
        present, weights = reports.present, reports.data_share
        server, models, served = state.server, state.models.clone(), state.served.clone()
        here = present.nonzero().flatten().tolist()
        if self.turns == "pass":
            for i in here:
                server = aggregate(server, weights[i : i + 1], updates[i : i + 1])
                models[i] = server
        else:
            server = aggregate(server, weights, updates)
            turn = min(here, key=served.tolist().__getitem__)
            models[turn] = server
            served[turn] = served.max() + 1
        nothing = torch.zeros_like(weights)
        state = RoundRobinState(server, models, served)
        return state, Outcome(nothing.where(present, torch.nan), nothing, weights, models)
