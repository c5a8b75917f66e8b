"""FedCE as the aggregator of NVFlare 2.9 computes it."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.method import Needs, Outcome, Reports
from fedmerit.contract.vectors import cosine_to_others, share
from fedmerit.methods.fedce import COMBINATIONS, EPSILON, FedCE, FedCEState
from fedmerit.schema.rules import About, Choice


@dataclass(frozen=True, kw_only=True)
class FedCENVFlare(FedCE):
    """A method with weights by the running means of both terms; the cosine is that of this round's updates."""

    error: Annotated[str, Choice(("absolute", "relative")), About("of the model without the site")] = "absolute"
    averaged_by: Annotated[
        str,
        Choice(("server", "site")),
        About("who averages the errors over rounds; site: it reports means, as NVFlare's example"),
    ] = "server"
    measured_by_others: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs()

    @property
    def guarded_form(self) -> "GuardedFedCENVFlare":
        """The form in which reversed signs are not novel."""
        return GuardedFedCENVFlare(**vars(self))

    def weigh(self, state: FedCEState, products: Tensor, reports: Reports) -> tuple[FedCEState, Outcome]:
        """Return running means of the sites' errors and of the cosines of this round's updates."""
        present = reports.present
        seen = int(state.weights.isfinite().sum())
        unseen = 1 / (seen + 1) if seen else 1 / float(present.sum())
        prior = state.weights.where(state.weights.isfinite(), unseen) * present
        cosine = cosine_to_others(products, prior)
        minus_error, term = (
            known.where(known.isfinite(), 1.0) for known in (reports.values["minus_error"], self.data_term(reports))
        )
        rounds = state.rounds + present
        step = present / rounds.clamp(min=1)
        cosine_mean = state.cosine_mean + step * (cosine - state.cosine_mean)
        error_step = step if self.averaged_by == "server" else present.to(term)
        minus_error_mean = state.minus_error_mean + error_step * (term - state.minus_error_mean)

        gamma_cos = share_floored(1 - cosine_mean.clamp(min=self.least_cosine), present)
        gamma_err = share_floored(minus_error_mean, present)
        weights = share_floored(COMBINATIONS[self.combine](gamma_cos, gamma_err), present)
        outcome = Outcome(
            contribution=weights.where(present, torch.nan),
            reputation=weights,
            weights=weights,
            models=state.model,
            quantities={"cosine": cosine.where(present, torch.nan), "minus_error": minus_error},
        )
        return replace(state, cosine_mean=cosine_mean, minus_error_mean=minus_error_mean, rounds=rounds), outcome


@dataclass(frozen=True, kw_only=True)
class GuardedFedCENVFlare(FedCENVFlare):
    """A FedCENVFlare in which cosines below 0 count as 0, as under the guard."""

    least_cosine: ClassVar[float] = 0.0


def share_floored(amounts: Tensor, present: Tensor) -> Tensor:
    """Return (n,) shares of the present sites after raising every amount to `EPSILON`."""
    return share(amounts.clamp(min=EPSILON), present)
