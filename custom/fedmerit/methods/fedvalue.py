"""FedValue: weights by remembered values. Our own composition of published parts.

In round t a site is worth its Shapley value in v_t(S) = U(w_t + Σ_{i∈S} n_i/n_S Δ_i), U the server validation Dice
(Song et al. 2019; Wang et al. 2020), or its leave-one-out value in that game. The values are remembered as CFFL and
RFFL remember reputations, and weigh the aggregate.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.capabilities import Candidates, EvaluatesCandidates
from fedmerit.core import About, Layout, Method, Outcome, Reports
from fedmerit.games import all_but_one, coalition_candidates, coalition_values, leave_one_out_values, require_coalitions
from fedmerit.parameters import parameter
from fedmerit.vectors import aggregate, remember, share

SHAPLEY, LEAVE_ONE_OUT = "shapley", "leave_one_out"


@dataclass(frozen=True)
class FedValueState:
    """What FedValue remembers."""

    model: Tensor  # (d,)
    memory: Tensor  # (n,) r


@dataclass(frozen=True)
class FedValue(Method, EvaluatesCandidates):
    """r_i ← α r_i + (1 - α) φ_i; ρ is the share of max(r, 0); sample shares while no r is positive.

    Coalitions and weights are those of the sites present; absent ones keep their memory.
    """

    alpha: float = parameter(0.8, "of what was, in the memory of values", low=0, below=1)
    kind: str = parameter(SHAPLEY, "φ of a round", choices=(SHAPLEY, LEAVE_ONE_OUT))

    about: ClassVar[About] = About(
        contribution="value in the round's game of server validation Dice",
        weights="contribution, remembered",
        download="global model",
        site_work="training, evaluation of coalitions' models",
        paper="after Song et al. 2019",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedValueState:
        """The state before round 0; ``model`` is (d,). ValueError: more than 12 sites, of Shapley values."""
        if self.kind == SHAPLEY:
            require_coalitions(num_sites)
        return FedValueState(model, torch.zeros(num_sites, dtype=torch.float64))

    def candidates(self, state: FedValueState, updates: Tensor, reports: Reports) -> Candidates:
        """The aggregates of all coalitions of the present sites, or of each all but one, and of all."""
        members = None if self.kind == SHAPLEY else all_but_one(int(reports.present.sum()))
        return coalition_candidates(state.model, updates, reports, members)

    def most_candidates(self, sites: int) -> int:
        """One of each coalition, or of each all but one, and of all."""
        return 1 << sites if self.kind == SHAPLEY else sites + 1

    def round(self, state: FedValueState, updates: Tensor, reports: Reports) -> tuple[FedValueState, Outcome]:
        """``updates`` (n, d): this round's values, remembered, weigh the aggregate."""
        present = reports.present
        values = coalition_values(reports, truncation=0.0) if self.kind == SHAPLEY else leave_one_out_values(reports)
        memory = remember(state.memory, values, self.alpha, present)
        earned = memory.clamp(min=0)
        weights = share(earned, present) if earned[present].any() else reports.data_share
        model = aggregate(state.model, weights, updates)
        reputation = share(earned, torch.ones_like(present)) if earned.any() else reports.data_share
        return FedValueState(model, memory), Outcome(values, reputation, weights, model)
