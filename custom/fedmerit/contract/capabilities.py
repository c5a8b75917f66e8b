"""What only some methods do beside `Method.round`: one class per capability, from which a method derives.

`capabilities` reads a method once; engine and wire ask its result for one capability or another.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Protocol

from torch import Tensor, device, dtype, nn

from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import Method, Range, Reports, SiteView


class PoolsImages:
    """A method with one training on the images of all sites, which one machine holds.

    Every site's update is that of it.
    """


@dataclass(frozen=True)
class Candidates:
    """A set of k models to evaluate, as mixtures of m vectors."""

    models: Tensor  # (m, d)
    mixtures: Tensor  # (k, m) float64, rows sum to 1: what is evaluated is ``mixtures @ models``
    shares: Tensor  # (k, n) float64: whose trained BatchNorm statistics, averaged; a row of 0: those sent out, as
    # `received` says
    bins: int = 0  # of the histogram of losses per image; 0: none is wanted
    received: Tensor | None = None  # (k, n) likewise of the statistics that sites received; None: the mean of all
    coalitions: bool = False  # whether they are all coalitions of the present sites, in the order of `games.shapley`
    soft: bool = False  # whether soft Dice is measured, by patient; the first is without a part of each present site,
    # the last the new model, each other the first with the part of one of them, in order


class EvaluatesCandidates:
    """The server validation set evaluates candidate models before a round ends."""

    soft: ClassVar[bool] = False  # whether candidates are `Candidates.soft`

    @property
    def loss_bins(self) -> int:
        """The number of bins of all histograms that the method asks for: a site makes no other histogram of losses."""
        return 0

    def candidates(self, state: Any, updates: Tensor, reports: Reports) -> Candidates | None:
        """Return the models to evaluate before `Method.round`, which has the same arguments; None: none this time.

        `Reports.candidates` has the results then.
        """
        raise NotImplementedError

    def most_candidates(self, sites: int) -> int:
        """Return the most candidates in a round with so many ``sites``: a site evaluates no more."""
        return sites


@dataclass(frozen=True)
class ImportanceRequest:
    """A model whose neurons' importance a method needs before a round, measured on the server validation set."""

    model: Tensor  # (d,)
    order: str  # "exact": the loss without each neuron; "taylor": to first order
    images: int  # at most so many of every site; 0: on none, the importance of all neurons is 0


class AllocatesNeurons:
    """A method in which each site holds a part of the model's neurons."""

    def importance_schedule(self, round: int) -> tuple[str, int] | None:
        """Order and images of the `importance_request` before a round, in any state; None: there is none.

        A site measures nothing else.
        """
        raise NotImplementedError

    def importance_request(self, state: Any) -> ImportanceRequest | None:
        """Return what has to be measured before the next round goes out; None: nothing this time."""
        raise NotImplementedError

    def allocate(self, state: Any, importance: Tensor, keeping: Tensor | None = None) -> tuple[Any, Tensor, Tensor]:
        """Return the submodels of the next rounds, after an `importance_request`.

        Args:
            state: as that had it.
            importance: (H,) float64, the rise of the loss without each neuron, mean over images; signed.
            keeping: (n,) bool, the sites that keep model and neurons, whatever they earn; None: no site.

        Returns:
            The state, (n, d) models to start from, and (n, H) bool, the neurons that each site holds. What it does
            not hold is zero in its model, and stays so in training.
        """
        raise NotImplementedError


Penalty = Callable[[Tensor], Tensor]  # of the trainable parameters (d,), on their device: a scalar added to the loss


def towards(point: Tensor, strength: float) -> Penalty:
    """Return strength/2 ‖w - point‖², which keeps a model near ``point`` (d,)."""

    @cache  # on a GPU it is copied once, not for every step
    def placed(where: device, kind: dtype) -> Tensor:
        return point.to(where, kind)

    return lambda w: strength / 2 * (w - placed(w.device, w.dtype)).square().sum()


