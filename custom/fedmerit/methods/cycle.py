"""CYCle: Tastan et al., CYCle: Choosing Your Collaborators Wisely to Enhance Collaborative Fairness, 2025.

Every site n keeps its own model. It learns from the predictions of peer k as far as k's reputation r_(n,k) goes: how
well k segments n's images or, in the paper, how well the gradient of learning from k aligns with that of n's masks
(Eqs. 4 and 5). It shares its own predictions with k with probability r_(n,k) (Section 4.2).

Its baseline is vanilla private decentralised learning (VPDL, Section 2.1): every site learns from all others'
predictions alike, λ_(n,k) = 1 / (N - 1), and all sites share with all in every round. Both follow CaPriDe learning
(Tastan et al. 2023), without its encryption.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from torch.nn.functional import logsigmoid

from fedmerit.contract.capabilities import ExtraLoss, LearnsFromPeers, PeerTerm, PeerView, Sharing
from fedmerit.contract.method import DECIMALS, Layout, Method, MethodSummary, Needs, Outcome, Range, Reports
from fedmerit.contract.vectors import aggregate
from fedmerit.schema.rules import About, Choice, Count, Number

DIRECTIONS = ("own_peer", "peer_own")  # of `divergence`
EXCHANGES = ("relay", "peer")  # how a site's model reaches its peers


def divergence(own: Tensor, peer: Tensor, temperature: float, kl: str) -> Tensor:
    """Return () KL divergence of two predictions of the same pixels, mean over pixels, labels and images.

    Predictions are p = sigmoid(z / T), separately for each label. No factor T² compensates for the temperature.

    Args:
        own: (batch, labels, h, w) logits z_n.
        peer: likewise z_k.
        temperature: T.
        kl: one of `DIRECTIONS`: "own_peer", KL(p_n || p_k); "peer_own", KL(p_k || p_n).
    """
    first, second = (own, peer) if kl == "own_peer" else (peer, own)
    first, second = first.float() / temperature, second.float() / temperature
    probability = first.sigmoid()
    shown = probability * (logsigmoid(first) - logsigmoid(second))
    absent = (1 - probability) * (logsigmoid(-first) - logsigmoid(-second))
    return (shown + absent).mean()


def distillation(
    predict: Callable[[str, Tensor], Tensor | None],
    weights: Mapping[str, float],
    temperature: float,
    kl: str = "own_peer",
) -> ExtraLoss:
    """Return Σ_k λ_(n,k) L_DL(n,k) (Eq. 2, Tastan et al. 2025); the term of a peer that is not available is 0."""

    def loss(images: Tensor, own: Tensor) -> Tensor:
        total = own.new_zeros((), dtype=torch.float32)
        for peer, weight in weights.items():
            logits = predict(peer, images)
            if logits is not None:
                total = total + weight * divergence(own, logits, temperature, kl)
        return total

    return loss


ROUNDING = 1e-6  # of a distillation gradient, relative to that of the site's own loss
LEAST = 1e-6  # of the Dice that a peer's is compared to
SCORE_BATCHES = 8  # of training images, to score peers on


SCORES = {"gradients": "misalignment", "agreement": "agreement"}  # what a site reports of a peer, by `CYCle.score`


@dataclass(frozen=True)
class CYCleState:
    """The sites' models and their reputations of each other."""

    models: Tensor  # (n, d)
    reputation: Tensor  # (n, n) r_(n,k), row n; NaN if n has never scored k
    estimate: Tensor  # (n, n) r̃_(n,k) of the last time n scored k
    round: Tensor  # () the coming round


@dataclass(frozen=True)
class DistillsFromPeers(Method, LearnsFromPeers):
    """A method without a global model: after a warm-up each site also learns from its peers' predictions."""

    # tuned on Dice: docs/studies/cycle-shifted-masks.md
    lambda0: Annotated[float, Number(0), About("λ0; the paper: 50, of images of one class")] = 1.0
    T: Annotated[float, Number(above=0), About("temperature, of CaPriDe; not given in the paper")] = 5.0
    warmup: Annotated[
        int, Count(), About("rounds before sites learn from each other; 8 of 30, as the paper's 25 of 100")
    ] = 8
    exchange: Annotated[str, Choice(EXCHANGES), About("of models: by the server; peer: from site to site")] = "relay"
    has_site_models: ClassVar[bool] = True
    sums_updates: ClassVar[bool] = True

    @property
    def together(self) -> int:
        """The first round in which sites learn from each other."""
        return self.warmup

    @property
    def needs(self) -> Needs:
        """A collaborative round."""
        return Needs(rounds=self.together + 1, why=f"with warmup={self.warmup} no site learns from another before")


