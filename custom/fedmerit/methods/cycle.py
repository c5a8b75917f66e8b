"""CYCle: Tastan et al., CYCle: Choosing Your Collaborators Wisely to Enhance Collaborative Fairness, 2025.

Every site n keeps its own model. It learns from the predictions of peer k as far as k's reputation r_(n,k) goes: how
well k segments n's images or, in the paper, how well the gradient of learning from k aligns with that of n's masks
(Eqs. 4 and 5). It shares its own predictions with k with probability r_(n,k) (Section 4.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.capabilities import LearnsFromPeers, PeerTerm, PeerView, Sharing
from fedmerit.contract.method import Layout, Method, MethodSummary, Needs, Outcome, Range, Reports
from fedmerit.contract.vectors import aggregate
from fedmerit.methods.peer_learning import (
    DIRECTIONS,
    EXCHANGES,
    OWN_LOSSES,
    agreements,
    distillation,
    misalignments,
    own_loss,
)
from fedmerit.schema.rules import About, Choice, Count, Number

SCORES = {"gradients": "misalignment", "agreement": "agreement"}  # what a site reports of a peer, by `CYCle.score`


@dataclass(frozen=True)
class CYCleState:
    """The sites' models and their reputations of each other."""

    models: Tensor  # (n, d)
    reputation: Tensor  # (n, n) r_(n,k), row n; NaN if n has never scored k
    estimate: Tensor  # (n, n) r̃_(n,k) of the last time n scored k
    round: Tensor  # () the coming round