@dataclass(frozen=True)
class Trained:
    """The result of a training."""

    parameters: Tensor  # (d,), on the CPU
    buffers: Buffers
    loss: float  # mean of the batches, without a penalty
    steps: int  # K, of the optimiser
    learning_rate: float  # η_l


class Train(Protocol):
    """The site's training of a round, with its own images, seed and settings."""

    def __call__(
        self, start: Tensor, buffers: Buffers | None = None, penalty: Penalty | None = None, shift: Tensor | None = None
    ) -> Trained:
        """Train from ``start`` (d,).

        Args:
            start: where to begin.
            buffers: the BatchNorm statistics to begin with; None: those received.
            penalty: added to the loss of every batch.
            shift: (d,) added to the gradient of every step.
        """


@dataclass(frozen=True)
class TrainingView:
    """A view of what a site has before it trains."""

    received: Tensor  # (d,) w_t
    buffers: Buffers  # received with it
    vectors: Mapping[str, Tensor]  # (d,) each, sent with it: `Outcome.vectors`; zeros in round 0
    kept: Mapping[str, Tensor]  # what `LocalResult.kept` of the site's last round held
    own: tuple[Tensor, Buffers] | None  # likewise the site's own model (d,), and its statistics; None: none yet
    train: Train


@dataclass(frozen=True)
class LocalResult:
    """The result of a site's round."""

    trained: Trained  # its update is this, minus what it received
    vectors: Mapping[str, Tensor] = field(default_factory=dict)  # (d,) each, to send beside the update
    kept: Mapping[str, Tensor] = field(default_factory=dict)  # for its next round; stays at the site
    own: Trained | None = None  # a model of its own, which it tests and which is its final one; stays at the site


class TrainsLocally:
    """A method whose sites train in another way.

    Other terms of the loss, a second vector either way, a second model.
    """

    vectors: ClassVar[tuple[str, ...]] = ()  # names of what is sent beside updates: keys of `Reports.vectors`
    keeps_own_model: ClassVar[bool] = False  # whether `LocalResult.own` is there; the server never has it
    optimizers: ClassVar[tuple[str, ...]] = ()  # that it works with, then without momentum; empty: any

    def train(self, view: TrainingView) -> LocalResult:
        """Train for one round at a site."""
        raise NotImplementedError


ExtraLoss = Callable[[Tensor, Tensor], Tensor]  # of images and a network's logits of them, added to the loss


@dataclass(frozen=True)
class Sharing:
    """A plan of whose predictions reach whom in the coming round."""

    probability: Tensor  # (n, n) float64: that row shares with column, 0 to 1
    weights: Tensor  # (n, n) float64: λ that row has given the distillation loss of column; NaN: none yet


@dataclass(frozen=True)
class PeerView:
    """A view of what site n has before it learns from its peers.

    ``predict`` hides the exchange of models: it gives a peer's predictions on the site's images; None: not available.
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
    """A term that a site takes from its peers into a round's training."""

    loss: ExtraLoss
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # what it says of peers, by quantity, name
    weights: Mapping[str, float] = field(default_factory=dict)  # λ_(n,k) from now on, if it may change


class LearnsFromPeers:
    """A method whose sites learn from each other's predictions."""

    exchange: str  # of models: "relay" by the server, or "peer": from site to site, of which the server sees none
    peer_ranges: ClassVar[Mapping[str, Range]] = {"available": (0, 1)}  # of all that `peer_quantities` may name

    @property
    def peer_quantities(self) -> Mapping[str, Range]:
        """The ranges of what a site reports of the peers that shared with it: keys of `Reports.pairs`.

        "available" is 1 if a peer's predictions could be used; every other quantity is one of `learn_from`.
        """
        return self.peer_ranges

    def sharing(self, state: Any) -> Sharing | None:
        """Return which site shares with which in the round after ``state``; None: none."""
        raise NotImplementedError

    def probability(self, weights: Tensor, round: int) -> Tensor:
        """Return (n, n) that a site shares in a round with a peer, by the ``weights`` (n, n) of its distillation
        losses.
        """
        raise NotImplementedError

    def learn_from(self, view: PeerView) -> PeerTerm:
        """Return the site half, if peers share with the site."""
        raise NotImplementedError


