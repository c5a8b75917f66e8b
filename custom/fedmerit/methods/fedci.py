"""FedCI: the contribution index of Song et al., Profit Allocation for Federated Learning, 2019, as weights.

A site's index is the sum over rounds of its exact Shapley value in the game whose utility is the validation Dice of
a coalition's aggregate; as aggregation weights it is a baseline of Jiang et al. 2023.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.capabilities import Candidates, EvaluatesCandidates
from fedmerit.core import About, Layout, Method, Outcome, Reports
from fedmerit.games import coalition_candidates, coalition_values, require_coalitions
from fedmerit.parameters import parameter
from fedmerit.vectors import aggregate, share


@dataclass(frozen=True)
class FedCIState:
    """What FedCI remembers."""

    model: Tensor  # (d,)
    index: Tensor  # (n,) Σ_t CI_i


@dataclass(frozen=True)
class FedCI(Method, EvaluatesCandidates):
    """Weights are the contribution indices so far, this round's included; sample shares while none is positive.

    Coalitions and weights are those of the sites present; absent ones keep their index.
    """

    truncation: float = parameter(0.0, "a round with |U(all) - U(nobody)| up to it counts 0; TMR: 0.01", low=0)

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

    def candidates(self, state: FedCIState, updates: Tensor, reports: Reports) -> Candidates:
        """The aggregates of all coalitions of the present sites."""
        return coalition_candidates(state.model, updates, reports)

    def most_candidates(self, sites: int) -> int:
        """One of each coalition."""
        return 1 << sites

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
