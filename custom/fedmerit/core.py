"""The contract of a method: what it is told (Reports), what it gives (Outcome), what it is (Method).

n sites, d trainable parameters. Rows are in site-name order, always; reductions are in float64. What only some
methods do beside that, such as having candidate models evaluated, is a capability: `fedmerit.capabilities`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedmerit.parameters import Checked
from fedmerit.vectors import gram, share

DECIMALS = 6  # of the numbers a site reports: more say nothing, and could say anything


@dataclass(frozen=True)
class Layout:
    """How the vector of trainable parameters is made up."""

    tensor_sizes: tuple[int, ...]  # elements of each tensor in the vector, in order; they sum to d
    owners: Tensor  # (d,) int32: the neuron that each parameter belongs to, -1: none; all -1 if no neuron is allocated
    names: tuple[str, ...] = ()  # of those tensors; empty where they have none
    norms: tuple[bool, ...] = ()  # of those tensors: whether it is γ or β of a normalisation layer; empty: none is
    outputs: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))  # (labels, m) places in the
    # vector of the output layer's parameters, by the label whose logits they make

    @classmethod
    def of(cls, *tensor_sizes: int) -> "Layout":
        """Tensors without neurons or norms, the last of them the output layer of one label."""
        size = sum(tensor_sizes)
        outputs = torch.arange(size - tensor_sizes[-1], size)[None]
        return cls(tensor_sizes, torch.full((size,), -1, dtype=torch.int32), outputs=outputs)

    @property
    def in_norms(self) -> Tensor:
        """(d,) bool: the parameters of normalisation layers."""
        norms = torch.tensor(self.norms or [False] * len(self.tensor_sizes))
        return norms.repeat_interleave(torch.tensor(self.tensor_sizes))


@dataclass(frozen=True)
class CandidateResults:
    """What the server validation set said of k models."""

    dice: Tensor  # (k,) mean over all its cases and labels, 0 to 1
    losses: Tensor  # (k, bins) images by soft Dice loss, in equal bins on [0, 1]
    judged: Tensor | None = None  # (n, k) the same Dice by all but the site of the row, where sites judge each other


@dataclass(frozen=True)
class Reports:
    """What the sites of one round said, beside their updates. Rows of absent sites hold zero or NaN."""

    num_samples: Tensor  # (n,) training images, float64
    present: Tensor  # (n,) bool: whose update counts this round
    values: Mapping[str, Tensor] = field(default_factory=dict)  # what the method asked for, (n,); NaN: not available
    candidates: CandidateResults | None = None  # of the method's candidate models, where it has any
    products: Tensor | None = None  # (n, n) of the updates, as `gram` gives them, where they are known already
    pairs: Mapping[str, Tensor] = field(default_factory=dict)  # (n, n) what row says of column; NaN: nothing
    vectors: Mapping[str, Tensor] = field(default_factory=dict)  # (n, d) sent beside the updates, zero: absent

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
    statistics: str = "models"  # of BatchNorm: one for each model, a site's own or the mean; "shared": the mean, "own":
    # each site's, of one model too; "initial": those of the start
    vectors: Mapping[str, Tensor] = field(default_factory=dict)  # (d,), or (n, d): sent beside the models

    @classmethod
    def by_weights(cls, weights: Tensor, reports: Reports, models: Tensor, **further: Any) -> "Outcome":
        """Where weights are all that is said of sites: those present are credited with them, without a memory."""
        return cls(weights.where(reports.present, torch.nan), weights, weights, models, **further)


@dataclass(frozen=True)
class OwnUpdate:
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
    own: OwnUpdate | None = None  # where its own update of the round before is part of w_t
    validation_dice: float = 0.0  # of w_t on its validation split


RANGES: Mapping[str, tuple[float, float]] = {  # of `Reports.values`; "loss_bin" of loss_bin_0, loss_bin_1, ...
    "cosine": (-1.0, 1.0),
    "minus_error": (0.0, 1.0),
    "error": (0.0, 1.0),
    "loss": (0.0, 1.0),
    "loss_bin": (0.0, 1e9),
    "misalignment": (0.0, 1.0),
    "agreement": (0.0, 1.0),
    "available": (0.0, 1.0),
}


def allowed(name: str) -> tuple[float, float]:
    """The range of a value that sites report, whatever number its name ends with."""
    return RANGES[name.rstrip("_0123456789")]


@dataclass(frozen=True)
class About:
    """What the tables of methods say of one."""

    contribution: str  # what it is estimated by
    weights: str  # what updates are weighted by
    download: str
    site_work: str
    paper: str


@dataclass(frozen=True)
class Needs:
    """What a run has to be for a method to work."""

    sites: int = 2  # the fewest
    rounds: int = 1  # the fewest in which the method comes to anything
    why: str = ""  # so many, where that is more than one
    without_each: bool = False  # "minus_error", of the model without a site: a guard has it measured by the others
    others_lose: bool = False  # and it is by how much their error rises above that of the model with it
    sums_only: bool = False  # weights depend on no update: updates may be encrypted, `round` gets them with d = 0
    unfiltered: str = ""  # why no privacy filter may change what sites send; "" where one may


@dataclass(frozen=True)
class Method(Checked):
    """One paper's mechanism: a frozen dataclass of parameters, a pure server half, and what it asks of sites."""

    about: ClassVar[About]
    read_by_variant: ClassVar[tuple[str, ...]] = ()  # parameters that only `registry.VARIANTS` of it follow
    own_statistics: ClassVar[bool] = False  # whether its outcomes have ``statistics`` "own"

    def __post_init__(self) -> None:
        super().__post_init__()
        for one in fields(self):
            if one.name in self.read_by_variant and (value := getattr(self, one.name)) != one.default:
                raise ValueError(f"{one.name}={value!r}: of a variant of {type(self).__name__}; see `build_method`")

    @property
    def needs(self) -> Needs:
        """What it needs of a run."""
        return Needs()

    @property
    def asks(self) -> tuple[str, ...]:
        """What `report` returns: keys of `Reports.values`, named in `RANGES`."""
        return ()

    @property
    def without_self_reports(self) -> "Method":
        """The same, where what only the site itself can know is not to pay."""
        return self

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> Any:
        """The state before round 0, a frozen dataclass of tensors and numbers.

        Args:
            model: (d,) where all sites start.
            num_sites: n.
            layout: of that vector.

        Raises:
            ValueError: the method cannot work with so many sites.
        """
        raise NotImplementedError

    def round(self, state: Any, updates: Tensor, reports: Reports) -> tuple[Any, Outcome]:
        """One aggregation. ``updates`` (n, d) float32: trained minus received, zero rows for absent sites."""
        raise NotImplementedError

    def restart_from(self, state: Any, models: Tensor) -> Any:
        """The state, where sites start the next round from ``models`` (n, d), and not all from what `round` gave them.

        So it is where a guard withholds from a site, which trains on with its own model, or has near copies share one.
        A method that has a model per site rates and rewards from these; it keeps them as its state's ``models``, or
        overrides this.
        """
        kept = getattr(state, "models", None)
        return state if kept is None or kept.shape != models.shape else replace(state, models=models)

    def report(self, view: SiteView) -> dict[str, float]:
        """The site half: the quantities named in `asks`, those of them that are available."""
        return {}


def inner_products(updates: Tensor, reports: Reports) -> Tensor:
    """(n, n) `gram` of a round's ``updates`` (n, d): the server's, computed once, where ``reports`` carry it."""
    return gram(updates) if reports.products is None else reports.products