@dataclass(frozen=True)
class CYCle(Method, LearnsFromPeers):
    """CYCle: a site does `learn_from`, the server the rest.

    Scoring is due in the first collaborative round and every R rounds after it. All sites share for it, and a site
    without a reputation of a peer shares with that peer. A warm-up by FedAvg ends with a round of local training, since
    equal models teach each other nothing.

    Raises:
        ValueError: a parameter does not follow its rule, ``tau_opt`` is not below ``tau_max``, or sites that keep their
            models from the server have it average them.
    """

    alpha: Annotated[float, Number(0, below=1), About("weight of the past in a reputation r")] = 0.5
    tau_opt: Annotated[float, Number(0, below=1), About("misalignment up to which r̃ is 1")] = 0.25
    tau_max: Annotated[float, Number(high=1, above=0), About("misalignment from which r̃ is 0")] = 0.75
    R: Annotated[int, Count(1), About("collaborative rounds from one scoring to the next; not given in the paper")] = 5
    # tuned on Dice: docs/studies/cycle-shifted-masks.md
    lambda0: Annotated[float, Number(0), About("λ0; the paper: 50, of images of one class")] = 1.0
    T: Annotated[float, Number(above=0), About("temperature, of CaPriDe; not given in the paper")] = 5.0
    warmup: Annotated[
        int, Count(), About("rounds before sites learn from each other; 8 of 30, as the paper's 25 of 100")
    ] = 8
    warmup_by: Annotated[str, Choice(("own", "fedavg")), About("as one model; own, the paper's: local training")] = (
        "fedavg"
    )
    kl: Annotated[str, Choice(DIRECTIONS), About("KL(own || peer), or peer_own: KL(peer || own)")] = "own_peer"
    exchange: Annotated[str, Choice(EXCHANGES), About("of models: by the server; peer: from site to site")] = "relay"
    score_batches: Annotated[int, Count(1), About("batches of training images to score on")] = 8
    score_loss: Annotated[
        str,
        Choice(OWN_LOSSES),
        About("own loss in Eq. 4: cross-entropy; ce_T: of predictions at T, as Section 2; or training's"),
    ] = "ce"
    score: Annotated[
        str,
        Choice(tuple(SCORES)),
        About(
            "Score of a peer: r̃ = its validation Dice by the site's own; gradients, the paper's: h of how they "
            "align (Eqs. 4, 5)."
        ),
    ] = "agreement"
    peer_ranges: ClassVar[Mapping[str, Range]] = {"available": (0, 1), "misalignment": (0, 1), "agreement": (0, 1)}
    has_site_models: ClassVar[bool] = True
    sums_updates: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="how well its model segments its peers' images, by their own masks",
        weights="none",
        download="own model; to learn from, the models of peers that share, as likely as of use to them",
        site_work="training with distillation from peers, predictions of each to score it",
        paper="Tastan et al. 2025",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau_opt >= self.tau_max:
            raise ValueError(f"tau_opt={self.tau_opt}, tau_max={self.tau_max}: expected tau_opt below tau_max")
        if self.warmup_by == "fedavg" and self.exchange == "peer":
            raise ValueError("exchange='peer': the server has no models to average; set warmup_by=own, too")

    @property
    def peer_quantities(self) -> Mapping[str, Range]:
        """Whether their predictions could be used, and their score."""
        return {name: self.peer_ranges[name] for name in ("available", SCORES[self.score])}

    @property
    def together(self) -> int:
        """The first round in which sites learn from each other."""
        return self.warmup + (self.warmup_by == "fedavg" and self.warmup > 0)

    @property
    def needs(self) -> Needs:
        """A collaborative round."""
        return Needs(rounds=self.together + 1, why=f"with warmup={self.warmup} no site learns from another before")

    def scores(self, round: int) -> bool:
        """Whether all sites score all peers in a round: t mod R = 0, t counted from the first one together."""
        return round >= self.together and (round - self.together) % self.R == 0

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> CYCleState:
        """All sites start from one model (d,)."""
        unknown = torch.full((num_sites, num_sites), torch.nan, dtype=torch.float64)
        return CYCleState(model.repeat(num_sites, 1), unknown, unknown, torch.tensor(0))

    def sharing(self, state: CYCleState) -> Sharing | None:
        """Adaptive sharing (Algorithm 1, lines 13 to 21, with the r_(n,k) that the text gives n)."""
        if state.round < self.together:
            return None
        return Sharing(self.probability(state.reputation, int(state.round)), state.reputation)

    def probability(self, weights: Tensor, round: int) -> Tensor:
        """r_(n,k) of what n holds of k; 1 in rounds of scoring, and if n holds nothing of k yet."""
        return torch.ones_like(weights) if self.scores(round) else weights.nan_to_num(1.0)

    def round(self, state: CYCleState, updates: Tensor, reports: Reports) -> tuple[CYCleState, Outcome]:
        """``updates`` (n, d): θ_n ← θ_n + Δ_n, and the reputations from this round's scores."""
        models, present = state.models + updates, reports.present
        due, name = state.reputation.isnan() | self.scores(int(state.round)), SCORES[self.score]
        said = reports.pairs[name].where(due & present[:, None], torch.nan).fill_diagonal_(torch.nan)
        now = self.compute_reputation(said)
        r = remembered(state.reputation, now, self.alpha)
        estimate = now.where(now.isfinite(), state.estimate)
        outcome = Outcome(
            contribution=average_holders(estimate).where(present, torch.nan),
            reputation=average_holders(r),
            weights=reports.data_share,
            models=models,
            pairs={"peer_reputation": r, name: said, "available": reports.pairs["available"]},
        )
        if self.warmup_by == "fedavg" and state.round < self.warmup:
            models = aggregate(state.models[0], reports.data_share, updates).repeat(len(models), 1)
            outcome = replace(outcome, models=models, statistics="shared")
        return CYCleState(outcome.models, r, estimate, state.round + 1), outcome

    def restart_from(self, state: CYCleState, models: Tensor) -> CYCleState:
        """As `Method.restart_from`; a warm-up by FedAvg continues from the model of all."""
        as_one = self.warmup_by == "fedavg" and state.round < self.warmup
        return state if as_one else super().restart_from(state, models)

    def learn_from(self, view: PeerView) -> PeerTerm:
        """Reputation scoring if it is due (Algorithm 1, lines 2 to 12), then λ0 Σ_k r_(n,k) L_DL(n,k)."""
        before = torch.tensor(list(view.weights.values()), dtype=torch.float64)
        all_due = self.scores(view.round)
        due = [peer for peer, r in view.weights.items() if all_due or r != r]  # NaN: never scored
        said = self._score(view, due) if due else {}
        found = torch.tensor([said.get(peer, torch.nan) for peer in view.weights], dtype=torch.float64)
        r = remembered(before, self.compute_reputation(found), self.alpha).tolist()
        weights = {peer: self.lambda0 * value for peer, value in zip(view.weights, r, strict=True) if value > 0}
        loss = distillation(view.predict, weights, self.T, self.kl)
        return PeerTerm(loss, {SCORES[self.score]: said}, dict(zip(view.weights, r, strict=True)))

    def compute_reputation(self, said: Tensor) -> Tensor:
        """r̃, 0 to 1, of the scores of peers; NaN stays NaN."""
        return said if self.score == "agreement" else current_reputation(said, self.tau_opt, self.tau_max)

    def _score(self, view: PeerView, due: list[str]) -> dict[str, float]:
        if self.score == "agreement":
            return agreements(view, due)
        return misalignments(view, due, self.score_batches, self.T, self.kl, own_loss(self.score_loss, self.T, view))


def current_reputation(misalignment: Tensor, tau_opt: float, tau_max: float) -> Tensor:
    """r̃ = h(s), 0 to 1, of ``misalignment`` s, 0 to 1 (Eq. 5); NaN stays NaN."""
    return ((misalignment - tau_max) / (tau_opt - tau_max)).clamp(0, 1)


def remembered(reputation: Tensor, now: Tensor, alpha: float) -> Tensor:
    """r = α r + (1-α) r̃; r̃ if there was none, r if ``now`` r̃ is NaN: not scored, or not available."""
    updated = torch.where(reputation.isnan(), now, alpha * reputation + (1 - alpha) * now)
    return torch.where(now.isnan(), reputation, updated)


def average_holders(values: Tensor) -> Tensor:
    """(n,) mean of each column of (n, n), NaN left out; 0 if there is nothing else."""
    return values.nanmean(dim=0).nan_to_num(0.0)
