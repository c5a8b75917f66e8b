"""RFFL: Xu and Lyu, A Reputation Mechanism Is All You Need: Collaborative Fairness and Adversarial Robustness in
Federated Learning, 2021.

As in CGSV, reputation is a remembered cosine to the aggregate and decides how much of it a site downloads. A site
whose reputation falls below a fraction of the mean is expelled for good.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.method import Layout, Method, MethodSummary, Outcome, Reports, inner_products
from fedmerit.contract.rewards import Reward, fractions_of_largest
from fedmerit.contract.vectors import aggregate, cosine_to_sum, norms, remember, reshare, share
from fedmerit.schema.rules import About, Choice, Count, Number


@dataclass(frozen=True)
class RFFLState:
    """The state of RFFL."""

    models: Tensor  # (n, d) one per site
    reputation: Tensor  # (n,) r of the last round; 0 before a site's first and once it is removed
    removed: Tensor  # (n,) bool: expelled
    rounds: Tensor  # (n,) rounds a site took part in
    tensor_sizes: Tensor  # (tensors,) elements of each tensor in the vector; none unless form="released"


@dataclass(frozen=True)
class RFFL(Method):
    """A method that clips, aggregates by reputation, remembers cosines, expels and rewards.

    Sums and maxima go over the sites R that are present and not removed; absent ones keep reputation and model. The
    first round aggregates by their sample shares. A removed site trains locally: its update has weight 0 and stays in
    its own model, without a reward. With ``coef`` below 1 the best of R is never removed. If all present sites were
    removed before, the weights are their sample shares, but no site downloads anything.

    The default repairs the released code, ``form="released"``: there negative reputations are negative weights, quotas
    are r / max r without the tanh of the published numbers, the largest entries are those of each tensor, and the
    reward comes after the (clipped) own update instead of before training.
    """

    alpha: Annotated[float, Number(0, 1), About("weight of the past in the reputation")] = 0.95
    gamma: Annotated[
        float | None, Number(above=0), About("Γ, norm that longer updates are clipped to; None: Σ p_i ||Δ_i||")
    ] = None
    coef: Annotated[float, Number(0, below=1), About("removed is a site below coef / |R|")] = 1 / 3
    warmup: Annotated[int, Count(), About("rounds a site takes part in before it can be removed")] = 10
    form: Annotated[
        str,
        Choice(("resolved", "released")),
        About("released: negative reputations count, quotas r / max r, entries by tensor, own update kept"),
    ] = "resolved"
    has_site_models: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="cosine of its update to the weighted sum",
        weights="reputation, 0 once expelled",
        download="own model, plus the largest entries its reputation earns",
        paper="Xu and Lyu 2021",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> RFFLState:
        """Return the state before round 0; ``model`` is (d,)."""
        return RFFLState(
            models=model.repeat(num_sites, 1),
            reputation=torch.zeros(num_sites, dtype=torch.float64),
            removed=torch.zeros(num_sites, dtype=torch.bool),
            rounds=torch.zeros(num_sites, dtype=torch.long),
            tensor_sizes=torch.tensor(layout.tensor_sizes if self.form == "released" else ()).long(),
        )

    def round(self, state: RFFLState, updates: Tensor, reports: Reports) -> tuple[RFFLState, Outcome]:
        """Aggregate ``updates`` (n, d), each relative to its site's model: one round of the class's text."""
        present = reports.present
        here = present & ~state.removed  # R
        data_share = share(reports.num_samples, here if here.any() else present)
        known = state.reputation[here].sum() > 0
        weights = share(state.reputation, here) if known else data_share

        products = inner_products(updates, reports)
        sizes = norms(products)
        gamma = self.gamma if self.gamma is not None else data_share @ sizes
        clip = torch.where(sizes > gamma, gamma / sizes, 1.0)
        u_N = aggregate(torch.zeros_like(updates[0]), clip * weights, updates)
        phi = cosine_to_sum(products, clip * weights)

        released = self.form == "released"
        memory = remember(state.reputation, phi, self.alpha, here)
        if not released:
            memory = memory.clamp(min=0)
        late = state.rounds >= self.warmup
        below = here & late & (share(memory, here) < self.coef / here.sum())
        removed = state.removed | below
        reputation = reshare(state.reputation, memory.masked_fill(removed, 0.0), here)

        relative = fractions_of_largest(reputation.clamp(min=0), here)
        quota = relative if released else torch.tanh(2 * relative) / math.tanh(2)
        models = Reward(u_N, quota, state.tensor_sizes.tolist()).add_to(state.models)
        own = clip if released else removed.double()
        for i in (present & (own > 0)).nonzero().flatten():
            models[i] += own[i] * updates[i]

        quantities = {"cosine": phi.where(present, torch.nan), "quota": quota, "expelled": removed.double()}
        state = RFFLState(models, reputation, removed, state.rounds + present, state.tensor_sizes)
        return state, Outcome(quantities["cosine"], reputation, weights, models, quantities)
