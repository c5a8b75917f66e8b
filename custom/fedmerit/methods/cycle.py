"""CYCle: Tastan et al., CYCle: Choosing Your Collaborators Wisely to Enhance Collaborative Fairness, 2025.

Every site n keeps its own model. It learns from the predictions of peer k as far as learning from them points where
its own masks point (Eq. 4), which makes the reputation r_(n,k) (Eq. 5), and shares its own predictions with k with
probability r_(n,k) (Section 4.2). Whoever is of no use to a site gets nothing from it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from fedmerit.capabilities.peer_learning import LearnsFromPeers, PeerTerm, PeerView, Sharing
from fedmerit.core import DECIMALS, About, Layout, Method, Outcome, Reports
from fedmerit.distillation import DIRECTIONS, EXCHANGES, distillation, divergence
from fedmerit.parameters import parameter

ROUNDING = 1e-6  # of a distillation gradient, relative to that of the site's own loss


@dataclass(frozen=True)
class CYCleState:
    """What the sites have and hold of each other."""

    models: Tensor  # (n, d)
    reputation: Tensor  # (n, n) r_(n,k), row n; NaN where n has never scored k
    estimate: Tensor  # (n, n) r̃_(n,k) of the last time n scored k
    round: Tensor  # () the coming round


@dataclass(frozen=True)
class CYCle(Method, LearnsFromPeers):
    """CYCle, of which a site does `learn_from` and the one that keeps the reputations the rest.

    Scoring is due in the first collaborative round and every R rounds after it. Everybody shares for it, and so does
    whoever holds no reputation of a peer yet, with that peer.

    Raises:
        ValueError: a parameter does not follow its rule, or ``tau_opt`` is not below ``tau_max``.
    """

    alpha: float = parameter(0.5, "weight of the past in a reputation r", low=0, below=1)
    tau_opt: float = parameter(0.25, "misalignment up to which r̃ is 1", low=0, below=1)
    tau_max: float = parameter(0.75, "misalignment from which r̃ is 0", above=0, high=1)
    R: int = parameter(5, "collaborative rounds from one scoring to the next; not given in the paper", low=1)
    lambda0: float = parameter(1.0, "λ0, tuned on Dice (docs/cycle.md); the paper: 50, of images of one class", low=0)
    T: float = parameter(5.0, "temperature, of CaPriDe; not given in the paper", above=0)
    warmup: int = parameter(8, "rounds of local training before; a quarter of 30, as the paper's 25 of 100", low=0)
    kl: str = parameter("own_peer", "KL(own || peer), or peer_own: KL(peer || own)", choices=DIRECTIONS)
    exchange: str = parameter("relay", "of models: by the server; peer: from site to site", choices=EXCHANGES)
    score_batches: int = parameter(8, "batches of training images to score on", low=1)
    score_loss: str = parameter("ce", "own loss in Eq. 4: cross-entropy, or the training's", choices=("ce", "training"))

    asks_of_peers: ClassVar[tuple[str, ...]] = ("available", "misalignment")
    about: ClassVar[About] = About(
        contribution="how learning from its predictions aligns with each peer's own masks",
        weights="none",
        download="own model; to learn from, the models of peers that share, as likely as of use to them",
        site_work="training with distillation from peers, gradients of both losses",
        paper="Tastan et al. 2025",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau_opt >= self.tau_max:
            raise ValueError(f"tau_opt={self.tau_opt}, tau_max={self.tau_max}: expected tau_opt below tau_max")

    def scores(self, round: int) -> bool:
        """Whether everybody scores everybody in a round: t mod R = 0, t counted from the end of the warm-up."""
        return round >= self.warmup and (round - self.warmup) % self.R == 0

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> CYCleState:
        """All sites start from one model (d,)."""
        unknown = torch.full((num_sites, num_sites), torch.nan, dtype=torch.float64)
        return CYCleState(model.repeat(num_sites, 1), unknown, unknown, torch.tensor(0))

    def sharing(self, state: CYCleState) -> Sharing | None:
        """Adaptive sharing (Algorithm 1, lines 13 to 21, with the r_(n,k) that the text gives n)."""
        if state.round < self.warmup:
            return None
        return Sharing(self.probability(state.reputation, int(state.round)), state.reputation)

    def probability(self, weights: Tensor, round: int) -> Tensor:
        """Of what n holds of k, ``weights``, the λ_(n,k) = r_(n,k)."""
        return sharing_probability(weights, self.scores(round))

    def round(self, state: CYCleState, updates: Tensor, reports: Reports) -> tuple[CYCleState, Outcome]:
        """``updates`` (n, d): θ_n ← θ_n + Δ_n, and the reputations of what the sites found this round."""
        models, present = state.models + updates, reports.present
        due = state.reputation.isnan() | self.scores(int(state.round))
        s = reports.pairs["misalignment"].where(due & present[:, None], torch.nan).fill_diagonal_(torch.nan)
        now = current_reputation(s, self.tau_opt, self.tau_max)
        r = remembered(state.reputation, now, self.alpha)
        estimate = now.where(now.isfinite(), state.estimate)
        outcome = Outcome(
            contribution=mean_of_holders(estimate).where(present, torch.nan),
            reputation=mean_of_holders(r),
            weights=reports.data_share,
            models=models,
            pairs={"peer_reputation": r, "misalignment": s, "available": reports.pairs["available"]},
        )
        return CYCleState(models, r, estimate, state.round + 1), outcome

    def learn_from(self, view: PeerView) -> PeerTerm:
        """Reputation scoring where it is due (Algorithm 1, lines 2 to 12), then λ0 Σ_k r_(n,k) L_DL(n,k)."""
        before = torch.tensor(list(view.weights.values()), dtype=torch.float64)
        all_due = self.scores(view.round)
        due = [peer for peer, r in view.weights.items() if all_due or r != r]  # NaN: never scored
        loss = cross_entropy if self.score_loss == "ce" else view.loss
        s = misalignments(view, due, self.score_batches, self.T, self.kl, loss) if due else {}
        found = torch.tensor([s.get(peer, torch.nan) for peer in view.weights], dtype=torch.float64)
        r = remembered(before, current_reputation(found, self.tau_opt, self.tau_max), self.alpha).tolist()
        weights = {peer: self.lambda0 * value for peer, value in zip(view.weights, r, strict=True) if value > 0}
        loss = distillation(view.predict, weights, self.T, self.kl)
        return PeerTerm(loss, {"misalignment": s}, dict(zip(view.weights, r, strict=True)))


def current_reputation(misalignment: Tensor, tau_opt: float, tau_max: float) -> Tensor:
    """r̃ = h(s), 0 to 1, of ``misalignment`` s, 0 to 1 (Eq. 5); NaN stays NaN."""
    return ((misalignment - tau_max) / (tau_opt - tau_max)).clamp(0, 1)


def remembered(reputation: Tensor, now: Tensor, alpha: float) -> Tensor:
    """r = α r + (1-α) r̃; r̃ where there was none, r where ``now`` r̃ is NaN: not scored, or not available."""
    updated = torch.where(reputation.isnan(), now, alpha * reputation + (1 - alpha) * now)
    return torch.where(now.isnan(), reputation, updated)


def sharing_probability(reputation: Tensor, forced: bool) -> Tensor:
    """(n, n) that row shares with column: r_(n,k); 1 where forced, and where n holds none of k yet."""
    return torch.ones_like(reputation) if forced else reputation.nan_to_num(1.0)


def mean_of_holders(values: Tensor) -> Tensor:
    """(n,) mean of each column of (n, n), NaN left out; 0 where there is nothing else."""
    return values.nanmean(dim=0).nan_to_num(0.0)


def misalignment(own: Tensor, peer: Tensor) -> float:
    """s = (1 - cos) / 2, 0 to 1, of the gradients (d,) of the site's own loss and of distillation (Eq. 4).

    A zero gradient has a cosine of 0, and so has what float32 leaves of one: that of a peer of the same predictions.
    """
    own, peer = own.double(), peer.double()
    own_norm, peer_norm = float(own.norm()), float(peer.norm())
    known = peer_norm > ROUNDING * own_norm > 0
    cosine = float(own @ peer) / (own_norm * peer_norm) if known else 0.0
    return (1 - min(1.0, max(-1.0, cosine))) / 2


def misalignments(
    view: PeerView,
    peers: Collection[str],
    batches: int,
    temperature: float,
    kl: str,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
) -> dict[str, float]:
    """s_(n,k) of each peer, at θ_n as it is; peers that are not available are left out.

    ``loss`` is the site's own, of logits and masks (batch, labels, h, w), the mean over the batch. Both
    gradients are of the mean over all images of ``batches`` batches, summed in float64.
    """
    parameters = [parameter for parameter in view.network.parameters() if parameter.requires_grad]
    size = sum(parameter.numel() for parameter in parameters)
    sums = {peer: torch.zeros(size, dtype=torch.float64) for peer in peers}
    own_sum = torch.zeros(size, dtype=torch.float64)

    def gradient(loss: Tensor, images: Tensor) -> Tensor:
        parts = torch.autograd.grad(loss * len(images), parameters, retain_graph=True)
        return torch.cat([part.reshape(-1) for part in parts]).cpu().double()

    for images, masks in view.batches(batches):
        own = view.network(images)
        own_sum += gradient(loss(own, masks), images)
        for peer in list(sums):
            logits = view.predict(peer, images)
            if logits is None:
                del sums[peer]
            else:
                sums[peer] += gradient(divergence(own, logits, temperature, kl), images)
    return {peer: round(misalignment(own_sum, total), DECIMALS) for peer, total in sums.items()}  # as it is reported
