"""FedSAC: Wang et al., FedSAC: Dynamic Submodel Allocation for Collaborative Fairness in FL, KDD 2024.

A site's contribution is the Dice of its local-only model. The higher it is, the more of the model's important neurons
the site receives: it trains, and in the end keeps, a submodel without the neurons beyond its reputation. The server
averages every neuron over the sites that hold it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.capabilities import AllocatesNeurons, Candidates, EvaluatesCandidates, ImportanceRequest
from fedmerit.contract.games import trained_candidates
from fedmerit.contract.method import Layout, Method, MethodSummary, Needs, Outcome, Reports
from fedmerit.contract.vectors import average_submodels, parameter_mask, share, to_sites
from fedmerit.schema.rules import About, Choice, Count, Number

WHOLE = 100.0  # percent: the reputation of the best site, and the importance of all neurons together
VALIDATION_IMAGES = 16  # of every site's server split to measure importance on, at most
TOLERANCE = 1e-9  # percent, of a sum of importances


@dataclass(frozen=True)
class FedSACState:
    """The state of FedSAC."""

    model: Tensor  # (d,) θ_g
    models: Tensor  # (n, d) θ_i, where each site starts the next round
    contribution: Tensor  # (n,) c, fractions; NaN until it is known
    neurons: Tensor  # (n, H) bool, those that each site holds
    owners: Tensor  # (d,) int32, the neuron of each parameter; -1: none
    round: Tensor  # () int64, t
    allocated: Tensor  # () int64, the last round that submodels were allocated for; -1: none yet


@dataclass(frozen=True)
class FedSAC(Method, AllocatesNeurons, EvaluatesCandidates):
    """A server half of FedSAC.

    Without ``contributions`` the sites first train local-only models for ``standalone_rounds``, with their own
    BatchNorm statistics; c is their Dice on the server validation set. Then all start again from the first model. A
    site absent from the last of those rounds, or that joins later, counts as the worst of those present.
    """

    beta: Annotated[float, Number(0, 1000), About("β: the larger, the less sites below the best receive")] = 5.0
    contributions: Annotated[tuple[float, ...], Number(0, 1), About("c: local-only Dice, in the order of names")] = ()
    standalone_rounds: Annotated[int, Count(1), About("local-only rounds that measure c, if it is not given")] = 10
    importance: Annotated[str, Choice(("exact", "taylor", "equal")), About("of neurons; to first order; all equal")] = (
        "exact"
    )
    importance_interval: Annotated[int, Count(1), About("rounds from one allocation to the next")] = 10
    aggregation: Annotated[
        str, Choice(("count", "share", "plain")), About("Eq. 9; share: by images; plain: FedAvg")
    ] = "count"
    has_site_models: ClassVar[bool] = True
    reveals_updates: ClassVar[bool] = True  # of neurons that only one or two sites hold
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="server validation Dice of its local-only model, or given",
        weights="equal, neuron by neuron, among the sites that hold it",
        download="global model without its most important neurons, those beyond its reputation",
        site_work="training of a submodel, importance of neurons",
        paper="Wang et al. 2024, KDD",
    )

    def most_candidates(self, sites: int) -> int:
        """Return the most candidates of a round: one per site if contributions are measured."""
        return sites if self.local_rounds else 0

    @property
    def local_rounds(self) -> int:
        """The number of rounds of local-only training."""
        return 0 if self.contributions else self.standalone_rounds

    @property
    def needs(self) -> Needs:
        """A collaborative round."""
        why = f"with standalone_rounds={self.local_rounds} the sites train local-only models before"
        return Needs(rounds=self.local_rounds + 1, why=why if self.local_rounds else "")

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedSACState:
        """Return the state before round 0; ``model`` is (d,). ValueError: there is not one contribution per site."""
        if self.contributions and len(self.contributions) != num_sites:
            raise ValueError(f"contributions: {len(self.contributions)} of them for {num_sites} sites")
        count = int(layout.owners.max()) + 1
        known = self.contributions or (torch.nan,) * num_sites
        return FedSACState(
            model=model,
            models=model.repeat(num_sites, 1),
            contribution=torch.tensor(known, dtype=torch.float64),
            neurons=torch.ones(num_sites, count, dtype=torch.bool),
            owners=layout.owners,
            round=torch.tensor(0),
            allocated=torch.tensor(-1),
        )

    def join(self, state: FedSACState, rows: Sequence[int], num_sites: int, layout: Layout) -> FedSACState:
        """Return the state once other sites have joined; each counts as the worst of those whose c is known."""
        joined: FedSACState = super().join(state, rows, num_sites, layout)
        c = joined.contribution
        return replace(joined, contribution=c.where(c.isfinite(), c[c.isfinite()].min()) if c.isfinite().any() else c)

    def importance_schedule(self, round: int) -> tuple[str, int] | None:
        """Return a measurement every `importance_interval` rounds from the first collaborative round."""
        together, images = round - self.local_rounds, 0 if self.importance == "equal" else VALIDATION_IMAGES
        return None if together < 0 or together % self.importance_interval else (self.importance, images)

    def importance_request(self, state: FedSACState) -> ImportanceRequest | None:
        """Return θ_g, if submodels are due and not allocated yet."""
        due = self.importance_schedule(int(state.round))
        return None if due is None or state.allocated == state.round else ImportanceRequest(state.model, *due)

    def allocate(
        self, state: FedSACState, importance: Tensor, keeping: Tensor | None = None
    ) -> tuple[FedSACState, Tensor, Tensor]:
        """Allocate by Eqs. 4 to 7 the neurons that each site's reputation is worth, the least important first."""
        generator = torch.Generator().manual_seed(int(state.round))
        shuffled = torch.randperm(len(importance), generator=generator)  # independent of their place in the network
        order = shuffled if self.importance == "equal" else importance.argsort(stable=True)
        neurons = submodels(percentages(importance), order, reputations(state.contribution, self.beta))
        models = state.model.where(parameter_mask(neurons, state.owners), 0.0)
        if keeping is not None:
            neurons[keeping], models[keeping] = state.neurons[keeping], state.models[keeping]
        state = replace(state, models=models, neurons=neurons, allocated=state.round)
        return state, models, neurons

    def candidates(self, state: FedSACState, updates: Tensor, reports: Reports) -> Candidates | None:
        """Return, in the last local-only round, the model of every present site, with its own BatchNorm statistics."""
        return trained_candidates(state.models, updates, reports) if int(state.round) == self.local_rounds - 1 else None

    def round(self, state: FedSACState, updates: Tensor, reports: Reports) -> tuple[FedSACState, Outcome]:
        """Aggregate ``updates`` (n, d): the mean over the sites that hold a parameter; then submodels."""
        if int(state.round) < self.local_rounds:
            return self._local_round(state, updates, reports)
        present, plain = reports.present, self.aggregation == "plain"
        held = parameter_mask(state.neurons, state.owners)
        amounts = present.double() if self.aggregation == "count" else reports.data_share
        trained = state.models, updates, held & present[:, None]
        model, parts = average_submodels(state.model, *trained, amounts, normalised=not plain)  # Eq. 9
        state = replace(state, model=model, models=model.where(held, 0.0), round=state.round + 1)  # θ_i
        fraction = state.neurons.double().sum(dim=1) / max(state.neurons.shape[1], 1)
        weights = share(amounts if plain else parts, present)
        return state, self._outcome(state, reports, weights, {"neuron_share": fraction})

    def _local_round(self, state: FedSACState, updates: Tensor, reports: Reports) -> tuple[FedSACState, Outcome]:
        """Return every site's own model; after the last such round contributions are known, and all start again."""
        state = replace(state, models=state.models + updates, round=state.round + 1)
        if reports.candidates is None:
            return state, self._outcome(state, reports, reports.data_share, {})
        dice = to_sites(reports.candidates.dice, reports.present)
        contribution = dice.where(reports.present, dice.nan_to_num(torch.inf).min())
        state = replace(state, models=state.model.repeat(len(updates), 1), contribution=contribution)
        outcome = self._outcome(state, reports, reports.data_share, {"utility": dice})
        return state, replace(outcome, statistics="initial")

    def _outcome(self, state: FedSACState, reports: Reports, weights: Tensor, quantities: dict[str, Tensor]) -> Outcome:
        contribution = state.contribution.where(reports.present, torch.nan)
        reputation = reputations(state.contribution.nan_to_num(0.0), self.beta) / WHOLE
        return Outcome(contribution, reputation, weights, state.models, quantities)


