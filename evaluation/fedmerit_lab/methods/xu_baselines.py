"""Baselines of Xu et al., Gradient Driven Rewards, NeurIPS 2021 (Sec. 4.1): DW, EU and RR.

The global update is FedAvg's. By dataset weighted download (DW) a site downloads the more of its largest entries, the
more training images it has; by Euclidean distance (EU), the closer its update is to the global one. By round robin (RR)
sites take turns in a fixed order: each turn ends with a download of the whole server model.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.method import Layout, Method, MethodSummary, Outcome, Reports, SiteModels, inner_products
from fedmerit.contract.rewards import Reward, fractions_of_largest
from fedmerit.contract.vectors import aggregate, share
from fedmerit.schema.rules import About, Choice

COINCIDES = 1e-12  # a squared distance this small relative to its terms is rounding


@dataclass(frozen=True)
class DataWeighted(Method):
    """A method in which weights, contribution and downloads are sample shares among the sites present; absent ones keep
    their model.
    """

    ratio: Annotated[
        str, Choice(("max", "share")), About("q_i = n_i / max n; or share: n_i / Σ n, so no site downloads all")
    ] = "max"
    has_site_models: ClassVar[bool] = True
    has_private_models: ClassVar[bool] = False
    about: ClassVar[MethodSummary] = MethodSummary(
        download="own model, plus the largest entries its images earn", paper="baseline of Xu et al. 2021"
    )

    def round(self, state: SiteModels, updates: Tensor, reports: Reports) -> tuple[SiteModels, Outcome]:
        """Return the models after a round: site i gets the q_i largest entries of Σ p_i Δ_i (Eq. 5, Xu et al. 2021)."""
        weights = reports.data_share
        u_N = aggregate(torch.zeros_like(updates[0]), weights, updates)
        quota = fractions_of_largest(weights, reports.present) if self.ratio == "max" else weights
        models = Reward(u_N, quota).add_to(state.models)
        return SiteModels(models), Outcome.by_weights(weights, reports, models, quantities={"quota": quota})


@dataclass(frozen=True)
class Euclidean(Method):
    """A method with downloads in proportion to closeness; weights are sample shares.

    Xu et al. 2021 make downloads "proportional to the negative distance" d_i; the score here is positive,
    (1 - d_i / Σ d) / (N - 1), and sums to 1 over the N sites present. A single present site has score 1.
    Absent ones keep their model.
    """

    has_site_models: ClassVar[bool] = True
    has_private_models: ClassVar[bool] = False
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="closeness of its update to the mean",
        download="own model, plus the largest entries its closeness earns",
        paper="baseline of Xu et al. 2021",
    )

    def round(self, state: SiteModels, updates: Tensor, reports: Reports) -> tuple[SiteModels, Outcome]:
        """Return models: each site gets the entries of u_N = Σ p_i Δ_i that it earns (Eq. 5, Xu et al. 2021)."""
        present, weights = reports.present, reports.data_share
        u_N = aggregate(torch.zeros_like(updates[0]), weights, updates)
        distance_share = share(distances_to_sum(inner_products(updates, reports), weights), present)
        others = int(present.sum()) - 1
        score = ((1 - distance_share) / others if others else distance_share).where(present, 0.0)
        quota = fractions_of_largest(score, present)
        models = Reward(u_N, quota).add_to(state.models)
        contribution = score.where(present, torch.nan)
        return SiteModels(models), Outcome(contribution, score, weights, models, {"quota": quota})


def distances_to_sum(products: Tensor, weights: Tensor) -> Tensor:
    """Return (n,) ||Δ_i - Σ_j p_j Δ_j|| from the (n, n) Gram matrix of the updates and (n,) weights p."""
    inner = products @ weights
    terms = products.diagonal() + weights @ inner
    squared = terms - 2 * inner
    return squared.where(squared > COINCIDES * terms, 0.0).sqrt()


@dataclass(frozen=True)
class RoundRobinState:
    """The models of the server and of the sites."""

    server: Tensor  # (d,)
    models: Tensor  # (n, d)
    served: Tensor  # (n,) turn of a site's last download, from 1; 0: none (turns="one")


@dataclass(frozen=True)
class RoundRobin(Method):
    """A method with sample shares as weights and no contributions. Absent sites keep their model and turn."""

    turns: Annotated[
        str,
        Choice(("pass", "one")),
        About("per round, each site adds p_i Δ_i, then downloads; one: all add, one downloads"),
    ] = "pass"
    has_site_models: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="none", download="server model, in turns", paper="baseline of Xu et al. 2021"
    )

    @property
    def reveals_updates(self) -> bool:
        """Whether turns are in a round: then the second site downloads what only the first added."""
        return self.turns == "pass"

    @property
    def has_private_models(self) -> bool:
        """Whether models differ by one update: with turns in a round."""
        return self.turns == "pass"

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> RoundRobinState:
        """Return the state before round 0: all sites start from one model (d,)."""
        return RoundRobinState(model, model.repeat(num_sites, 1), torch.zeros(num_sites, dtype=torch.long))

    def round(self, state: RoundRobinState, updates: Tensor, reports: Reports) -> tuple[RoundRobinState, Outcome]:
        """Return the model after the turns of the present sites, or of that which waits longest."""
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
        return RoundRobinState(server, models, served), Outcome.without_credit(reports, models)
