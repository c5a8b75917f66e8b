"""How a site of CYCle scores a peer: by gradients of its own model (Eq. 4), or by Dice with its own masks."""

from collections.abc import Callable, Collection

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from fedmerit.capabilities import PeerView
from fedmerit.core import DECIMALS
from fedmerit.methods.vpdl import divergence

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
