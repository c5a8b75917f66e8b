"""Mixtures of a round's updates, coalition by coalition: what round-wise Shapley values and leave-one-out are made of.

In round t, v_t(S) = U(w_t + Σ_{i∈S} n_i/n_S Δ_i) and v_t(∅) = U(w_t) (Song et al. 2019; Wang et al. 2020).
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmerit.games import coalition_candidates, coalitions_to_evaluate
from fedmerit.parameters import parameter
from fedmerit.values.observing import Observation, Observer, RoundView, State
from fedmerit.vectors import to_columns

MOST = 256  # models: all coalitions of 8 sites


@dataclass(frozen=True)
class InRun(Observer):
    """Every coalition of the sites present; of many sites, coalitions drawn anew each round, with their complements."""

    every: int = parameter(1, "rounds from one that is observed to the next; 0: the last alone", low=0)
    most: int = parameter(MOST, "models evaluated a round; where 2^n are more, so many are drawn", low=8, high=4096)

    about: ClassVar[str] = "each round's model, with the mean update of every coalition"

    def most_models(self, sites: int) -> int:
        """All coalitions, or so many."""
        return self.most if sites > 30 else min(self.most, 2**sites)

    def observe(self, state: State, view: RoundView) -> tuple[State, Observation | None]:
        """As the module says."""
        if not view.due(self.every):
            return state, None
        present = view.reports.present
        members = coalitions_to_evaluate(int(present.sum()), self.most, view.round)
        candidates = coalition_candidates(view.began, view.updates, view.reports, members)
        return state, Observation(candidates, to_columns(members.bool(), present))
