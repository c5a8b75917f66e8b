"""Sites that learn from each other: who shares with whom, and a peer's predictions where its model is at hand."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fedmerit import flat
from fedmerit.capabilities import Sharing
from fedmerit.configuration.run import Network
from fedmerit.seeds import random_seed
from fedmerit.trainers.monai_trainer.networks import build_network
from fedmerit.wire.inspection import check_model
from fedmerit.wire.messages import PeerModel


def shares_with(probability: float, seed: int, giver: str, receiver: str, round: int) -> bool:
    """Whether a site shares its model with another: z < ``probability``, z uniform, the same wherever it is drawn."""
    draw = torch.Generator().manual_seed(random_seed(seed, giver, "shares with", receiver, round))
    return float(torch.rand((), generator=draw, dtype=torch.float64)) < probability


def find_givers(sharing: Sharing, seed: int, sites: Sequence[str], receiver: int, round: int) -> list[int]:
    """The places in ``sites`` of those who share with the one at place ``receiver``, in order."""
    return [
        place
        for place, giver in enumerate(sites)
        if place != receiver
        and shares_with(float(sharing.probability[place, receiver]), seed, giver, sites[receiver], round)
    ]


UNREACHABLE = PeerModel(torch.empty(0), {}, math.nan)  # in the place of one that does not answer: no network fits it

AskPeer = Callable[[str, int], PeerModel | None]  # a peer's name and the round: its model, None where it shares none


class ModelExchange:
    """The predictions of peers that gave their models, made here: what an encrypted protocol would do without them.

    A peer whose model does not fit, or predicts what is no number, is not available for the rest of the round.

    Args:
        models: of the peers, by site name.
        own: the site's network, on the device to work on.
        network: what it is.
    """

    def __init__(self, models: Mapping[str, PeerModel], own: nn.Module, network: Network):
        like, buffers = flat.get_parameters(own), flat.get_buffers(own)
        device = next(own.parameters()).device
        self.faults: dict[str, str] = {}  # by peer, why it is not available
        self._networks = {}
        for peer, model in models.items():
            if fault := check_model(model.parameters, model.buffers, like, buffers, "model"):
                self.faults[peer] = fault
            else:
                self._networks[peer] = build_network(network, device).eval()
                flat.load(self._networks[peer], model.parameters, model.buffers)

    def find_network(self, peer: str) -> nn.Module | None:
        """The peer's network in eval mode, or None."""
        return self._networks.get(peer)

    @torch.no_grad()
    def predict(self, peer: str, images: Tensor) -> Tensor | None:
        """Logits (batch, labels, h, w) of ``peer`` for (batch, channels, h, w), or None."""
        if peer in self.faults:
            return None
        logits: Tensor = self._networks[peer](images)
        if not logits.isfinite().all():
            self.faults[peer] = "predictions with NaN or infinite entries"
            return None
        return logits
