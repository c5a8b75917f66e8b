"""CGSV: Xu et al., Gradient Driven Rewards to Guarantee Fairness in Collaborative Machine Learning, NeurIPS 2021.

A site contributes as much as its update points where the reputation-weighted sum of all points (the cosine, which
approximates the site's Shapley value). The better its reputation, the more entries of that sum it downloads.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmerit.core import Layout, Method, Outcome, Reports, inner_products, require_choice
from fedmerit.games import shapley
from fedmerit.vectors import (
    add_masked,
    aggregate,
    cosine_to_sum,
    distances,
    earned,
    norms,
    norms_outside,
    remember,
    reshare,
    share,
)

EXACT_SITES = 24  # beyond, 2^n coalitions are too many: permutations are sampled
CANCELLED = 1e-14  # a squared norm this small beside its terms' is rounding: those updates cancel


@dataclass(frozen=True)
class CGSVState:
    """What CGSV remembers."""

    models: Tensor  # (n, d) one per site; (d,) with reward="global"
    reputation: Tensor  # (n,) r of the last round; 0 before a site's first
    round: Tensor  # () rounds played: the seed of sampled permutations
    tensor_sizes: Tensor  # (tensors,) elements of each tensor in the vector (mask="per_tensor")
    server: Tensor  # (d,) the server's model, which takes every u_N whole; what rewards fall short of


@dataclass(frozen=True)
class CGSV(Method):
    """Reputation from cosines, and downloads from reputation (Eqs. 1-5, Xu et al. 2021).

    The first round aggregates by sample shares, since r_{i,0} = 0 leaves Eq. 1 empty. An update of zero counts as no
    direction: its cosine is 0. Sums, maxima and N go over the sites present; absent ones keep reputation and model.

    Raises:
        ValueError: a parameter is none of its choices or out of its range.
    """

    alpha: float = 0.95  # weight of the past in the reputation, 0 to 1
    beta: float = 1.0  # altruism of Eq. 5: the larger, the more alike the downloads
    gamma: float | None = None  # Γ, the norm of every normalised update; None: Σ p_i ||Δ_i|| of the round
    floor: float = 1e-3  # of the reputation before it is normalised, so that weights stay positive
    contribution: str = "cosine"  # ψ (Eq. 3), or "exact": the Shapley value φ that it approximates
    permutations: int = 1000  # sampled for contribution="exact" where more than 24 sites are present
    reward: str = "sparse"  # one model per site; or "global": reputations weigh one model for all
    mask: str = "global"  # the largest entries of all (Eq. 5), or "per_tensor": of each tensor, the released rule

    def __post_init__(self) -> None:
        require_choice("contribution", self.contribution, ("cosine", "exact"))
        require_choice("reward", self.reward, ("sparse", "global"))
        require_choice("mask", self.mask, ("global", "per_tensor"))
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha={self.alpha}: expected 0 to 1")
        if not 0 < self.beta < math.inf:
            raise ValueError(f"beta={self.beta}: expected a positive number")
        if self.gamma is not None and not 0 < self.gamma < math.inf:
            raise ValueError(f"gamma={self.gamma}: expected a positive number")
        if not 0 <= self.floor < math.inf:
            raise ValueError(f"floor={self.floor}: expected a number that is not negative")
        if self.permutations < 2:
            raise ValueError(f"permutations={self.permutations}: expected at least 2")

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> CGSVState:
        """The state before round 0; ``model`` is (d,)."""
        return CGSVState(
            models=model if self.reward == "global" else model.repeat(num_sites, 1),
            reputation=torch.zeros(num_sites, dtype=torch.float64),
            round=torch.tensor(0),
            tensor_sizes=torch.tensor(layout.tensor_sizes),
            server=model,
        )

    def round(self, state: CGSVState, updates: Tensor, reports: Reports) -> tuple[CGSVState, Outcome]:
        """``updates`` (n, d), each relative to its site's model: reputations, then rewards (Eqs. 1-5)."""
        present, products = reports.present, inner_products(updates, reports)
        sizes = norms(products)
        to_unit = torch.where(sizes > 0, 1 / sizes, 0.0)
        known = state.reputation[present].sum() > 0
        weights = share(state.reputation, present) if known else reports.data_share

        gamma = self.gamma if self.gamma is not None else reports.data_share @ sizes
        u_N = aggregate(torch.zeros_like(updates[0]), gamma * weights * to_unit, updates)  # Eq. 1

        cosines = to_unit[:, None] * products * to_unit  # between any two updates
        psi = cosine_to_sum(cosines, weights)  # Eq. 3
        contribution, quantities = psi, {"cosine": psi.where(present, torch.nan)}
        if self.contribution == "exact":
            contribution, quantities["standard_error"] = self._exact(state, cosines, weights, present)

        memory = remember(state.reputation, contribution, self.alpha, present)  # Eq. 4
        reputation = reshare(state.reputation, memory.clamp(min=self.floor), present)

        server = state.server + u_N
        if self.reward == "global":
            models = server
        else:
            boosted = torch.tanh(self.beta * reputation).where(present, 0.0)
            quantities["quota"] = boosted / boosted.max()
            per_tensor = state.tensor_sizes.tolist() if self.mask == "per_tensor" else None
            masks = earned(u_N, quantities["quota"], per_tensor)
            models = add_masked(state.models, u_N, masks)  # Eq. 5
            quantities["reward_distance"] = norms_outside(u_N, masks)
            quantities["model_distance"] = distances(models, server)
        state = CGSVState(models, reputation, state.round + 1, state.tensor_sizes, server)
        return state, Outcome(contribution.where(present, torch.nan), reputation, weights, models, quantities)

    def _exact(self, state: CGSVState, cosines: Tensor, weights: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) Shapley values of the game among the present sites and (n,) their standard errors."""
        products, players = cosines[present][:, present], weights[present]
        if len(players) <= EXACT_SITES:
            values = shapley(cosine_game(products, players))
            errors = torch.zeros_like(values)
        else:
            generator = torch.Generator().manual_seed(int(state.round))
            values, errors = sampled_shapley(products, players, self.permutations, generator)
        nothing = torch.zeros_like(weights)
        return nothing.masked_scatter(present, values), nothing.masked_scatter(present, errors)


def cosine_game(products: Tensor, weights: Tensor) -> Tensor:
    """(2^n,) v(S) = cos(Σ_{i∈S} r_i u_i, u_N) of every coalition (Sec. 3.2, Xu et al. 2021), -1 to 1, for `shapley`.

    0 where either sum is zero. Each site doubles the coalitions, those with it after those without, in O(2^n) in all.

    Args:
        products: (n, n) Gram matrix of the normalised updates u_i; their common norm Γ does not matter.
        weights: (n,) r_i, not negative.
    """
    weights = weights.double()
    pairs = weights[:, None] * products * weights  # ⟨r_i u_i, r_j u_j⟩
    zero = torch.zeros(1, dtype=torch.float64)
    inner = squared = length = zero  # of each coalition: with u_N, with itself, were its updates parallel
    lengths = pairs.diagonal().clamp(min=0).sqrt()
    for i, row in enumerate(pairs):
        cross = zero  # of each coalition with site i
        for product in row[:i]:
            cross = torch.cat([cross, cross + product])
        squared = torch.cat([squared, squared + 2 * cross + row[i]])
        inner = torch.cat([inner, inner + row.sum()])
        length = torch.cat([length, length + lengths[i]])
    return _cosines(inner, squared, length, pairs)


def sampled_shapley(
    products: Tensor, weights: Tensor, permutations: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(n,) estimates of the Shapley values of `cosine_game` and (n,) their standard errors, in O(permutations n²).

    A site's value is the mean, over random orders of all sites, of what it adds to those before it. The values sum
    to v of all sites exactly; sites with identical updates get values that agree within their errors.

    Args:
        products: (n, n) as in `cosine_game`.
        weights: (n,) likewise.
        permutations: orders to draw, at least 2.
        generator: of the orders.
    """
    n, weights = len(weights), weights.double()
    pairs = weights[:, None] * products * weights
    to_all, lengths = pairs.sum(dim=1), pairs.diagonal().clamp(min=0).sqrt()
    orders = torch.rand(permutations, n, generator=generator).argsort(dim=1)
    inner, squared, length, before = torch.zeros(4, permutations, dtype=torch.float64)
    cross = torch.zeros(permutations, n, dtype=torch.float64)  # of those before with every site
    marginals = torch.empty(permutations, n, dtype=torch.float64)
    for joining in orders.T.unsqueeze(2):  # (permutations, 1): who comes next
        site = joining.squeeze(1)
        squared = squared + 2 * cross.gather(1, joining).squeeze(1) + pairs.diagonal()[site]
        inner = inner + to_all[site]
        length = length + lengths[site]
        cross += pairs[site]
        now = _cosines(inner, squared, length, pairs)
        marginals.scatter_(1, joining, (now - before).unsqueeze(1))
        before = now
    return marginals.mean(dim=0), marginals.std(dim=0) / math.sqrt(permutations)


def _cosines(inner: Tensor, squared: Tensor, length: Tensor, pairs: Tensor) -> Tensor:
    """Cosines with u_N; 0 where a coalition's updates, or all, cancel to rounding."""
    total = pairs.sum()
    if total <= CANCELLED * pairs.diagonal().clamp(min=0).sqrt().sum() ** 2:
        return torch.zeros_like(inner)
    cosines = inner / (squared.clamp(min=0) * total).sqrt()
    return cosines.where(squared > CANCELLED * length**2, 0.0).clamp(-1, 1)
