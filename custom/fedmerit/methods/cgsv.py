"""CGSV: Xu et al., Gradient Driven Rewards to Guarantee Fairness in Collaborative Machine Learning, NeurIPS 2021.

A site's contribution is the cosine of its update to the reputation-weighted sum of all, which approximates its Shapley
value. The higher its reputation, the more entries of that sum it downloads.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmerit.contract import rewards
from fedmerit.contract.capabilities import HasGuardedForm
from fedmerit.contract.games import cosine_values
from fedmerit.contract.innovation import rest_shares
from fedmerit.contract.method import Layout, Method, MethodSummary, Outcome, Reports, inner_products
from fedmerit.contract.vectors import (
    aggregate,
    cosine_to_sum,
    distances,
    norms,
    norms_outside,
    remember,
    reshare,
    share,
)
from fedmerit.schema.rules import About, Choice, Number


@dataclass(frozen=True)
class CGSVState:
    """The state of CGSV."""

    models: Tensor  # (n, d) one per site; (d,) with reward="global"
    reputation: Tensor  # (n,) r of the last round; 0 before a site's first
    round: Tensor  # () rounds played: the seed of sampled permutations
    tensor_sizes: Tensor  # (tensors,) elements of each tensor in the vector; none with mask="global"
    server: Tensor  # (d,) the server's model, which adds every whole u_N; the reference of rewards
    outputs: Tensor  # places of the output layer's parameters in the vector


FLOOR = 1e-3  # of the reputation before it is normalised, so that weights stay positive


@dataclass(frozen=True)
class CGSV(Method, HasGuardedForm):
    """A reputation from cosines, and downloads from reputation (Eqs. 1-5, Xu et al. 2021).

    The first round aggregates by sample shares, since r_{i,0} = 0 leaves Eq. 1 empty. An update of zero has the
    cosine 0. Sums, maxima and N go over the sites present; absent ones keep reputation and model.

    Raises:
        ValueError: a parameter does not follow its rule.
    """

    alpha: Annotated[float, Number(0, 1), About("weight of the past in the reputation")] = 0.95
    beta: Annotated[float, Number(above=0), About("altruism of Eq. 5: the larger, the more alike the downloads")] = 1.0
    gamma: Annotated[
        float | None, Number(above=0), About("Γ, norm of every normalised update; None: Σ p_i ||Δ_i|| of the round")
    ] = None
    contribution: Annotated[
        str, Choice(("cosine", "exact")), About("ψ (Eq. 3), or exact: the Shapley value φ that it approximates")
    ] = "cosine"
    reward: Annotated[
        str, Choice(("sparse", "global")), About("one model per site; or global: reputations weigh one model for all")
    ] = "sparse"
    mask: Annotated[
        str,
        Choice(("global", "per_tensor")),
        About("the largest entries of all (Eq. 5); per_tensor: of each tensor, as released"),
    ] = "global"
    has_private_models: ClassVar[bool] = False  # they are entries of aggregates
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="cosine of its update to the weighted sum, or its Shapley value",
        weights="reputation",
        download="own model, plus the largest entries its reputation earns; or one global model",
        paper="Xu et al. 2021",
    )

    @property
    def has_site_models(self) -> bool:
        """Whether the reward is not one model for all."""
        return self.reward != "global"

    @property
    def sums_updates(self) -> bool:
        """Whether the reward is one model for all."""
        return self.reward == "global"

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> CGSVState:
        """Return the state before round 0; ``model`` is (d,)."""
        return CGSVState(
            models=model if self.reward == "global" else model.repeat(num_sites, 1),
            reputation=torch.zeros(num_sites, dtype=torch.float64),
            round=torch.tensor(0),
            tensor_sizes=torch.tensor(layout.tensor_sizes if self.mask == "per_tensor" else ()).long(),
            server=model,
            outputs=layout.outputs.flatten(),
        )

    def round(self, state: CGSVState, updates: Tensor, reports: Reports) -> tuple[CGSVState, Outcome]:
        """Aggregate ``updates`` (n, d), each relative to its site's model: reputations, then rewards (Eqs. 1-5)."""
        present, products = reports.present, inner_products(updates, reports)
        sizes = norms(products)
        to_unit = torch.where(sizes > 0, 1 / sizes, 0.0)
        weights = share(state.reputation, present) if state.reputation[present].any() else reports.data_share

        gamma = self.gamma if self.gamma is not None else reports.data_share @ sizes
        u_N = aggregate(torch.zeros_like(updates[0]), gamma * weights * to_unit, updates)  # Eq. 1

        cosines = to_unit[:, None] * self._judged(products, reports) * to_unit  # between any two updates
        contribution, quantities = self._contributions(state, cosines, weights, present)
        contribution = contribution * self._factors(reports)

        memory = remember(state.reputation, contribution, self.alpha, present)  # Eq. 4
        reputation = reshare(state.reputation, memory.clamp(min=FLOOR), present)

        models = server = state.server + u_N
        if self.reward == "sparse":
            boosted = torch.tanh(self.beta * reputation)
            quantities["quota"] = quota = rewards.fractions_of_largest(boosted, present)
            reward = rewards.Reward(u_N, quota, state.tensor_sizes.tolist())
            models = reward.add_to(state.models)  # Eq. 5
            quantities["reward_distance"] = norms_outside(u_N, reward.masks)
            quantities["model_distance"] = distances(models, server)
            if len(state.outputs):
                quantities["output_distance"] = distances(models[:, state.outputs], server[state.outputs])
        state = replace(state, models=models, reputation=reputation, round=state.round + 1, server=server)
        return state, Outcome(contribution.where(present, torch.nan), reputation, weights, models, quantities)

    @property
    def guarded_form(self) -> "GuardedCGSV":
        """The form whose contributions are of the updates beyond their forecasts."""
        return GuardedCGSV(**vars(self))

    def _judged(self, products: Tensor, reports: Reports) -> Tensor:
        """Return (n, n) the inner products that contributions follow from."""
        return products

    def _factors(self, reports: Reports) -> float | Tensor:
        """Return (n,) factors of contributions."""
        return 1.0

    def _contributions(
        self, state: CGSVState, cosines: Tensor, weights: Tensor, present: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return (n,) contributions by the ``cosines`` (n, n), and quantities of them."""
        psi = cosine_to_sum(cosines, weights)  # Eq. 3
        quantities = {"cosine": psi.where(present, torch.nan)}
        if self.contribution != "exact":
            return psi, quantities
        found, errors = cosine_values(cosines, weights, int(state.round), present)
        return found, {**quantities, "standard_error": errors}


@dataclass(frozen=True)
class GuardedCGSV(CGSV):
    """A CGSV whose contributions are of what the server cannot forecast of updates, as under the guard.

    Cosines are those of the rests (`fedmerit.contract.innovation`), times the share of its update's length that a
    rest has: what follows from broadcast models earns nothing. Aggregation and rewards are those of whole updates.
    """

    uses_rests: ClassVar[bool] = True

    def _judged(self, products: Tensor, reports: Reports) -> Tensor:
        return products if reports.rests is None else reports.rests

    def _factors(self, reports: Reports) -> float | Tensor:
        return 1.0 if reports.rests is None else rest_shares(reports)
