"""CFFL: Lyu et al., Collaborative Fairness in Federated Learning, 2020.

The server evaluates what every site trained on its own validation set and remembers a reputation that a sinh makes
punishing. Sites of high reputation download most of the aggregate, those below a threshold are removed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmerit.core import Candidates, Layout, Method, Outcome, Reports, require_choice
from fedmerit.vectors import aggregate, keep_largest, quota_counts, reshare, reward, share, to_sites, trained_models

RELEASED_FADE = 0.8  # of the old reputation in reputation="released"


@dataclass(frozen=True)
class CFFLState:
    """What CFFL remembers."""

    models: Tensor  # (n, d); (d,) with reward="global"
    reputation: Tensor  # (n,) c, 0 before a site's first round and for removed sites
    removed: Tensor  # (n,) bool
    round: Tensor  # () float64, t


@dataclass(frozen=True)
class CFFL(Method):
    """CFFL's server half; R are the present sites that are not removed.

    A site whose reputation falls below ``coef`` / |R| is removed: it neither uploads nor receives any more and trains
    alone (with ``reward="global"`` it goes on receiving). Where nobody would remain, nobody is removed; where only
    removed sites come, they are taken back.

    N, sums and maxima go over the sites present; absent ones keep reputation and model.

    Raises:
        ValueError: a parameter is outside its range or none of its choices.
    """

    theta: float = 1.0  # share of its update that a site uploads, the largest entries; in (0, 1]
    clip: float | None = None  # bound on every entry of an update, positive
    alpha: float | None = None  # of the sinh, in (0, 100]; None: min(5, 0.7 N), N the sites present
    alpha_growth: int = 0  # T of the released α(1 + t/T), t up to T; 0: α is constant
    coef: float = 1 / 6  # of the threshold; as released for classes out of balance, with 1/3 honest hospitals went
    reputation: str = "sinh_first"  # c ∝ c/2 + sinh(α share)/2; or "released": c ∝ sinh(α(.8c + .2 share))
    aggregation: str = "share"  # weights n_i over those of R; or "mean": over those of all; or "sum": 1
    keep_own: bool = False  # released: own update kept, own upload taken off the download
    reward: str = "sparse"  # the largest entries by reputation; or "global": one model, c its aggregation weights
    statistics: str = "own"  # BatchNorm statistics: the site's own, as models drift apart; or "shared" (and if global)

    def __post_init__(self) -> None:
        require_choice("reputation", self.reputation, ("sinh_first", "released"))
        require_choice("aggregation", self.aggregation, ("share", "mean", "sum"))
        require_choice("reward", self.reward, ("sparse", "global"))
        require_choice("statistics", self.statistics, ("own", "shared"))
        if not 0 < self.theta <= 1:
            raise ValueError(f"theta={self.theta}: expected above 0, at most 1")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip={self.clip}: expected above 0")
        if self.alpha is not None and not 0 < self.alpha <= 100:
            raise ValueError(f"alpha={self.alpha}: expected above 0, at most 100")
        if self.alpha_growth < 0:
            raise ValueError(f"alpha_growth={self.alpha_growth}: expected 0 or more")
        if not self.coef >= 0:
            raise ValueError(f"coef={self.coef}: expected 0 or more")
        if self.reward == "global" and (self.keep_own or self.aggregation != "share"):
            raise ValueError("reward='global': keep_own and aggregation belong to reward='sparse'")

    @property
    def shares_buffers(self) -> bool:
        """A mean of statistics fits a model that all have, and none of several that differ."""
        return self.reward == "global" or self.statistics == "shared"

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> CFFLState:
        """The state before round 0; ``model`` is (d,)."""
        models = model if self.reward == "global" else model.repeat(num_sites, 1)
        zeros = torch.zeros(num_sites, dtype=torch.float64)
        return CFFLState(models, zeros, zeros.bool(), torch.zeros((), dtype=torch.float64))

    def candidates(self, state: CFFLState, updates: Tensor, reports: Reports) -> Candidates:
        """What every present site trained, neither clipped nor cut, with its own BatchNorm statistics."""
        present = reports.present
        own = torch.eye(len(present), dtype=torch.float64)[present]
        trained = trained_models(state.models, updates, present)
        return Candidates(trained, torch.eye(len(trained), dtype=torch.float64), own)

    def round(self, state: CFFLState, updates: Tensor, reports: Reports) -> tuple[CFFLState, Outcome]:
        """``updates`` (n, d): reputations, removals, the aggregate over R, everybody's part of it."""
        assert reports.candidates is not None
        present = reports.present
        utility = to_sites(reports.candidates.dice, present)
        before = present & ~state.removed
        if not before.any():
            before = present
        shares = share(utility, before)
        raw = self.unnormalised_reputation(state, shares, reports)
        remaining = before & (share(raw, before) >= self.coef / before.sum())
        if not remaining.any():
            remaining = before
        reputation = reshare(state.reputation, raw * remaining, present)
        removed = torch.where(present, ~remaining, state.removed)

        clipped = updates if self.clip is None else updates.clamp(-self.clip, self.clip)
        uploads = largest_entries(clipped, self.theta)
        images = share(reports.num_samples, remaining)
        quantities = {"utility": utility, "removed": removed.double()}
        if self.reward == "global":
            weights = share(raw, remaining)
            models = aggregate(state.models, weights, uploads)
        else:
            earned = reputation * remaining
            quota = earned / earned.max() * images / images.max()
            quantities["quota"] = quota.where(present, torch.nan)
            ones = remaining.double()
            amounts = {"share": images, "mean": reports.data_share * ones, "sum": ones}[self.aggregation]
            weights = share(amounts, remaining)
            update = aggregate(torch.zeros_like(updates[0]), amounts, uploads)
            models = reward(state.models, update, quota)
            keeping = present if self.keep_own else present & removed
            models[keeping] += clipped[keeping]
            if self.keep_own:  # κ; of "mean" n_i / max n, though n_i / Σ n is what was added
                taken_off = {"share": images, "mean": images / images.max(), "sum": ones}[self.aggregation]
                models -= taken_off.to(models.dtype)[:, None] * uploads
        outcome = Outcome(
            contribution=shares.where(present, torch.nan),
            reputation=reputation,
            weights=weights,
            models=models,
            quantities=quantities,
        )
        return CFFLState(models, reputation, removed, state.round + 1), outcome

    def unnormalised_reputation(self, state: CFFLState, shares: Tensor, reports: Reports) -> Tensor:
        """(n,) c before it is normalised and sites are removed; ``shares`` (n,) of this round's utility."""
        alpha = min(5.0, 0.7 * float(reports.present.sum())) if self.alpha is None else self.alpha
        if self.alpha_growth:
            alpha *= 1 + min(float(state.round) / self.alpha_growth, 1.0)
        if self.reputation == "sinh_first":
            return 0.5 * state.reputation + 0.5 * torch.sinh(alpha * shares)
        return torch.sinh(alpha * (RELEASED_FADE * state.reputation + (1 - RELEASED_FADE) * shares))


def largest_entries(updates: Tensor, theta: float) -> Tensor:
    """(n, d) the floor(θ d) entries of largest magnitude of every row, the others 0."""
    if theta == 1:
        return updates
    counts = quota_counts(torch.tensor([theta], dtype=torch.float64), updates.shape[1])
    return torch.stack([keep_largest(row, counts)[0] * row for row in updates])
