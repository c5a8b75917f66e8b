"""Learning from other sites' predictions: distillation, its baseline VPDL, and how a site of CYCle scores a peer.

In vanilla private decentralised learning (Tastan et al., CYCle, 2025, Section 2.1) every site keeps its own model and
learns from all others' predictions alike: λ_(n,k) = 1 / (N - 1), all sites share with all in every round. After
CaPriDe learning (Tastan et al. 2023), without its encryption. CYCle scores a peer by gradients of the site's own model
(Eq. 4), or by Dice with its own masks.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from torch.nn.functional import logsigmoid

from fedmerit.contract.capabilities import ExtraLoss, LearnsFromPeers, PeerTerm, PeerView, Sharing
from fedmerit.contract.method import DECIMALS, Layout, Method, MethodSummary, Needs, Outcome, Reports
from fedmerit.schema.rules import About, Choice, Count, Number

DIRECTIONS = ("own_peer", "peer_own")  # of `divergence`
EXCHANGES = ("relay", "peer")  # how a site's model reaches its peers


def divergence(own: Tensor, peer: Tensor, temperature: float, kl: str) -> Tensor:
    """() KL divergence of two predictions of the same pixels, mean over pixels, labels and images.

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
    predict: Callable[[str, Tensor], Tensor | None], weights: Mapping[str, float], temperature: float, kl: str
) -> ExtraLoss:
    """Σ_k λ_(n,k) L_DL(n,k) (Eq. 2, Tastan et al. 2025); the term of a peer that is not available is 0."""

    def loss(images: Tensor, own: Tensor) -> Tensor:
        total = own.new_zeros((), dtype=torch.float32)
        for peer, weight in weights.items():
            logits = predict(peer, images)
            if logits is not None:
                total = total + weight * divergence(own, logits, temperature, kl)
        return total

    return loss


@dataclass(frozen=True)
class VPDLState:
    """One model per site, and the coming round."""

    models: Tensor  # (n, d)
    round: Tensor  # ()


@dataclass(frozen=True)
class VPDL(Method, LearnsFromPeers):
    """Distillation from all peers, of equal weight."""

    # tuned on Dice: docs/studies/cycle-shifted-masks.md
    lambda0: Annotated[float, Number(0), About("λ0; the paper: 50, of images of one class")] = 1.0
    T: Annotated[float, Number(above=0), About("temperature, of CaPriDe")] = 5.0
    warmup: Annotated[
        int, Count(), About("rounds of local training before; a quarter of 30, as the paper's 25 of 100")
    ] = 8
    kl: Annotated[str, Choice(DIRECTIONS), About("KL(own || peer), or peer_own: KL(peer || own)")] = "own_peer"
    exchange: Annotated[str, Choice(EXCHANGES), About("of models: by the server; peer: from site to site")] = "relay"
    has_site_models: ClassVar[bool] = True
    sums_updates: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="none",
        weights="none",
        download="own model; to learn from, the models of all peers",
        site_work="training with distillation from peers",
        paper="baseline of Tastan et al. 2025",
    )

    @property
    def needs(self) -> Needs:
        """A collaborative round."""
        return Needs(rounds=self.warmup + 1, why=f"with warmup={self.warmup} no site learns from another before")

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> VPDLState:
        """All sites start from one model (d,)."""
        return VPDLState(model.repeat(num_sites, 1), torch.tensor(0))

    def sharing(self, state: VPDLState) -> Sharing | None:
        """All sites with all, after the warm-up."""
        if state.round < self.warmup:
            return None
        n = len(state.models)
        weights = torch.full((n, n), 1 / max(1, n - 1), dtype=torch.float64)
        return Sharing(self.probability(weights, int(state.round)), weights)

    def probability(self, weights: Tensor, round: int) -> Tensor:
        """Always."""
        return torch.ones_like(weights)

    def round(self, state: VPDLState, updates: Tensor, reports: Reports) -> tuple[VPDLState, Outcome]:
        """``updates`` (n, d): θ_n ← θ_n + Δ_n. No contribution is known."""
        models = state.models + updates
        outcome = Outcome.without_credit(reports, models, pairs=dict(reports.pairs))
        return VPDLState(models, state.round + 1), outcome

    def learn_from(self, view: PeerView) -> PeerTerm:
        """λ0 Σ_k λ_(n,k) L_DL(n,k), to add to the loss (Eqs. 1 and 2)."""
        weights = {peer: self.lambda0 * weight for peer, weight in view.weights.items()}
        return PeerTerm(distillation(view.predict, weights, self.T, self.kl))


ROUNDING = 1e-6  # of a distillation gradient, relative to that of the site's own loss
LEAST = 1e-6  # of the Dice that a peer's is compared to
OWN_LOSSES = ("ce", "ce_T", "training")  # in Eq. 4

Loss = Callable[[Tensor, Tensor], Tensor]  # of logits and masks (batch, labels, h, w), the mean over the batch


def own_loss(name: str, temperature: float, view: PeerView) -> Loss:
    """One of `OWN_LOSSES`; that of ``ce_T`` is of sigmoid(z / T), as the distillation loss is."""
    if name == "training":
        return view.loss
    return cross_entropy if name == "ce" else lambda logits, masks: cross_entropy(logits / temperature, masks)


def agreements(view: PeerView, peers: Collection[str]) -> dict[str, float]:
    """min(1, Dice of each peer's predictions / Dice of the site's own), both with its own validation masks.

    1 if only the site's own are worth nothing; peers that are not available are left out.
    """
    own = view.validation_dice(None) or 0.0
    dice = {peer: view.validation_dice(peer) for peer in peers}
    return {peer: agreement(value, own) for peer, value in dice.items() if value is not None}


def agreement(peer: float, own: float) -> float:
    """Of two Dice, 0 to 1."""
    return round(min(1.0, peer / max(own, LEAST)), DECIMALS)  # as reported


def misalignment(own: Tensor, peer: Tensor) -> float:
    """s = (1 - cos) / 2, 0 to 1, of the gradients (d,) of the site's own loss and of distillation (Eq. 4).

    A zero gradient has a cosine of 0, and so has the rounding of one in float32, as of a peer of the same predictions.
    """
    own, peer = own.double(), peer.double()
    own_norm, peer_norm = float(own.norm()), float(peer.norm())
    known = peer_norm > ROUNDING * own_norm > 0
    cosine = float(own @ peer) / (own_norm * peer_norm) if known else 0.0
    return (1 - min(1.0, max(-1.0, cosine))) / 2


def misalignments(
    view: PeerView, peers: Collection[str], batches: int, temperature: float, kl: str, loss: Loss = cross_entropy
) -> dict[str, float]:
    """s_(n,k) of each peer, at the current θ_n; peers that are not available are left out.

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
    return {peer: round(misalignment(own_sum, total), DECIMALS) for peer, total in sums.items()}  # as reported
