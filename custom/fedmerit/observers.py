"""What is observed of a run, so that what its sites are worth can be told: models that the sites evaluate.

n sites, d trainable parameters. An observer makes models of what a round gave; every site evaluates them on its
validation patients, and the Dice is written down. It changes nothing of the run.

Mixtures of a round's updates, coalition by coalition: what round-wise Shapley values and leave-one-out are made of.

In round t, v_t(S) = U(w_t + Σ_{i∈S} n_i/n_S Δ_i) and v_t(∅) = U(w_t) (Song et al. 2019; Wang et al. 2020).

Models of coalitions carried along the whole run from the sites' updates, as if only their members had been heard.

w_S ← w_S + Σ_{i∈S} n_i/n_S Δ_i in every round, from the first model on. The updates are those of the one run: what a
member would have trained from w_S itself is not known. Since shares do not change, w_S is the mean by images of
w_0 + Σ_t Δ_i over the members; an update that did not come counts as zero.

The models that sites train alone, which the others evaluate, too: what each site is worth by itself.

v({i}), of every i. Of a game that is all that n trainings of one site each tell, together the work of one training of
all: Σ_i n_i images a round.

A round's mean without each site in turn: FedCE's data term, asked of all the others.

w^{-i} = (w - ρ_i w_i) / (1 - ρ_i), of w = Σ ρ_i w_i (Eq. 3, Jiang et al. 2023). What the others lose without i is
Σ_{j≠i} q_j [E_j(w^{-i}) - E_j(w)], q_j their shares of the images
(`fedmerit_evaluation.valuation.game_estimators.leave_one_out_loss`). If a server makes its next model otherwise than by
that mean, as FedAdam or the median do, w is still the mean: of such a model no site's part can be taken off.

What can be observed of a run, by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedmerit.capabilities import Candidates
from fedmerit.core import Reports
from fedmerit.games import coalition_candidates, coalitions_to_evaluate
from fedmerit.parameters import Checked, parameter
from fedmerit.plugins import Catalogue
from fedmerit.vectors import to_columns, trained_models

State = Mapping[str, Tensor]  # what an observer remembers; it lies in the run's checkpoint


@dataclass(frozen=True)
class RoundView:
    """What the server holds when a round is aggregated."""

    round: int  # t
    rounds: int  # T, of the run
    began: Tensor  # (d,) w_t; (n, d) where sites train alone
    ended: Tensor  # w_{t+1}, likewise
    updates: Tensor  # (n, d) Δ_i, zero rows for absent sites
    weights: Tensor  # (n,) ρ_i of the aggregation
    reports: Reports

    def due(self, every: int) -> bool:
        """Whether the round is one of those that are ``every`` so many observed, the last among them; 0: that alone."""
        return self.round == self.rounds - 1 or (every > 0 and (self.rounds - 1 - self.round) % every == 0)


@dataclass(frozen=True)
class Observation:
    """k models to evaluate, and who stands behind each."""

    candidates: Candidates
    coalitions: Tensor  # (k, n) bool


class Observer(Checked):
    """The contract: a frozen dataclass of parameters and two pure functions."""

    about: ClassVar[str]  # one line: what is evaluated
    needs_standalone: ClassVar[bool] = False  # whether it looks at sites that train alone, not at a model for all

    def most_models(self, sites: int) -> int:
        """How many models it has evaluated in a round at most, of a run of so many sites: a site's budget."""
        raise NotImplementedError

    def start(self, model: Tensor, num_sites: int) -> State:
        """What is remembered before round 0; ``model`` is (d,)."""
        return {}

    def observe(self, state: State, view: RoundView) -> tuple[State, Observation | None]:
        """After every round: what is remembered from now on, and what is to be evaluated; None: nothing this time."""
        raise NotImplementedError


MOST = 256  # models: all coalitions of 8 sites


@dataclass(frozen=True)
class MultiRoundReconstruction(Observer):
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


@dataclass(frozen=True)
class OneRoundReconstruction(Observer):
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


@dataclass(frozen=True)
class LocalOnly(Observer):
    """The model of each site, every so many rounds or in the end."""

    every: int = parameter(0, "rounds from one evaluation to the next; 0: in the end alone", low=0)

    about: ClassVar[str] = "each site's own model, of a run of standalone"
    needs_standalone: ClassVar[bool] = True

    def most_models(self, sites: int) -> int:
        """One a site."""
        return sites

    def observe(self, state: State, view: RoundView) -> tuple[State, Observation | None]:
        """As the module says; the model of a site that is not here, with the BatchNorm statistics it received."""
        if not view.due(self.every):
            return state, None
        each = torch.eye(len(view.updates), dtype=torch.float64)
        trained = each * view.reports.present
        return state, Observation(Candidates(view.ended, each, trained, received=each), each.bool())


@dataclass(frozen=True)
class LeaveOneOutLoss(Observer):
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


OWN = {
    "multi_round": MultiRoundReconstruction,
    "one_round": OneRoundReconstruction,
    "leave_one_out_loss": LeaveOneOutLoss,
    "local_only": LocalOnly,
}
OBSERVERS: Catalogue[type[Observer]] = Catalogue(
    "observers",
    OWN,
    lambda part: isinstance(part, type) and issubclass(part, Observer),
    "a frozen dataclass derived from fedmerit.observers.Observer",
)