def reputations(contributions: Tensor, beta: float) -> Tensor:
    """Return (n,) r in (0, 100], 100 for the largest contribution (Eqs.

    5 and 6): e^{cβ} of differences, never too large.

    Args:
        contributions: (n,) c, fractions.
        beta: β.
    """
    return WHOLE * torch.exp(beta * (contributions - contributions.max()))


def percentages(importance: Tensor) -> Tensor:
    """Return (H,) importance in percent of that of all neurons (Eq. 4).

    Neurons without which the loss falls count 0, since otherwise the sums of Eq. 7 were not monotone; if all do, all
    neurons count the same.

    Args:
        importance: (H,) signed (Eq. 3).
    """
    positive = importance.clamp(min=0)
    if positive.sum() <= 0:
        positive = torch.ones_like(positive)
    return WHOLE * positive / positive.sum()


def submodels(importance: Tensor, order: Tensor, reputation: Tensor) -> Tensor:
    """Return (n, H) bool: each site's longest prefix of ``order`` whose importance is at most its reputation (Eq. 7).

    Args:
        importance: (H,) in percent.
        order: (H,) neurons from the least to the most important.
        reputation: (n,) in percent; 100 is always worth all neurons.
    """
    reached = importance[order].cumsum(dim=0)  # may end at 100.0000001
    taken = (reached <= reputation[:, None] + TOLERANCE) | (reputation[:, None] >= WHOLE)
    result = torch.zeros_like(taken)
    result[:, order] = taken
    return result
