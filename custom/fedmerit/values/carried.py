"""Models of coalitions carried along the whole run from the sites' updates, as if only their members had been heard.

w_S ← w_S + Σ_{i∈S} n_i/n_S Δ_i in every round, from the first model on. The updates are those of the one run: what a
member would have trained from w_S itself is not known. Since shares do not change, w_S is the mean by images of
w_0 + Σ_t Δ_i over the members; an update that did not come counts as zero.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.games import coalition_candidates, coalitions_to_evaluate
from fedmerit.parameters import parameter
from fedmerit.values.in_run import MOST
from fedmerit.values.observing import Observation, Observer, RoundView, State
from fedmerit.vectors import to_columns


@dataclass(frozen=True)
class Carried(Observer):
    """The carried models, every so many rounds or in the end."""

    every: int = parameter(0, "rounds from one evaluation to the next; 0: in the end alone", low=0)
    most: int = parameter(MOST, "models evaluated; where 2^n are more, so many are drawn", low=8, high=4096)

    about: ClassVar[str] = "models of coalitions, carried along the run from its updates"

    def most_models(self, sites: int) -> int:
        """All coalitions, or so many."""
        return self.most if sites > 30 else min(self.most, 2**sites)

    def start(self, model: Tensor, num_sites: int) -> State:
        """The first model, no updates, no images."""
        return {
            "first": model,
            "sums": model.new_zeros(num_sites, len(model)),
            "num_samples": torch.zeros(num_sites, dtype=torch.float64),
        }

    def observe(self, state: State, view: RoundView) -> tuple[State, Observation | None]:
        """As the module says."""
        known = torch.maximum(state["num_samples"], view.reports.num_samples)
        state = {"first": state["first"], "sums": state["sums"] + view.updates, "num_samples": known}
        if not view.due(self.every):
            return state, None
        ever = known > 0
        members = coalitions_to_evaluate(int(ever.sum()), self.most, view.round)
        everyone = replace(view.reports, num_samples=known, present=ever)
        candidates = coalition_candidates(state["first"], state["sums"], everyone, members)
        here = candidates.shares * view.reports.present  # BatchNorm statistics of those who are here
        totals = here.sum(dim=1, keepdim=True)
        candidates = replace(candidates, shares=here / totals.where(totals > 0, 1.0))
        return state, Observation(candidates, to_columns(members.bool(), ever))