@dataclass(frozen=True)
class OwnUpdate:
    """A view of what a site knows of its own update in the model it receives."""

    previous: Tensor  # (d,) w_{t-1}
    trained: Tensor  # (d,) w_{t-1,i}, what it trained from w_{t-1}
    weight: float  # ρ_i, its weight in the aggregation that made w_t, in [0, 1)
    # of (d,) on its validation split, with the others' BatchNorm statistics; None: not known
    validation_dice: Callable[[Tensor], float | None]


class MeasuresLeaveOneOut:
    """A capability: each site measures the aggregate without its own update; under a guard, other sites measure it.

    The quantity is "minus_error", 1 - Dice of the model without the site.
    """

    measured_by_others: ClassVar[bool] = True  # whether under a guard what the others measure replaces what it reports

    @property
    def needs_others(self) -> bool:
        """Whether "minus_error" is the rise of the others' error above that of the model with all sites.

        Only a guard has the others measure it, so that a run needs one.
        """
        return False

    def measure(self, view: SiteView, own: OwnUpdate) -> dict[str, float]:
        """Return the site half: more of `Method.asks`, if the site's update of the round before is part of w_t."""
        raise NotImplementedError


class HasGuardedForm:
    """A method with a quantity that pays a site that lies, or that works against the others."""

    @property
    def guarded_form(self) -> Method:
        """The form of the method for a guarded run, without such a quantity."""
        raise NotImplementedError


@dataclass(frozen=True)
class Capabilities:
    """A method's capabilities: the method itself in each field whose capability it has, else None."""

    pools_images: PoolsImages | None
    candidates: EvaluatesCandidates | None
    neurons: AllocatesNeurons | None
    local_training: TrainsLocally | None
    peers: LearnsFromPeers | None
    leave_one_out: MeasuresLeaveOneOut | None
    guarded: HasGuardedForm | None

    @property
    def loss_bins(self) -> int:
        """The number of bins of `EvaluatesCandidates.loss_bins`; 0 without candidates."""
        return self.candidates.loss_bins if self.candidates else 0

    @property
    def vectors(self) -> tuple[str, ...]:
        """The names of what sites send beside their updates, of `TrainsLocally.vectors`."""
        return self.local_training.vectors if self.local_training else ()

    @property
    def keeps_own_model(self) -> bool:
        """Whether each site keeps a model of its own, which the server never has."""
        return self.local_training is not None and self.local_training.keeps_own_model

    @property
    def optimizers(self) -> tuple[str, ...]:
        """The only optimizers that the method works with; empty: any."""
        return self.local_training.optimizers if self.local_training else ()

    @property
    def peer_quantities(self) -> Mapping[str, Range]:
        """The ranges of what sites report of peers, of `LearnsFromPeers.peer_quantities`."""
        return self.peers.peer_quantities if self.peers else {}

    @property
    def exchanges_directly(self) -> bool:
        """Whether sites ask each other for their models, which the server then never sees."""
        return self.peers is not None and self.peers.exchange == "peer"


def capabilities(method: Method) -> Capabilities:
    """Return what ``method`` can do beside its rounds."""

    def having(capability: type[Any]) -> Any:
        return method if isinstance(method, capability) else None

    return Capabilities(
        pools_images=having(PoolsImages),
        candidates=having(EvaluatesCandidates),
        neurons=having(AllocatesNeurons),
        local_training=having(TrainsLocally),
        peers=having(LearnsFromPeers),
        leave_one_out=having(MeasuresLeaveOneOut),
        guarded=having(HasGuardedForm),
    )
