"""A round's mean without each site in turn: FedCE's data term, asked of all the others.

w^{-i} = (w - ρ_i w_i) / (1 - ρ_i), of w = Σ ρ_i w_i (Eq. 3, Jiang et al. 2023). What the others lose without i is
Σ_{j≠i} q_j [E_j(w^{-i}) - E_j(w)], q_j their shares of the images (`evaluation.values.from_games.others_lose`). Where a
server makes its next model otherwise than by that mean, as FedAdam or the median do, w is still the mean: of such a
model no site's part can be taken off.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedmerit.capabilities.candidates import Candidates
from fedmerit.parameters import parameter
from fedmerit.values.observing import Observation, Observer, RoundView, State
from fedmerit.vectors import to_columns, trained_models


@dataclass(frozen=True)
class OthersLose(Observer):
    """The mean by the aggregation weights, and that without each site, where another has any weight in it."""

    every: int = parameter(1, "rounds from one that is observed to the next; 0: the last alone", low=0)

    about: ClassVar[str] = "each round's mean, and that without each site"

    def most_models(self, sites: int) -> int:
        """Without each, and with all."""
        return sites + 1

    def observe(self, state: State, view: RoundView) -> tuple[State, Observation | None]:
        """As the module says."""
        if not view.due(self.every):
            return state, None
        present = view.reports.present
        rho = view.weights[present].double()
        k = len(rho)
        members = torch.cat([~torch.eye(k, dtype=torch.bool), torch.ones(1, k, dtype=torch.bool)])
        weights = (members * rho).sum(dim=1)
        members, weights = members[weights > 0], weights[weights > 0]
        models = trained_models(view.began, view.updates, present)  # (k, d)
        coalitions = to_columns(members, present)
        images = coalitions * view.reports.data_share
        totals = images.sum(dim=1, keepdim=True)
        shares = images / totals.where(totals > 0, 1.0)
        return state, Observation(Candidates(models, members * rho / weights[:, None], shares), coalitions)
