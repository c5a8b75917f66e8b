"""Methods whose sites learn from each other's predictions."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from torch import Tensor, nn

ExtraLoss = Callable[[Tensor, Tensor], Tensor]  # of images and a network's logits of them, added to the loss


@dataclass(frozen=True)
class Sharing:
    """Whose predictions reach whom in the coming round."""

    probability: Tensor  # (n, n) float64: that row shares with column, 0 to 1
    weights: Tensor  # (n, n) float64: λ that row has given the distillation loss of column; NaN: none yet


@dataclass(frozen=True)
class PeerView:
    """What site n holds when it is about to learn from its peers.

    ``predict`` is the interface behind which the exchange lies: whatever brings a peer's predictions on the site's
    images. It is None where they are not available.
    """

    round: int
    weights: Mapping[str, float]  # λ_(n,k) so far of each peer k that shares this round; NaN: none yet
    predict: Callable[[str, Tensor], Tensor | None]  # logits, without gradient, of a peer for (batch, channels, h, w)
    network: nn.Module  # θ_n, in eval mode
    batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]]  # so many of images and masks, the same in every round
    loss: Callable[[Tensor, Tensor], Tensor]  # that the site trains with, of logits and masks
    validation_dice: Callable[[str | None], float | None]  # 0 to 1, of a peer's predictions on the site's validation
    # images, of None its own; None: not available


@dataclass(frozen=True)
class PeerTerm:
    """What a site takes from its peers into a round's training."""

    loss: ExtraLoss
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # what it says of peers, by quantity, name
    weights: Mapping[str, float] = field(default_factory=dict)  # λ_(n,k) from now on, where that may change


class LearnsFromPeers:
    """The capability."""

    exchange: str  # of models: "relay" by the server, or "peer": from site to site, of which the server sees none

    @property
    def asks_of_peers(self) -> tuple[str, ...]:
        """What a site says of those that shared with it: keys of `Reports.pairs`, named in `RANGES`.

        "available" is 1 where a peer's predictions could be used; every other quantity is one of `learn_from`.
        """
        return ("available",)

    def sharing(self, state: Any) -> Sharing | None:
        """Who shares with whom in the round that ``state`` is the state before; None: nobody with anybody."""
        raise NotImplementedError

    def probability(self, weights: Tensor, round: int) -> Tensor:
        """That a site shares in a round with a peer to whose distillation loss it has given ``weights``; likewise."""
        raise NotImplementedError

    def learn_from(self, view: PeerView) -> PeerTerm:
        """The site half where `sharing` has peers reach the site."""
        raise NotImplementedError


def from_site_to_site(method: object) -> TypeGuard[LearnsFromPeers]:
    """Whether sites ask each other for their models, which the server then never sees."""
    return isinstance(method, LearnsFromPeers) and method.exchange == "peer"
