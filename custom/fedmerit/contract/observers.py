"""Observers: models that the sites evaluate during a run, from which values of the sites are computed.

n sites, d trainable parameters. An observer makes models from the results of a round; every site evaluates them on its
validation patients, and the server records the Dice. The run itself does not change.

v_t(S) = U(w_t + Σ_{i∈S} n_i/n_S Δ_i) and v_t(∅) = U(w_t) are the utilities of coalitions in round t (Song et al. 2019;
Wang et al. 2020).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.capabilities import Candidates
from fedmerit.contract.games import coalition_candidates, coalitions_to_evaluate
from fedmerit.contract.innovation import Broadcast, candidate_models, find_rests
from fedmerit.contract.method import Reports
from fedmerit.contract.vectors import to_columns
from fedmerit.plugins import Catalogue
from fedmerit.schema.declarations import Checked
from fedmerit.schema.rules import About, Count

State = Mapping[str, Tensor]  # an observer's memory; it is in the run's checkpoint


@dataclass(frozen=True)
class RoundView:
    """A view of what the server has when a round is aggregated."""

    round: int  # t
    rounds: int  # T, of the run
    began: Tensor  # (d,) w_t; (n, d) if sites train only their own models
    ended: Tensor  # w_{t+1}, likewise
    updates: Tensor  # (n, d) Δ_i, zero rows for absent sites
    weights: Tensor  # (n,) ρ_i of the aggregation
    reports: Reports
    tensor_sizes: tuple[int, ...] = ()  # entries of each tensor of the vector, in order; (): not known

    def due(self, every: int) -> bool:
        """Return whether to observe this round: every ``every`` rounds, counted back from the last.

        0: only the last.
        """
        return self.round == self.rounds - 1 or (every > 0 and (self.rounds - 1 - self.round) % every == 0)


@dataclass(frozen=True)
class Observation:
    """A set of k models to evaluate, and the coalition of each."""

    candidates: Candidates
    coalitions: Tensor  # (k, n) bool


class Observer(Checked):
    """The contract: a frozen dataclass of parameters and two pure functions."""

    about: ClassVar[str]  # one line: what is evaluated
    needs_standalone: ClassVar[bool] = False  # whether it observes sites that train without the others
    soft: ClassVar[bool] = False  # whether sites give soft Dice: candidates are `Candidates.soft`

    def most_models(self, sites: int) -> int:
        """Return the most models it has evaluated in a round of so many sites: a site's budget."""
        raise NotImplementedError

    def start(self, model: Tensor, num_sites: int) -> State:
        """Return the state before round 0; ``model`` is (d,)."""
        return {}

    def observe(self, state: State, view: RoundView) -> tuple[State, Observation | None]:
        """Return the state after a round and the models to evaluate; None: none this time."""
        raise NotImplementedError


MOST = 256  # models: all coalitions of 8 sites


@dataclass(frozen=True)
class SampledCoalitions(Observer):
    """A base class of observers that draw a sample of many coalitions, with their complements."""

    every: Annotated[int, Count(), About("rounds from one observation to the next; 0: only the last")] = 1
    most: Annotated[int, Count(8, 4096), About("models a round; of more coalitions a sample")] = MOST

    def most_models(self, sites: int) -> int:
        """Return the most models of a round: one per coalition, at most `most`."""
        return self.most if sites > 30 else min(self.most, 2**sites)


@dataclass(frozen=True)
class MultiRoundReconstruction(SampledCoalitions):
    """A multi-round reconstruction (MR), Song et al. 2019: in each round, all coalitions of the present sites.

    Of many sites, a sample of coalitions is drawn in each round, with their complements.
    """

    about: ClassVar[str] = "each round's model, with the mean update of every coalition"

    def observe(self, state: State, view: RoundView) -> tuple[State, Observation | None]:
        """Observe the models of the coalitions of this round."""
        if not view.due(self.every):
            return state, None
        present = view.reports.present
        members = coalitions_to_evaluate(int(present.sum()), self.most, view.round)
        candidates = coalition_candidates(view.began, view.updates, view.reports, members)
        return state, Observation(candidates, to_columns(members.bool(), present))


@dataclass(frozen=True)
class LocalOnly(Observer):
    """The local-only model of each site, which the other sites evaluate, too: v({i}) of every i.

    n trainings of one site each take together as many images a round as one training of all.
    """

    every: Annotated[int, Count(), About("rounds from one evaluation to the next; 0: only the last")] = 0
    about: ClassVar[str] = "each site's own model, of a run of standalone"
    needs_standalone: ClassVar[bool] = True

    def most_models(self, sites: int) -> int:
        """Return the most models of a round: one per site."""
        return sites

    def observe(self, state: State, view: RoundView) -> tuple[State, Observation | None]:
        """Observe the local-only models; that of an absent site has the BatchNorm statistics that the site received."""
        if not view.due(self.every):
            return state, None
        each = torch.eye(len(view.updates), dtype=torch.float64)
        trained = each * view.reports.present
        return state, Observation(Candidates(view.ended, each, trained, received=each), each.bool())


@dataclass(frozen=True)
class InnovationLoss(Observer):
    """An observer of each round's model without innovation, with that of each site, and with all.

    Sites give soft Dice. Source: `fedmerit.contract.innovation`.
    """

    about: ClassVar[str] = "each round's model without innovation, with each site's, and with all"
    soft: ClassVar[bool] = True

    def most_models(self, sites: int) -> int:
        """Return the most models of a round: one with each site's innovation, one without any, and one with all."""
        return sites + 2

    def start(self, model: Tensor, num_sites: int) -> State:
        """Return the models that were broadcast before round 0; ``model`` is (d,)."""
        return vars(Broadcast.begin(model))

    def observe(self, state: State, view: RoundView) -> tuple[State, Observation | None]:
        """Observe the models of this round."""
        present = view.reports.present
        rests = find_rests(view.updates[present], Broadcast(**state), view.tensor_sizes or (view.updates.shape[1],))
        models = candidate_models(view.ended, view.weights[present].double(), rests)
        if len(rests) == 1:  # with its rest is with all
            models = models[[0, -1]]
        count = len(models)
        there = torch.zeros(count, len(present), dtype=torch.bool)
        if len(rests) > 1:
            there[torch.arange(1, count - 1), present.nonzero().flatten()] = True
        there[-1] = present
        mixtures = torch.eye(count, dtype=torch.float64)
        candidates = Candidates(models, mixtures, view.reports.data_share.expand(count, -1), soft=True)
        return vars(Broadcast(**state).after(view.ended)), Observation(candidates, there)


OWN = {"multi_round": MultiRoundReconstruction, "local_only": LocalOnly, "innovation": InnovationLoss}
OBSERVERS: Catalogue[type[Observer]] = Catalogue(
    "observers",
    OWN,
    lambda part: isinstance(part, type) and issubclass(part, Observer),
    "a frozen dataclass derived from fedmerit.contract.observers.Observer",
)
