"""The contract of a method: what it is told (Reports), what it gives (Outcome), what it is (Method).

n sites, d trainable parameters. Rows are in site-name order, always; reductions are in float64.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from fedmerit.vectors import gram, share

DECIMALS = 6  # of the numbers a site reports: more say nothing, and could say anything


@dataclass(frozen=True)
class Layout:
    """How the vector of trainable parameters is made up."""

    tensor_sizes: tuple[int, ...]  # elements of each tensor in the vector, in order; they sum to d
    owners: Tensor  # (d,) int32: the neuron that each parameter belongs to, -1: none

    @classmethod
    def of(cls, *tensor_sizes: int) -> "Layout":
        """Tensors without neurons."""
        return cls(tensor_sizes, torch.full((sum(tensor_sizes),), -1, dtype=torch.int32))


@dataclass(frozen=True)
class Reports:
    """What the sites of one round said, beside their updates. Rows of absent sites hold zero or NaN."""

    num_samples: Tensor  # (n,) training images, float64
    present: Tensor  # (n,) bool: whose update counts this round
    values: Mapping[str, Tensor] = field(default_factory=dict)  # what the method asked for, (n,); NaN: not available
    candidates: "CandidateResults | None" = None  # of the method's `candidates`, where it has any
    products: Tensor | None = None  # (n, n) of the updates, as `gram` gives them, where they are known already
    pairs: Mapping[str, Tensor] = field(default_factory=dict)  # (n, n) what row says of column; NaN: nothing

    @property
    def data_share(self) -> Tensor:
        """(n,) share of the present sites' training images; 0 for absent sites."""
        return share(self.num_samples, self.present)


@dataclass(frozen=True)
class Outcome:
    """What one round gave."""

    contribution: Tensor  # (n,) this round's estimate; signed, higher is better; NaN for absent sites
    reputation: Tensor  # (n,) contribution remembered over rounds
    weights: Tensor  # (n,) aggregation weights, sum to 1, zero allowed
    models: Tensor  # (d,) one global model, or (n, d) one per site: where each starts the next round
    quantities: Mapping[str, Tensor] = field(default_factory=dict)  # (n,) each; further columns for results.csv
    pairs: Mapping[str, Tensor] = field(default_factory=dict)  # (n, n) likewise, what row holds of column; NaN: nothing
    statistics: str | None = None  # of BatchNorm: "shared", "own" or "initial"; None: as the method's `shares_buffers`


@dataclass(frozen=True)
class Survey:
    """A model whose neurons have to be weighed before a round, on the server validation set."""

    model: Tensor  # (d,)
    order: str  # "exact": the loss without each neuron; "taylor": to first order
    images: int  # at most so many of every site; 0: on none, all neurons weigh nothing


@dataclass(frozen=True)
class Candidates:
    """k models to evaluate on the server validation set before a round ends, as mixtures of m vectors."""

    models: Tensor  # (m, d)
    mixtures: Tensor  # (k, m) float64, rows sum to 1: what is evaluated is ``mixtures @ models``
    shares: (
        Tensor  # (k, n) float64: whose trained BatchNorm statistics it gets, averaged; a row of 0: the mean sent out
    )
    bins: int = 0  # of the histogram of losses per image; 0: none is wanted


@dataclass(frozen=True)
class CandidateResults:
    """What the server validation set said of the k models of `Candidates`."""

    dice: Tensor  # (k,) mean over all its cases and labels, 0 to 1
    losses: Tensor  # (k, bins) images by soft Dice loss, in equal bins on [0, 1]


@dataclass(frozen=True)
class OwnPart:
    """What a site knows of its own update in the model it receives."""

    previous: Tensor  # (d,) w_{t-1}
    trained: Tensor  # (d,) w_{t-1,i}, what it trained from w_{t-1}
    weight: float  # ρ_i, its weight in the aggregation that made w_t, in [0, 1)
    validation_dice: Callable[[Tensor], float]  # of (d,) on its validation split, with the others' BatchNorm statistics


@dataclass(frozen=True)
class SiteView:
    """What a site holds when it receives w_t."""

    received: Tensor  # (d,) w_t
    training_losses: Callable[[], Tensor]  # (images,) soft Dice loss of w_t on each of its training images, 0 to 1
    own: OwnPart | None = None  # where its own update of the round before is part of w_t


@dataclass(frozen=True)
class Sharing:
    """Whose predictions reach whom in the coming round, of methods whose sites learn from each other."""

    probability: Tensor  # (n, n) float64: that row shares with column, 0 to 1
    weights: Tensor  # (n, n) float64: λ that row has given the distillation loss of column; NaN: none yet


