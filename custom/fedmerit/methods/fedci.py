"""The contribution index of Song et al., Profit Allocation for Federated Learning, 2019: FedCI and ECI.

A site's index is the sum over rounds of its exact Shapley value in the game whose utility is the validation Dice of
a coalition's aggregate. FedCI takes it as aggregation weights, a baseline of Jiang et al. 2023. ECI, the baseline of
Xu et al. 2021, takes it as download quota: a site downloads as large a part of the aggregate as its index is of the
best site's.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedmerit.capabilities import Candidates, EvaluatesCandidates
from fedmerit.core import About, Layout, Method, Outcome, Reports
from fedmerit.games import coalition_candidates, coalition_values, require_coalitions
from fedmerit.methods.rewards import Reward, fractions_of_largest, kept, unrewarded_parameter
from fedmerit.parameters import parameter
from fedmerit.vectors import aggregate, share


@dataclass(frozen=True)
class ContributionIndex(Method, EvaluatesCandidates):
    """What both methods share: the coalitions whose aggregates are evaluated. They are those of the present sites."""

    truncation: float = parameter(0.0, "a round with |U(all) - U(none)| up to it counts 0; TMR: 0.01", low=0)

    def candidates(self, state: Any, updates: Tensor, reports: Reports) -> Candidates:
        """The server's model plus the mean update of every coalition of the present sites."""
        return coalition_candidates(state.model, updates, reports)

    def most_candidates(self, sites: int) -> int:
        """One of each coalition."""
        return 1 << sites


@dataclass(frozen=True)
class FedCIState:
    """What FedCI remembers."""

    model: Tensor  # (d,)
    index: Tensor  # (n,) Σ_t CI_i


@dataclass(frozen=True)
class FedCI(ContributionIndex):
    """Weights are the contribution indices so far, this round's included; sample shares while none is positive.

    Coalitions and weights are those of the sites present; absent ones keep their index.
    """

    about: ClassVar[About] = About(
        contribution="Shapley value of server validation Dice",
        weights="contribution, accumulated",
        download="global model",
        site_work="training, evaluation of the sites' models",
        paper="Song et al. 2019",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedCIState:
        """The state before round 0; ``model`` is (d,). ValueError: more than 12 sites."""
        require_coalitions(num_sites)
        return FedCIState(model, torch.zeros(num_sites, dtype=torch.float64))

    def round(self, state: FedCIState, updates: Tensor, reports: Reports) -> tuple[FedCIState, Outcome]:
        """``updates`` (n, d): this round's Shapley values, added to the index, weigh the aggregate."""
        present = reports.present
        values = coalition_values(reports, self.truncation)
        index = state.index + values.where(present, 0.0)
        earned = index.clamp(min=0)
        weights = share(earned, present) if earned[present].any() else reports.data_share
        model = aggregate(state.model, weights, updates)
        reputation = share(earned, torch.ones_like(present)) if earned.any() else reports.data_share
        return FedCIState(model, index), Outcome(values, reputation, weights, model)


@dataclass(frozen=True)
class ECIState:
    """What ECI remembers."""

    model: Tensor  # (d,) the server's model, of which coalitions are valued
    models: Tensor  # (n, d) the sites' models
    index: Tensor  # (n,) Σ_t CI_i


@dataclass(frozen=True)
class ECI(ContributionIndex):
    """Sites download by the contribution index so far; everything while no present site's is positive.

    By default a site keeps what it trained in entries that it does not earn; the baseline is ``unrewarded="nothing"``.
    Coalitions, weights and maxima are those of the sites present; absent ones keep index and model.
    """

    unrewarded: str = unrewarded_parameter("own")

    has_site_models: ClassVar[bool] = True
    about: ClassVar[About] = About(
        contribution="Shapley value of server validation Dice",
        weights="share of training images",
        download="own model, plus the largest entries by contribution",
        site_work="training, evaluation of the sites' models",
        paper="Song et al. 2019",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> ECIState:
        """The state before round 0; ``model`` is (d,). ValueError: more than 12 sites."""
        require_coalitions(num_sites)
        return ECIState(model, model.repeat(num_sites, 1), torch.zeros(num_sites, dtype=torch.float64))

    def round(self, state: ECIState, updates: Tensor, reports: Reports) -> tuple[ECIState, Outcome]:
        """``updates`` (n, d): u = Σ p_i Δ_i; the floor(d CI_i / max CI) largest entries of u to site i."""
        present, weights = reports.present, reports.data_share
        values = coalition_values(reports, self.truncation)
        index = state.index + values.where(present, 0.0)
        positive = index.clamp(min=0)
        quota = fractions_of_largest(positive, present)
        quota = quota if quota.any() else present.double()
        update = aggregate(torch.zeros_like(state.model), weights, updates)
        models = Reward(update, quota, own=kept(self.unrewarded, updates)).add_to(state.models)
        reputation = share(positive, torch.ones_like(present)) if positive.any() else weights
        outcome = Outcome(values, reputation, weights, models, {"quota": quota.where(present, torch.nan)})
        return ECIState(state.model + update, models, index), outcome
