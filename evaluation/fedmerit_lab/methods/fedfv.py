"""FedFV: Wang, Fan, Qi, Wen, Wang and Yu, Federated Learning with Fair Averaging, IJCAI 2021 (arXiv 2104.14937).

Updates that conflict, with an inner product below 0, are projected off each other before they are averaged. All
follows from inner products: a vector is (2n,) coefficients of the round's updates and of each site's last one before.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.method import Layout, MethodSummary, Outcome, Reports
from fedmerit.contract.vectors import aggregate, gram, share
from fedmerit.methods.qfedavg import AsksLosses, mean_where_unknown
from fedmerit.schema.rules import About, Count, Number


@dataclass(frozen=True)
class FedFVState:
    """A state of FedFV."""

    model: Tensor  # (d,)
    last_updates: Tensor  # (n, d) of each site; 0: none yet
    last_rounds: Tensor  # (n,) in which it sent that, from 0; -infinity: none
    round: Tensor  # () number of the current round, from 0


@dataclass(frozen=True)
class FedFV(AsksLosses):
    """A method that averages updates without their conflicts, with the length of their plain average (Algorithm 1).

    Sites with small losses come first: the last projections, which hold exactly, are those off the badly served.
    """

    alpha: Annotated[
        float, Number(0, 1), About("share of the sites, those of the largest losses, whose updates stay")
    ] = 0.1
    tau: Annotated[int, Count(), About("rounds for which an absent site's last update still counts")] = 1
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="none",
        weights="equal, of updates without their conflicts",
        site_work="training, losses of training images",
        paper="Wang et al. 2021",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedFVState:
        """Return the state before round 0; ``model`` is (d,)."""
        never = torch.full((num_sites,), -torch.inf, dtype=torch.float64)
        return FedFVState(model, model.new_zeros(num_sites, len(model)), never, torch.zeros((), dtype=torch.float64))

    def round(self, state: FedFVState, updates: Tensor, reports: Reports) -> tuple[Any, Outcome]:
        """Return w plus the mean of ``updates`` (n, d) without internal and external conflicts."""
        present = reports.present
        losses = mean_where_unknown(reports.values["loss"], present)
        vectors = torch.cat([updates, state.last_updates.where(~present[:, None], 0.0)])
        products = gram(vectors)
        equal = share(present, present)
        plain = torch.cat([equal, torch.zeros_like(equal)])

        without = self.mitigate_internal_conflicts(products, losses, present)
        step = self.mitigate_external_conflicts(equal @ without, products, state.round - state.last_rounds)
        length, was = ((x @ products @ x).clamp(min=0).sqrt() for x in (step, plain))
        step = step * (was / length) if length > 0 else step

        model = aggregate(state.model, step, vectors)
        last_rounds = state.round.where(present, state.last_rounds)
        kept = updates.where(present[:, None], state.last_updates)
        quantities = {"loss": reports.values["loss"].where(present, torch.nan)}
        outcome = replace(Outcome.without_credit(reports, model), weights=equal, quantities=quantities)
        return FedFVState(model, kept, last_rounds, state.round + 1), outcome

    def mitigate_internal_conflicts(self, products: Tensor, losses: Tensor, present: Tensor) -> Tensor:
        """Return (n, 2n) coefficients of each site's update, projected off those it conflicts with (Algorithm 2)."""
        order = sorted(present.nonzero().flatten().tolist(), key=lambda i: float(losses[i]))  # PO_t: by ascending loss
        first_kept = math.ceil((len(order) - 1) * (1 - self.alpha)) if self.alpha else len(order)
        least_kept = float(losses[order[first_kept]]) if first_kept < len(order) else math.inf
        result = torch.eye(len(present), 2 * len(present), dtype=torch.float64)
        for i in order:
            if losses[i] >= least_kept:
                continue
            for j in order:
                dot = float(result[i] @ products[:, j])
                if j != i and dot < 0:
                    result[i, j] -= dot / float(products[j, j])
        return result

    def mitigate_external_conflicts(self, step: Tensor, products: Tensor, rounds_ago: Tensor) -> Tensor:
        """Return (2n,) ``step``, projected off last updates of absent sites, the oldest ones first (Algorithm 3)."""
        n = len(rounds_ago)
        for ago in range(self.tau, 0, -1):
            conflicts = ((products @ step)[n:] < 0) & (rounds_ago == ago)  # rows of present sites are zero
            sum_of_them = torch.cat([torch.zeros(n, dtype=torch.float64), conflicts.double()])
            dot = sum_of_them @ products @ step
            if dot < 0:
                step = step - sum_of_them * dot / (sum_of_them @ products @ sum_of_them)
        return step