ExtraLoss = Callable[[Tensor, Tensor], Tensor]  # of images and a network's logits of them, added to the loss


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


@dataclass(frozen=True)
class Lesson:
    """What a site takes from its peers into a round's training."""

    loss: ExtraLoss
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # what it says of peers, by quantity, name
    weights: Mapping[str, float] = field(default_factory=dict)  # λ_(n,k) from now on, where that may change


RANGES: Mapping[str, tuple[float, float]] = {  # of `Reports.values`; "loss_bin" of loss_bin_0, loss_bin_1, ...
    "cosine": (-1.0, 1.0),
    "minus_error": (0.0, 1.0),
    "loss": (0.0, 1.0),
    "loss_bin": (0.0, 1e9),
    "misalignment": (0.0, 1.0),
    "available": (0.0, 1.0),
}


def allowed(name: str) -> tuple[float, float]:
    """The range of a value that sites report, whatever number its name ends with."""
    return RANGES[name.rstrip("_0123456789")]


class Method(Protocol):
    """One paper's mechanism: frozen parameters, a pure server half, and what it asks of sites."""

    needs_others: ClassVar[bool] = True  # False where a site may train all alone
    unfilterable: ClassVar[str] = ""  # why no privacy filter may change what sites send; "" where one may

    @property
    def shares_buffers(self) -> bool:
        """Whether all sites get the mean of the sites' BatchNorm statistics; if not, each keeps its own."""
        return True

    @property
    def sums_only(self) -> bool:
        """Whether a weighted sum of the updates, by weights that depend on no update, is all that the server needs.

        Then updates may be encrypted, and `round` gets them, and the model, with d = 0.
        """
        return False

    @property
    def asks(self) -> tuple[str, ...]:
        """What `report` returns: keys of `Reports.values`, named in `RANGES`."""
        return ()

    @property
    def least_rounds(self) -> int:
        """The fewest rounds in which the method comes to anything."""
        return 1

    @property
    def asks_of_peers(self) -> tuple[str, ...]:
        """What a site says of those that shared with it: keys of `Reports.pairs`, named in `RANGES`.

        "available" is 1 where a peer's predictions could be used; every other quantity is one of `learn_from`.
        """
        return ()

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> Any:
        """The state before round 0, a frozen dataclass of tensors and numbers.

        Args:
            model: (d,) where all sites start.
            num_sites: n.
            layout: of that vector.

        Raises:
            ValueError: the method cannot work with so many sites.
        """
        ...

    def survey(self, state: Any) -> Survey | None:
        """The model whose neurons have to be weighed before the next round goes out."""
        return None

    def allocate(self, state: Any, importance: Tensor) -> tuple[Any, Tensor, Tensor]:
        """The submodels of the next rounds, after a `survey`.

        Args:
            state: as that had it.
            importance: (H,) float64, what the loss rises by without each neuron, the mean over images; signed.

        Returns:
            The state, (n, d) models to start from, and (n, H) bool, the neurons that each site holds. What it does
            not hold is zero in its model, and stays so in training.
        """
        raise RuntimeError(f"{type(self).__name__} has no survey")

    def candidates(self, state: Any, updates: Tensor, reports: Reports) -> Candidates | None:
        """What has to be evaluated on the server validation set before `round`, whose arguments these are."""
        return None

    def round(self, state: Any, updates: Tensor, reports: Reports) -> tuple[Any, Outcome]:
        """One aggregation. ``updates`` (n, d) float32: trained minus received, zero rows for absent sites."""
        ...

    def report(self, view: SiteView) -> dict[str, float]:
        """The site half: the quantities named in `asks`, those of them that are available."""
        return {}

    @property
    def models_stay(self) -> bool:
        """Whether a site's model never comes to the server, and those that learn from it ask the site for it."""
        return False

    def probability(self, weights: Tensor, round: int) -> Tensor:
        """That a site shares in a round with a peer to whose distillation loss it has given ``weights``; likewise."""
        return torch.zeros_like(weights)

    def sharing(self, state: Any) -> Sharing | None:
        """Who shares with whom in the round that ``state`` is the state before; None: nobody with anybody."""
        return None

    def learn_from(self, view: PeerView) -> Lesson:
        """The site half where `sharing` has peers reach the site; by default it takes nothing from them."""
        return Lesson(lambda images, own: own.new_zeros(()))


def require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """`ValueError` where a parameter is none of its choices."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(choices)}")


def inner_products(updates: Tensor, reports: Reports) -> Tensor:
    """(n, n) `gram` of a round's ``updates`` (n, d): the server's, computed once, where ``reports`` carry it."""
    return gram(updates) if reports.products is None else reports.products
