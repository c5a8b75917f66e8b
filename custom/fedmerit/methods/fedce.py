"""FedCE: Jiang et al., Fair Federated Medical Image Segmentation via Client Contribution Estimation, CVPR 2023.

A site's contribution grows with the novelty of its update's direction (gradient space, Eq. 2) and with the error of
the model without it on its images (data space, Eq. 3). Both leave-one-outs of round t refer to the
aggregation that made w_t, so a site computes them when it
receives w_t.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.capabilities import HasGuardedForm, MeasuresLeaveOneOut, OwnUpdate
from fedmerit.contract.innovation import rest_shares
from fedmerit.contract.method import (
    Layout,
    Method,
    MethodSummary,
    Needs,
    Outcome,
    Range,
    Reports,
    SiteView,
    inner_products,
)
from fedmerit.contract.vectors import BLOCK, aggregate, cosine_to_others, share, share_known
from fedmerit.schema.rules import About, Choice

COMBINATIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {  # of the shares of both terms, to Γ of Eq. 4
    "times": torch.mul,  # Multi.
    "plus": torch.add,  # Sum.
    "cosine": lambda gamma_cos, gamma_err: gamma_cos,  # the ablations of Figure 6: only gradient space,
    "error": lambda gamma_cos, gamma_err: gamma_err,  # only data space
    "updates": lambda gamma_cos, gamma_err: gamma_cos,  # as cosine, also of sites that report no error
}
UPDATES = "updates"
CLAIM_TOLERANCE = 1e-3  # float32 models leave some 1e-5 between a site's cosine and the server's
EPSILON = 1e-6  # floor before a normalisation, as in NVFlare 2.9: less is rounding
LEAST_ERROR = 0.01  # that error="relative" divides by


@dataclass(frozen=True)
class FedCEState:
    """The state of FedCE."""

    model: Tensor  # (d,)
    gamma_accumulated: Tensor  # (n,) Σ_t Γ_i of Eq. 5
    weights: Tensor  # (n,) of each site's last aggregation; NaN before its first
    cosine: Tensor  # (n,) of the last round's updates, as the server computes it; NaN if there was none
    cosine_mean: Tensor  # (n,) running means of `FedCENVFlare`
    minus_error_mean: Tensor  # (n,)
    rounds: Tensor  # (n,) rounds a site took part in, of `FedCENVFlare`
    novelty: Tensor  # (n,) of the last round's rests, of `GuardedFedCE`; NaN if there was none


@dataclass(frozen=True)
class FedCE(Method, MeasuresLeaveOneOut, HasGuardedForm):
    """A server half of FedCE, and with `measure` its site half: Algorithm 1, its round index made consistent.

    Weights are shared among the sites present; absent ones keep what they have accumulated. A site that was absent
    has no update in w_t, hence no leave-one-outs: in that round its terms count as the mean of the others'.
    """

    combine: Annotated[str, Choice(tuple(COMBINATIONS)), About("Γ of Eq. 4: Multi., Sum., or only one term")] = "times"
    error: Annotated[
        str,
        Choice(("absolute", "relative", "others")),
        About(
            "Γ_err: the error without a site (Eq. 3); relative: by that with it; others: by how much the others' rises"
        ),
    ] = "absolute"
    least_cosine: ClassVar[float] = -1.0  # lower cosines count as this: any by Eq. 2
    ranges: ClassVar[Mapping[str, Range]] = {"cosine": (-1, 1), "minus_error": (0, 1), "error": (0, 1)}
    sums_updates: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="novelty of its update's direction, error on its images of the model without it",
        weights="contribution, accumulated",
        site_work="training, cosine, validation without own model",
        paper="Jiang et al. 2023",
    )

    @property
    def needs(self) -> Needs:
        """The needs of FedCE: no update, if the cosines that sites report go unchecked."""
        return Needs(sums_only=self.error != "others")

    @property
    def needs_others(self) -> bool:
        """Whether the others have to measure, with ``error="others"``."""
        return self.error == "others"

    @property
    def asks(self) -> Mapping[str, Range]:
        """The ranges of both leave-one-outs, and of what the second may be compared to."""
        return {name: bounds for name, bounds in self.ranges.items() if name != "error" or self.error == "relative"}

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedCEState:
        """Return the state before round 0; ``model`` is (d,)."""
        zeros = torch.zeros(num_sites, dtype=torch.float64)
        unknown = torch.full_like(zeros, torch.nan)
        return FedCEState(model, zeros, unknown, unknown, zeros, zeros, zeros, unknown)

    def round(self, state: FedCEState, updates: Tensor, reports: Reports) -> tuple[FedCEState, Outcome]:
        """Aggregate ``updates`` (n, d); weigh the sites by their accumulated contribution, aggregate (Eqs. 2-6)."""
        present, products = reports.present, inner_products(updates, reports)
        state, outcome = self.weigh(state, products, reports)
        weights, model = outcome.weights, aggregate(state.model, outcome.weights, updates)
        cosine = cosine_to_others(products, weights).where(present, torch.nan)
        state = replace(state, model=model, weights=weights.where(present, state.weights), cosine=cosine)
        return state, replace(outcome, models=model)

    def weigh(self, state: FedCEState, products: Tensor, reports: Reports) -> tuple[FedCEState, Outcome]:
        """Accumulate the sites' errors and the server's cosines; ``products`` (n, n) of the updates."""
        present = reports.present
        claim, minus_error = reports.values["cosine"], reports.values["minus_error"]
        # the claim only checks the site, and a false one within the tolerance gains nothing; encrypted: only sites know
        cosine = state.cosine if len(state.model) else claim
        flagged = present & claim.isfinite() & ~((claim - cosine).abs() <= CLAIM_TOLERANCE)

        gamma_cos = share_known(self._novelty(state, cosine).clamp(min=EPSILON), present)  # Eq. 2
        gamma_err = share_known(self.data_term(reports), present)  # Eq. 3
        gamma = COMBINATIONS[self.combine](gamma_cos, gamma_err)  # Eq. 4
        measured = minus_error.isfinite() | (self.combine == UPDATES)
        known = present & cosine.isfinite() & measured
        accumulated, weights = state.gamma_accumulated, reports.data_share
        if known.any():  # in round 0 no site has an update in w_t yet
            accumulated = accumulated + gamma.where(present, 0.0)
            weights = share(accumulated, present)  # Eq. 5 without its factor k
        outcome = Outcome(
            contribution=gamma.where(known, torch.nan),
            reputation=share(accumulated, torch.ones_like(present)) if accumulated.any() else weights,
            weights=weights,
            models=state.model,
            quantities={"cosine": cosine, "minus_error": minus_error, "flagged": flagged.double()},
        )
        return replace(state, gamma_accumulated=accumulated), outcome

    @property
    def guarded_form(self) -> Method:
        """The form in which neither reversed signs are novel, nor what the server can forecast of an update."""
        return GuardedFedCE(**vars(self))

    def _novelty(self, state: FedCEState, cosine: Tensor) -> Tensor:
        """Return (n,) 1 - ``cosine`` (n,)."""
        return 1 - cosine.clamp(min=self.least_cosine)

    def data_term(self, reports: Reports) -> Tensor:
        """Return (n,) error of the model without a site on its images; NaN if that is not known."""
        minus_error = reports.values["minus_error"]
        return minus_error / reports.values["error"].clamp(min=LEAST_ERROR) if self.error == "relative" else minus_error

    def measure(self, view: SiteView, own: OwnUpdate) -> dict[str, float]:
        """Return what a site computes when it receives w_t: both leave-one-outs of the aggregation that made it.

        An error that is not known is left out.
        """
        without, received = (
            own.validation_dice(minus_model(view.received, own.trained, own.weight)),
            view.validation_dice,
        )
        measured = {
            "cosine": cosine_to_others_mean(view.received, own.previous, own.trained, own.weight),
            "minus_error": None if without is None else 1 - without,
            "error": None if received is None else 1 - received,
        }
        return {name: value for name in self.asks if (value := measured[name]) is not None}


@dataclass(frozen=True)
class GuardedFedCE(FedCE):
    """A FedCE whose novelty is of what the server cannot forecast of updates, as under the guard.

    It is 1 - the cosine of the rests (`fedmerit.contract.innovation`), times the share of its update's length that a
    rest has: what follows from broadcast models is not novel. Claims are checked by whole updates.
    """

    uses_rests: ClassVar[bool] = True
    least_cosine: ClassVar[float] = 0.0  # reversed signs are no more novel than an unrelated update

    def round(self, state: FedCEState, updates: Tensor, reports: Reports) -> tuple[FedCEState, Outcome]:
        """Aggregate ``updates`` (n, d), and remember the novelty of their rests for the next round."""
        state, outcome = super().round(state, updates, reports)
        if reports.rests is not None:
            cosine = cosine_to_others(reports.rests, outcome.weights).clamp(min=self.least_cosine)
            novelty = (1 - cosine) * rest_shares(reports)
            state = replace(state, novelty=novelty.where(reports.present, torch.nan))
        return state, outcome

    def _novelty(self, state: FedCEState, cosine: Tensor) -> Tensor:
        return torch.where(cosine.isfinite() & state.novelty.isfinite(), state.novelty, super()._novelty(state, cosine))


def average_others(mean: Tensor, own: Tensor, weight: float) -> Tensor:
    """Return (mean - ρ_i own) / (1 - ρ_i): the weighted mean of the others, float64; ``weight`` ρ_i in [0, 1)."""
    return (mean.double() - weight * own.double()) / (1 - weight)


def minus_model(received: Tensor, own_previous: Tensor, weight: float) -> Tensor:
    """Return w_t without site i (Eq. 3): ``received`` w_t, ``own_previous`` w_{t-1,i}, ``weight`` ρ_i in w_t."""
    result = torch.empty_like(received)
    blocks = (torch.split(vector, BLOCK) for vector in (result, received, own_previous))
    for part, now, mine in zip(*blocks, strict=True):
        part.copy_(average_others(now, mine, weight))
    return result


def cosine_to_others_mean(received: Tensor, previous: Tensor, own_previous: Tensor, weight: float) -> float:
    """Return the cosine of Eq. 2, -1 to 1; 0 if a vector is zero.

    Args:
        received: w_t.
        previous: w_{t-1}, from which the site trained ``own_previous``.
        own_previous: w_{t-1,i}.
        weight: ρ_i of the aggregation that made w_t, below 1.
    """
    products = torch.zeros(2, 2, dtype=torch.float64, device=received.device)
    blocks = (torch.split(vector, BLOCK) for vector in (received, previous, own_previous))
    for now, before, mine in zip(*blocks, strict=True):
        start = before.double()
        own = mine.double() - start
        pair = torch.stack([own, average_others(now.double() - start, own, weight)])
        products += pair @ pair.T
    norm = products[0, 0].sqrt() * products[1, 1].sqrt()
    return float((products[0, 1] / norm).clamp(-1, 1)) if norm > 0 else 0.0
