"""Innovation: FedAvg whose sites are paid by what their updates add beyond the server's forecast of them.

Free riders that send functions of what they received earn next to nothing, whatever the function: docs/guard.md. The
rule is this project's: `fedmerit.contract.innovation`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.capabilities import Candidates, EvaluatesCandidates
from fedmerit.contract.innovation import Broadcast, Innovations, candidate_models, divide_gain, find_rests
from fedmerit.contract.method import (
    Layout,
    Method,
    MethodSummary,
    Outcome,
    PatientResults,
    Reports,
    grow,
    joining_model,
)
from fedmerit.contract.vectors import aggregate
from fedmerit.schema.rules import About, Choice


@dataclass(frozen=True)
class InnovationState:
    """The state of the method."""

    model: Tensor  # (d,)
    first: Tensor  # (d,) and
    steps: Tensor  # (k, d) of `Broadcast`
    tensor_sizes: Tensor  # (tensors,) int64
    gains: Tensor  # (T, n, R, K),
    patients: Tensor  # (R,) and
    began: Tensor  # (n,) of `Innovations`
    reputation: Tensor  # (n,)

    @property
    def broadcast(self) -> Broadcast:
        """The models that were broadcast."""
        return Broadcast(self.first, self.model, self.steps)

    @property
    def innovations(self) -> Innovations:
        """The values until now."""
        return Innovations(self.gains, self.patients, self.began)


@dataclass(frozen=True)
class Innovation(Method, EvaluatesCandidates):
    """A method whose contributions are values of innovation, on the server's images or those of the other sites.

    The reputation is a site's share of pay (`Innovations.shares`): 0 for all as long as no site's value is positive, so
    that nobody earns by spoiling the model. Values are measured on the mean by images, whatever the weights are.
    """

    weights: Annotated[
        str, Choice(("images", "innovation")), About("aggregation weights: shares of images, or of innovation so far")
    ] = "images"
    sums_updates: ClassVar[bool] = True
    soft: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="what its update adds beyond the server's forecast",
        site_work="training; without images of the server also evaluation of the models with each rest",
        paper="docs/guard.md",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> InnovationState:
        """Return the state before round 0; ``model`` is (d,)."""
        zeros = torch.zeros(num_sites, dtype=torch.float64)
        return InnovationState(
            model,
            model,
            Broadcast.begin(model).steps,
            torch.tensor(layout.tensor_sizes).long(),
            torch.zeros(0, num_sites, 0, 0, dtype=torch.float64),
            torch.zeros(0, dtype=torch.long),
            torch.full((num_sites,), -1),
            zeros,
        )

    def candidates(self, state: InnovationState, updates: Tensor, reports: Reports) -> Candidates:
        """Return the `candidate_models` of the k present sites: k + 2."""
        present, weights = reports.present, reports.data_share
        rests = find_rests(updates[present], state.broadcast, state.tensor_sizes.tolist())
        models = candidate_models(aggregate(state.model, weights, updates), weights[present], rests)
        count = len(models)
        return Candidates(models, torch.eye(count, dtype=torch.float64), weights.expand(count, -1), soft=True)

    def most_candidates(self, sites: int) -> int:
        """Return the most candidates of a round: one per site, one without rests, and one with all."""
        return sites + 2

    def round(self, state: InnovationState, updates: Tensor, reports: Reports) -> tuple[InnovationState, Outcome]:
        """Aggregate ``updates`` (n, d), and add the round's values."""
        assert reports.candidates is not None
        assert reports.candidates.patients is not None
        present = reports.present
        gains, patients = _append_round(state, reports.candidates.patients, present)
        began = torch.where(present & (state.began < 0), len(state.gains), state.began)
        innovations = Innovations(gains, patients, began)
        value, error = innovations.totals()
        reputation = innovations.shares(torch.ones_like(value) if reports.credit is None else reports.credit)
        weights = reports.data_share
        if self.weights == "innovation" and state.reputation[present].any():
            kept = state.reputation.where(present, 0.0)
            weights = kept / kept.sum()
        broadcast = state.broadcast.after(aggregate(state.model, weights, updates))
        outcome = Outcome(
            contribution=gains[-1].sum(dim=(1, 2)).where(present, torch.nan),
            reputation=reputation,
            weights=weights,
            models=broadcast.last,
            quantities={"innovation": value, "standard_error": error},
        )
        rest = {"gains": gains, "patients": patients, "began": began, "reputation": reputation}
        return replace(state, model=broadcast.last, steps=broadcast.steps, **rest), outcome

    def join(self, state: InnovationState, rows: Sequence[int], num_sites: int, layout: Layout) -> Any:
        """Return the state once other sites have joined, whose values were 0 before."""
        fresh, places = self.start(joining_model(state), num_sites, layout), torch.tensor(rows)
        gains = torch.zeros(len(state.gains), num_sites, *state.gains.shape[2:], dtype=torch.float64)
        gains = gains.index_copy(1, places, state.gains)
        patients = state.patients
        if len(patients) > 1:  # the raters are the sites, and not the server
            raters = torch.zeros(*gains.shape[:2], num_sites, gains.shape[3], dtype=torch.float64)
            gains = raters.index_copy(2, places, gains)
            patients = torch.zeros(num_sites, dtype=torch.long).index_copy(0, places, patients)
        per_site = {name: grow(getattr(state, name), getattr(fresh, name), rows) for name in ("began", "reputation")}
        return replace(state, gains=gains, patients=patients, **per_site)


def _append_round(state: InnovationState, results: PatientResults, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return (T + 1, n, R, K) gains with those of a round, and (R,) patients of each rater.

    The round's gain is the median of those that raters find.
    """
    utilities, n = results.utilities, len(present)  # (k + 2, R, K)
    known = utilities.isfinite().all(dim=0)  # (R, K)
    counts = known.sum(dim=1)
    gained = torch.zeros(n, *utilities.shape[1:], dtype=torch.float64)
    differences = (utilities[1:-1] - utilities[0] + results.offsets[:, None]).masked_fill(~known, 0.0)
    gained[present] = differences * (results.voice[present] / counts.clamp(min=1))[..., None]
    by_rater = (utilities[-1] - utilities[0]).masked_fill(~known, 0.0).sum(dim=1)[counts > 0] / counts[counts > 0]
    if len(by_rater):
        gained *= divide_gain(gained.sum(dim=(1, 2)), by_rater.quantile(0.5))
    old = state.gains
    raters, most = max(old.shape[2], gained.shape[1]), max(old.shape[3], gained.shape[2])
    grown = torch.zeros(len(old) + 1, n, raters, most, dtype=torch.float64)
    grown[: len(old), :, : old.shape[2], : old.shape[3]] = old
    grown[-1, :, : gained.shape[1], : gained.shape[2]] = gained
    patients = torch.zeros(raters, dtype=torch.long)
    patients[: len(state.patients)] = state.patients
    patients[: len(counts)] = patients[: len(counts)].maximum(counts)
    return grown, patients
