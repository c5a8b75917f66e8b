"""Methods that reward the values of sites in the game whose utility is the validation Dice of a coalition's aggregate.

The contribution index of Song et al., Profit Allocation for Federated Learning, 2019, is a site's exact Shapley value,
summed over rounds. FedCI takes it as aggregation weights, a baseline of Jiang et al. 2023. ECI, the baseline of Xu et
al. 2021, takes it as download quota: a site downloads as large a part of the aggregate as its index is of the best
site's.

FedValue is our own composition: in round t a site is worth its Shapley value in v_t(S) = U(w_t + Σ_{i∈S} n_i/n_S Δ_i)
(Song et al. 2019; Wang et al. 2020), or its leave-one-out value in that game. The values are remembered as CFFL and
RFFL remember reputations, and weigh the aggregate.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.capabilities import Candidates, EvaluatesCandidates
from fedmerit.contract.games import all_but_one, coalition_candidates, coalition_values, require_coalitions
from fedmerit.contract.method import Layout, Method, MethodSummary, Outcome, Reports
from fedmerit.contract.rewards import Reward, Unrewarded, fractions_of_largest, kept
from fedmerit.contract.vectors import aggregate, remember, share
from fedmerit.schema.rules import About, Choice, Number

SHAPLEY, LEAVE_ONE_OUT = "shapley", "leave_one_out"


def weigh(model: Tensor, known: Tensor, values: Tensor, updates: Tensor, reports: Reports) -> Outcome:
    """Return the aggregate weighted by the positive ``known`` (n,), over rounds; by sample shares while there are none.

    ``values`` (n,) are the round's, ``updates`` (n, d) the sites', ``model`` (d,) what they trained from.
    """
    earned, present = known.clamp(min=0), reports.present
    weights = share(earned, present) if earned[present].any() else reports.data_share
    reputation = share(earned, torch.ones_like(present)) if earned.any() else reports.data_share
    return Outcome(values, reputation, weights, aggregate(model, weights, updates))


@dataclass(frozen=True)
class ContributionIndex(Method, EvaluatesCandidates):
    """A base of both methods: the coalitions whose aggregates are evaluated, those of the present sites."""

    remembered: ClassVar[str] = "index"
    truncation: Annotated[float, Number(0), About("a round with |U(all) - U(none)| up to it counts 0; TMR: 0.01")] = 0.0

    def candidates(self, state: Any, updates: Tensor, reports: Reports) -> Candidates:
        """Return the server's model plus the mean update of every coalition of the present sites."""
        return coalition_candidates(state.model, updates, reports)

    def most_candidates(self, sites: int) -> int:
        """Return the most candidates of a round: one per coalition."""
        return 1 << sites


@dataclass(frozen=True)
class FedCIState:
    """A state of FedCI."""

    model: Tensor  # (d,)
    index: Tensor  # (n,) Σ_t CI_i


@dataclass(frozen=True)
class FedCI(ContributionIndex):
    """A method with weights by the contribution indices so far; by sample shares while none is positive.

    Coalitions and weights are those of the sites present; absent ones keep their index.
    """

    sums_updates: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="Shapley value of server validation Dice",
        weights="contribution, accumulated",
        site_work="training, evaluation of the sites' models",
        paper="Song et al. 2019",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedCIState:
        """Return the state before round 0; ``model`` is (d,). ValueError: more than 12 sites."""
        require_coalitions(num_sites)
        return FedCIState(model, torch.zeros(num_sites, dtype=torch.float64))

    def round(self, state: FedCIState, updates: Tensor, reports: Reports) -> tuple[FedCIState, Outcome]:
        """Return the aggregate of ``updates`` (n, d), weighted by the index with this round's Shapley values."""
        values = coalition_values(reports, self.truncation)
        index = state.index + values.where(reports.present, 0.0)
        outcome = weigh(state.model, index, values, updates, reports)
        return FedCIState(outcome.models, index), outcome


@dataclass(frozen=True)
class ECIState:
    """A state of ECI."""

    model: Tensor  # (d,) the server's model, of which coalitions are valued
    models: Tensor  # (n, d) the sites' models
    index: Tensor  # (n,) Σ_t CI_i


@dataclass(frozen=True)
class ECI(ContributionIndex):
    """A method in which sites download by the contribution index so far; everything while none is positive.

    By default a site keeps what it trained in entries that it does not earn; the baseline is ``unrewarded="nothing"``.
    Coalitions, weights and maxima are those of the sites present; absent ones keep index and model.
    """

    unrewarded: Unrewarded = "own"
    has_site_models: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="Shapley value of server validation Dice",
        download="own model, plus the largest entries by contribution",
        site_work="training, evaluation of the sites' models",
        paper="Song et al. 2019",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> ECIState:
        """Return the state before round 0; ``model`` is (d,). ValueError: more than 12 sites."""
        require_coalitions(num_sites)
        return ECIState(model, model.repeat(num_sites, 1), torch.zeros(num_sites, dtype=torch.float64))

    def round(self, state: ECIState, updates: Tensor, reports: Reports) -> tuple[ECIState, Outcome]:
        """Return models: site i gets the floor(d CI_i / max CI) largest entries of u = Σ p_i Δ_i; updates (n, d)."""
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


@dataclass(frozen=True)
class FedValueState:
    """A state of FedValue."""

    model: Tensor  # (d,)
    memory: Tensor  # (n,) r


@dataclass(frozen=True)
class FedValue(Method, EvaluatesCandidates):
    """A method: r_i ← α r_i + (1 - α) φ_i; ρ is the share of max(r, 0), of samples while no r is positive.

    Coalitions and weights are those of the sites present; absent ones keep their memory.
    """

    alpha: Annotated[float, Number(0, below=1), About("of what was, in the memory of values")] = 0.8
    remembered: ClassVar[str] = "memory"
    kind: Annotated[str, Choice((SHAPLEY, LEAVE_ONE_OUT)), About("φ of a round")] = SHAPLEY
    sums_updates: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="value in the round's game of server validation Dice",
        weights="contribution, remembered",
        site_work="training, evaluation of coalitions' models",
        paper="after Song et al. 2019",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedValueState:
        """Return the state before round 0; ``model`` is (d,). ValueError: more than 12 sites, of Shapley values."""
        if self.kind == SHAPLEY:
            require_coalitions(num_sites)
        return FedValueState(model, torch.zeros(num_sites, dtype=torch.float64))

    def candidates(self, state: FedValueState, updates: Tensor, reports: Reports) -> Candidates:
        """Return the aggregates of all coalitions of the present sites, or of each all but one, and of all."""
        members = None if self.kind == SHAPLEY else all_but_one(int(reports.present.sum()))
        return coalition_candidates(state.model, updates, reports, members)

    def most_candidates(self, sites: int) -> int:
        """Return the most candidates of a round: one per coalition; or one per site and one of all."""
        return 1 << sites if self.kind == SHAPLEY else sites + 1

    def round(self, state: FedValueState, updates: Tensor, reports: Reports) -> tuple[FedValueState, Outcome]:
        """Return the aggregate of ``updates`` (n, d), weighted by the remembered values of the rounds so far."""
        values = coalition_values(reports, truncation=0.0 if self.kind == SHAPLEY else None)
        memory = remember(state.memory, values, self.alpha, reports.present)
        outcome = weigh(state.model, memory, values, updates, reports)
        return FedValueState(outcome.models, memory), outcome
