"""Further observers of runs: one-round reconstruction and the loss without each site; their names: pyproject.toml."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.capabilities import Candidates
from fedmerit.contract.games import coalition_candidates, coalitions_to_evaluate
from fedmerit.contract.observers import Observation, Observer, RoundView, SampledCoalitions, State
from fedmerit.contract.vectors import to_columns, trained_models
from fedmerit.schema.rules import About, Count


@dataclass(frozen=True)
class OneRoundReconstruction(SampledCoalitions):
    """An observer of one-round reconstruction (OR, Song et al. 2019): coalitions' models from the run's updates.

    w_S ← w_S + Σ_{i∈S} n_i/n_S Δ_i in every round, from the first model. The updates are those of the one run: what a
    member would have trained from w_S is not known. Since shares do not change, w_S is the mean by images of
    w_0 + Σ_t Δ_i over the members; a missing update counts as zero.
    """

    every: Annotated[int, Count(), About("rounds from one evaluation to the next; 0: only the last")] = 0
    about: ClassVar[str] = "models of coalitions, from the updates of the whole run"

    def start(self, model: Tensor, num_sites: int) -> State:
        """Return the first model, no updates and no images."""
        return {
            "first": model,
            "sums": model.new_zeros(num_sites, len(model)),
            "num_samples": torch.zeros(num_sites, dtype=torch.float64),
        }

    def observe(self, state: State, view: RoundView) -> tuple[State, Observation | None]:
        """Return the next state, and the models of coalitions if the round is observed."""
        known = torch.maximum(state["num_samples"], view.reports.num_samples)
        state = {"first": state["first"], "sums": state["sums"] + view.updates, "num_samples": known}
        if not view.due(self.every):
            return state, None
        ever = known > 0
        members = coalitions_to_evaluate(int(ever.sum()), self.most, view.round)
        everyone = replace(view.reports, num_samples=known, present=ever)
        candidates = coalition_candidates(state["first"], state["sums"], everyone, members)
        here = candidates.shares * view.reports.present  # BatchNorm statistics of the present sites
        totals = here.sum(dim=1, keepdim=True)
        candidates = replace(candidates, shares=here / totals.where(totals > 0, 1.0))
        return state, Observation(candidates, to_columns(members.bool(), ever))


@dataclass(frozen=True)
class LeaveOneOutLoss(Observer):
    """An observer of the round's mean without each site and with all: FedCE's data term for all other sites.

    w^{-i} = (w - ρ_i w_i) / (1 - ρ_i), of w = Σ ρ_i w_i (Eq. 3, Jiang et al. 2023), if another site has any weight in
    it. The loss of the others without i is Σ_{j≠i} q_j [E_j(w^{-i}) - E_j(w)], q_j their shares of the images
    (`fedmerit_lab.valuation.estimators.leave_one_out_losses`). If a server does not make its next model by
    that mean, as FedAdam or the median, w is still the mean.
    """

    every: Annotated[int, Count(), About("rounds from one observation to the next; 0: only the last")] = 1
    about: ClassVar[str] = "each round's mean, and that without each site"

    def most_models(self, sites: int) -> int:
        """Return one model without each site, and one with all."""
        return sites + 1

    def observe(self, state: State, view: RoundView) -> tuple[State, Observation | None]:
        """Return the mean of the round without each site and with all, if the round is observed."""
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
