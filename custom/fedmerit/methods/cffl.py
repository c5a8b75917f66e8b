"""CFFL: Lyu et al., Collaborative Fairness in Federated Learning, 2020.

The server evaluates what every site trained on its own validation set and remembers a reputation that a sinh makes
punishing. Sites of high reputation download most of the aggregate, those below a threshold are removed.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmerit.contract import rewards
from fedmerit.contract.capabilities import Candidates, EvaluatesCandidates
from fedmerit.contract.games import trained_candidates
from fedmerit.contract.method import Layout, Method, MethodSummary, Outcome, Reports
from fedmerit.contract.vectors import aggregate, keep_largest, quota_counts, reshare, share, to_sites
from fedmerit.schema.rules import About, Choice, Number


@dataclass(frozen=True)
class CFFLState:
    """The state of CFFL."""

    models: Tensor  # (n, d); (d,) with reward="global"
    reputation: Tensor  # (n,) c, 0 before a site's first round and for removed sites
    removed: Tensor  # (n,) bool
    round: Tensor  # () float64, t


@dataclass(frozen=True)
class CFFL(Method, EvaluatesCandidates):
    """A server half of CFFL; R are the present sites that are not removed.

    A site whose reputation falls below ``coef`` / |R| is removed: it no longer uploads or receives, and trains
    locally (with ``reward="global"`` it still receives). If no site would remain, none is removed; if only removed
    sites are present, they are readmitted.

    N, sums and maxima go over the sites present; absent ones keep reputation and model.

    Raises:
        ValueError: a parameter does not follow its rule.
    """

    theta: Annotated[
        float, Number(high=1, above=0), About("share of its update that a site uploads, the largest entries")
    ] = 1.0
    clip: Annotated[float | None, Number(above=0), About("bound on every entry of an update; None: none")] = None
    alpha: Annotated[
        float | None, Number(high=100, above=0), About("of the sinh; None: min(5, 0.7 N), N the sites present")
    ] = None
    # the released code has 1/6 for unbalanced classes, else 1/3, which removed honest hospitals
    coef: Annotated[float, Number(0), About("of the threshold below which a site is removed")] = 1 / 6
    reward: Annotated[
        str, Choice(("sparse", "global")), About("the largest entries by reputation; global: one model, c its weights")
    ] = "sparse"
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="server validation Dice of what it trained",
        weights="share of training images, among those not removed",
        download="own model, plus the largest entries by reputation and images; or one global model",
        site_work="training, evaluation of the sites' models",
        paper="Lyu et al. 2020",
    )

    @property
    def has_site_models(self) -> bool:
        """Whether the reward is not one model for all."""
        return self.reward != "global"

    @property
    def sums_updates(self) -> bool:
        """Whether the reward is one model for all, of complete updates."""
        return self.reward == "global" and self.theta == 1 and self.clip is None

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> CFFLState:
        """Return the state before round 0; ``model`` is (d,)."""
        models = model if self.reward == "global" else model.repeat(num_sites, 1)
        zeros = torch.zeros(num_sites, dtype=torch.float64)
        return CFFLState(models, zeros, zeros.bool(), torch.zeros((), dtype=torch.float64))

    def candidates(self, state: CFFLState, updates: Tensor, reports: Reports) -> Candidates:
        """Return what every present site trained, neither clipped nor cut, with its own BatchNorm statistics."""
        return trained_candidates(state.models, updates, reports)

    def round(self, state: CFFLState, updates: Tensor, reports: Reports) -> tuple[CFFLState, Outcome]:
        """Aggregate ``updates`` (n, d): reputations, removals, the aggregate over R, and every site's part of it."""
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
        quantities = {"utility": utility, "expelled": removed.double()}
        if self.reward == "global":
            weights = share(raw, remaining)
            models = aggregate(state.models, weights, uploads)
        else:
            images = share(reports.num_samples, remaining)
            earned = rewards.fractions_of_largest(reputation, remaining)
            quota = earned * images / images.max()
            quantities["quota"] = quota.where(present, torch.nan)
            models, weights = self.rewarded(state.models, clipped, uploads, quota, remaining, reports)
        outcome = Outcome(
            contribution=shares.where(present, torch.nan),
            reputation=reputation,
            weights=weights,
            models=models,
            quantities=quantities,
        )
        return CFFLState(models, reputation, removed, state.round + 1), outcome

    def strength(self, state: CFFLState, reports: Reports) -> float:
        """Return α of the round."""
        return min(5.0, 0.7 * float(reports.present.sum())) if self.alpha is None else self.alpha

    def unnormalised_reputation(self, state: CFFLState, shares: Tensor, reports: Reports) -> Tensor:
        """Return (n,) c before it is normalised and sites are removed; ``shares`` (n,) of this round's utility."""
        return 0.5 * state.reputation + 0.5 * torch.sinh(self.strength(state, reports) * shares)

    def rewarded(
        self, models: Tensor, clipped: Tensor, uploads: Tensor, quota: Tensor, remaining: Tensor, reports: Reports
    ) -> tuple[Tensor, Tensor]:
        """Return (n, d) ``models`` with what each site earns by its ``quota`` (n,), and (n,) the weights of the
        aggregate.

        Args:
            models: (n, d) from which the sites trained.
            clipped: (n, d) their updates.
            uploads: (n, d) the part of these that they sent.
            quota: (n,) 0 to 1.
            remaining: (n,) bool, R.
            reports: of the round.
        """
        images = share(reports.num_samples, remaining)
        update = aggregate(torch.zeros_like(uploads[0]), images, uploads)
        models = rewards.Reward(update, quota).add_to(models)
        left_out = reports.present & ~remaining
        models[left_out] += clipped[left_out]
        return models, share(images, remaining)


def largest_entries(updates: Tensor, theta: float) -> Tensor:
    """Return (n, d) the floor(θ d) entries of largest magnitude of every row, the others 0."""
    if theta == 1:
        return updates
    counts = quota_counts(torch.tensor([theta], dtype=torch.float64), updates.shape[1])
    return torch.stack([keep_largest(row, counts)[0] * row for row in updates])
