"""Learning from other sites' predictions."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fedmerit.capabilities import ExtraLoss

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