@dataclass(frozen=True)
class CYCle(DistillsFromPeers):
    """A method whose sites do `learn_from`, and whose server does all other steps.

    Scoring is due in the first collaborative round and every R rounds after it. All sites share for it, and a site
    without a reputation of a peer shares with that peer. A warm-up by FedAvg ends with a round of local training, since
    equal models teach each other nothing.

    Raises:
        ValueError: a parameter does not follow its rule, ``tau_opt`` is not below ``tau_max``, or sites that keep their
            models from the server have it average them.
    """

    kl: Annotated[str, Choice(DIRECTIONS), About("KL(own || peer), or peer_own: KL(peer || own)")] = "own_peer"
    alpha: Annotated[float, Number(0, below=1), About("weight of the past in a reputation r")] = 0.5
    tau_opt: Annotated[float, Number(0, below=1), About("misalignment up to which r̃ is 1")] = 0.25
    tau_max: Annotated[float, Number(high=1, above=0), About("misalignment from which r̃ is 0")] = 0.75
    R: Annotated[int, Count(1), About("collaborative rounds from one scoring to the next; not given in the paper")] = 5
    warmup_by: Annotated[str, Choice(("own", "fedavg")), About("as one model; own, the paper's: local training")] = (
        "fedavg"
    )
    score: Annotated[
        str,
        Choice(tuple(SCORES)),
        About(
            "Score of a peer: r̃ = its validation Dice by the site's own; gradients, the paper's: h of how they "
            "align (Eqs. 4, 5)."
        ),
    ] = "agreement"
    peer_ranges: ClassVar[Mapping[str, Range]] = {"available": (0, 1), "misalignment": (0, 1), "agreement": (0, 1)}
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

    def scores(self, round: int) -> bool:
        """Return whether all sites score all peers in a round: t mod R = 0, t counted from the first one together."""
        return round >= self.together and (round - self.together) % self.R == 0

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> CYCleState:
        """Return the state before round 0: all sites start from one model (d,)."""
        unknown = torch.full((num_sites, num_sites), torch.nan, dtype=torch.float64)
        return CYCleState(model.repeat(num_sites, 1), unknown, unknown, torch.tensor(0))

    def sharing(self, state: CYCleState) -> Sharing | None:
        """Return adaptive sharing (Algorithm 1, lines 13 to 21, with the r_(n,k) that the text gives n)."""
        if state.round < self.together:
            return None
        return Sharing(self.probability(state.reputation, int(state.round)), state.reputation)

    def probability(self, weights: Tensor, round: int) -> Tensor:
        """Return r_(n,k) of what n holds of k; 1 in rounds of scoring, and if n holds nothing of k yet."""
        return torch.ones_like(weights) if self.scores(round) else weights.nan_to_num(1.0)

    def round(self, state: CYCleState, updates: Tensor, reports: Reports) -> tuple[CYCleState, Outcome]:
        """Aggregate ``updates`` (n, d): θ_n ← θ_n + Δ_n, and the reputations from this round's scores."""
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
        """Return the state with other models; a warm-up by FedAvg continues from the model of all."""
        as_one = self.warmup_by == "fedavg" and state.round < self.warmup
        return state if as_one else super().restart_from(state, models)

    def learn_from(self, view: PeerView) -> PeerTerm:
        """Score the peers if that is due (Algorithm 1, lines 2 to 12), then return λ0 Σ_k r_(n,k) L_DL(n,k)."""
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
        """Return r̃, 0 to 1, of the scores of peers; NaN stays NaN."""
        return said if self.score == "agreement" else current_reputation(said, self.tau_opt, self.tau_max)

    def _score(self, view: PeerView, due: list[str]) -> dict[str, float]:
        if self.score == "agreement":
            return agreements(view, due)
        return misalignments(view, due, SCORE_BATCHES, self.T, self.kl)


def current_reputation(misalignment: Tensor, tau_opt: float, tau_max: float) -> Tensor:
    """Return r̃ = h(s), 0 to 1, of ``misalignment`` s, 0 to 1 (Eq. 5); NaN stays NaN."""
    return ((misalignment - tau_max) / (tau_opt - tau_max)).clamp(0, 1)


def remembered(reputation: Tensor, now: Tensor, alpha: float) -> Tensor:
    """Return r = α r + (1-α) r̃; r̃ if there was none, r if ``now`` r̃ is NaN: not scored, or not available."""
    updated = torch.where(reputation.isnan(), now, alpha * reputation + (1 - alpha) * now)
    return torch.where(now.isnan(), reputation, updated)


def average_holders(values: Tensor) -> Tensor:
    """Return (n,) mean of each column of (n, n), NaN left out; 0 if there is nothing else."""
    return values.nanmean(dim=0).nan_to_num(0.0)


def agreements(view: PeerView, peers: Collection[str]) -> dict[str, float]:
    """Return min(1, Dice of each peer's predictions / Dice of the site's own), both with its own validation masks.

    1 if only the site's own are worth nothing; peers that are not available are left out.
    """
    own = view.validation_dice(None) or 0.0
    dice = {peer: view.validation_dice(peer) for peer in peers}
    return {peer: agreement(value, own) for peer, value in dice.items() if value is not None}


def agreement(peer: float, own: float) -> float:
    """Return the smaller of 1 and the quotient of two Dice, 0 to 1."""
    return round(min(1.0, peer / max(own, LEAST)), DECIMALS)  # as reported


def misalignment(own: Tensor, peer: Tensor) -> float:
    """Return s = (1 - cos) / 2, 0 to 1, of the gradients (d,) of the site's own loss and of distillation (Eq. 4).

    A zero gradient has a cosine of 0, and so has the rounding of one in float32, as of a peer of the same predictions.
    """
    own, peer = own.double(), peer.double()
    own_norm, peer_norm = float(own.norm()), float(peer.norm())
    known = peer_norm > ROUNDING * own_norm > 0
    cosine = float(own @ peer) / (own_norm * peer_norm) if known else 0.0
    return (1 - min(1.0, max(-1.0, cosine))) / 2


def misalignments(
    view: PeerView, peers: Collection[str], batches: int, temperature: float, kl: str
) -> dict[str, float]:
    """Return s_(n,k) of each peer, at the current θ_n; peers that are not available are left out.

    The site's own loss is cross-entropy. Both gradients are of the mean over all images of ``batches`` batches, summed
    in float64.
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
        own_sum += gradient(cross_entropy(own, masks), images)
        for peer in list(sums):
            logits = view.predict(peer, images)
            if logits is None:
                del sums[peer]
            else:
                sums[peer] += gradient(divergence(own, logits, temperature, kl), images)
    return {peer: round(misalignment(own_sum, total), DECIMALS) for peer, total in sums.items()}  # as reported


@dataclass(frozen=True)
class VPDLState:
    """A state of one model per site and the coming round."""

    models: Tensor  # (n, d)
    round: Tensor  # ()


@dataclass(frozen=True)
class VPDL(DistillsFromPeers):
    """A distillation from all peers, of equal weight."""

    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="none",
        weights="none",
        download="own model; to learn from, the models of all peers",
        site_work="training with distillation from peers",
        paper="baseline of Tastan et al. 2025",
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> VPDLState:
        """Return the state before round 0: all sites start from one model (d,)."""
        return VPDLState(model.repeat(num_sites, 1), torch.tensor(0))

    def sharing(self, state: VPDLState) -> Sharing | None:
        """Return the sharing of all sites with all, or None during the warm-up."""
        if state.round < self.together:
            return None
        n = len(state.models)
        weights = torch.full((n, n), 1 / max(1, n - 1), dtype=torch.float64)
        return Sharing(self.probability(weights, int(state.round)), weights)

    def probability(self, weights: Tensor, round: int) -> Tensor:
        """Return probability 1: all sites always share."""
        return torch.ones_like(weights)

    def round(self, state: VPDLState, updates: Tensor, reports: Reports) -> tuple[VPDLState, Outcome]:
        """Aggregate ``updates`` (n, d): θ_n ← θ_n + Δ_n. No contribution is known."""
        models = state.models + updates
        outcome = Outcome.without_credit(reports, models, pairs=dict(reports.pairs))
        return VPDLState(models, state.round + 1), outcome

    def learn_from(self, view: PeerView) -> PeerTerm:
        """Return λ0 Σ_k λ_(n,k) L_DL(n,k), to add to the loss (Eqs. 1 and 2)."""
        weights = {peer: self.lambda0 * weight for peer, weight in view.weights.items()}
        return PeerTerm(distillation(view.predict, weights, self.T))
