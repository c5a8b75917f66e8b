"""The contract of a method: what it receives (Reports), what it gives (Outcome), what it is (Method).

n sites, d trainable parameters. Rows are in site-name order, always; reductions are in float64. What only some
methods do, such as evaluating candidate models, is a capability: `fedmerit.contract.capabilities`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.vectors import gram, share
from fedmerit.schema.declarations import Checked

Range = tuple[float, float]  # lowest and highest value
BY_IMAGES, NO_CREDIT = "share of training images", "none"  # of `MethodSummary`: no estimates
DECIMALS = 6  # of the numbers that a site reports: more are noise, and could carry hidden content


@dataclass(frozen=True)
class Layout:
    """The parts of the vector of trainable parameters."""

    tensor_sizes: tuple[int, ...]  # elements of each tensor in the vector, in order; they sum to d
    owners: Tensor  # (d,) int32: the neuron that each parameter belongs to, -1: none
    names: tuple[str, ...] = ()  # of those tensors; empty: they have none
    norms: tuple[bool, ...] = ()  # of those tensors: whether it is γ or β of a normalisation layer; empty: none is
    outputs: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))  # (labels, m) places in the
    # vector of the output layer's parameters, by the label whose logits they make
    buffer_owners: Mapping[str, Tensor] = field(default_factory=dict)  # by buffer: the neuron of each entry, -1: none

    @classmethod
    def of(cls, *tensor_sizes: int) -> "Layout":
        """Return the layout of tensors without neurons or norms, the last of them the output layer of one label."""
        size = sum(tensor_sizes)
        outputs = torch.arange(size - tensor_sizes[-1], size)[None]
        return cls(tensor_sizes, torch.full((size,), -1, dtype=torch.int32), outputs=outputs)

    @property
    def neurons(self) -> int:
        """The number H of neurons."""
        return int(self.owners.max()) + 1

    @property
    def in_norms(self) -> Tensor:
        """(d,) bool: the parameters of normalisation layers."""
        norms = torch.tensor(self.norms or [False] * len(self.tensor_sizes))
        return norms.repeat_interleave(torch.tensor(self.tensor_sizes))


@dataclass(frozen=True)
class PatientResults:
    """A set of results of k models by patient, of R raters with at most K patients each.

    The raters are the n sites, or the server with images of its own.
    """

    utilities: Tensor  # (k, R, K) mean soft Dice of each patient, 0 to 1; NaN: no such patient, or no rating
    voice: Tensor  # (n, R) weight of each rater for the site of the row; rows sum to 1, or to 0: nobody rated it
    offsets: Tensor  # (R,) added to what a rater finds of a site, so that all raters are on one level


@dataclass(frozen=True)
class CandidateResults:
    """A set of results of k models on the server validation set."""

    dice: Tensor  # (k,) mean over all its cases and labels, 0 to 1
    losses: Tensor  # (k, bins) images by soft Dice loss, in equal bins on [0, 1]
    judged: Tensor | None = None  # (n, k) the same Dice by all except the site of the row, if sites judge each other
    patients: PatientResults | None = None  # of `Candidates.soft` ones


@dataclass(frozen=True)
class Reports:
    """A set of what the sites of one round reported, beside their updates. Rows of absent sites are zero or NaN."""

    num_samples: Tensor  # (n,) training images, float64
    present: Tensor  # (n,) bool: whose update counts this round
    values: Mapping[str, Tensor] = field(default_factory=dict)  # what the method asked for, (n,); NaN: not available
    candidates: CandidateResults | None = None  # of the method's candidate models, if it has any
    products: Tensor | None = None  # (n, n) of the updates, as `gram` gives them, if they are known already
    pairs: Mapping[str, Tensor] = field(default_factory=dict)  # (n, n) what row reports of column; NaN: nothing
    vectors: Mapping[str, Tensor] = field(default_factory=dict)  # (n, d) sent beside the updates, zero: absent
    parts: Tensor | None = None  # (k, n, n) likewise of the parts of updates at `Method.parts`
    rests: Tensor | None = None  # (n, n) as ``products``, of the updates without their forecasts (`Method.uses_rests`)
    credit: Tensor | None = None  # (n,) factor of what each site is paid, 0 to 1; None: 1

    @property
    def data_share(self) -> Tensor:
        """(n,) share of the present sites' training images; 0 for absent sites."""
        return share(self.num_samples, self.present)


@dataclass(frozen=True)
class Outcome:
    """The result of one round."""

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
    def without_credit(cls, reports: Reports, models: Tensor, **further: Any) -> "Outcome":
        """Return an outcome whose contributions and reputations are 0, and whose weights are sample shares."""
        nothing = torch.zeros_like(reports.num_samples, dtype=torch.float64)
        return cls(nothing.where(reports.present, torch.nan), nothing, reports.data_share, models, **further)

    @classmethod
    def by_weights(cls, weights: Tensor, reports: Reports, models: Tensor, **further: Any) -> "Outcome":
        """Return an outcome whose contributions and reputations are its weights; nothing is remembered."""
        return cls(weights.where(reports.present, torch.nan), weights, weights, models, **further)


@dataclass(frozen=True)
class GlobalModel:
    """The state of methods that remember only one model for all sites."""

    model: Tensor  # (d,)


@dataclass(frozen=True)
class SiteModels:
    """The state of methods that remember only one model per site."""

    models: Tensor  # (n, d)


@dataclass(frozen=True)
class SiteView:
    """A view of what a site has when it receives w_t."""

    received: Tensor  # (d,) w_t
    training_losses: Callable[[], Tensor]  # (images,) soft Dice loss of w_t on each of its training images, 0 to 1
    validation_dice: float | None = None  # of w_t on its validation split; None: not known


@dataclass(frozen=True, kw_only=True)
class MethodSummary:
    """A method's row in the tables of methods; the defaults are FedAvg's."""

    contribution: str = BY_IMAGES  # how it is estimated; `BY_IMAGES`, `NO_CREDIT`: it is not
    weights: str = BY_IMAGES  # of updates
    download: str = "global model"
    site_work: str = "training"
    paper: str

    @property
    def estimates(self) -> bool:
        """Whether the method estimates contributions."""
        return self.contribution not in (BY_IMAGES, NO_CREDIT)


@dataclass(frozen=True)
class Needs:
    """A method's requirements of a run."""

    sites: int = 2  # at least
    rounds: int = 1  # at least
    why: str = ""  # so many rounds, if more than one
    sums_only: bool = False  # weights depend on no update: updates may be encrypted, `round` gets them with d = 0
    unfiltered: str = ""  # why no privacy filter may change what sites send; "": one may


@dataclass(frozen=True)
class Method(Checked):
    """A method of one paper: a frozen dataclass of parameters, a pure server half, and what it asks of sites."""

    about: ClassVar[MethodSummary]
    ranges: ClassVar[Mapping[str, Range]] = {}  # of all that `asks` may name, whatever the parameters
    own_statistics: ClassVar[bool] = False  # whether its outcomes have ``statistics`` "own"
    uses_rests: ClassVar[bool] = False  # whether it needs `Reports.rests`, which a guard measures

    @property
    def needs(self) -> Needs:
        """The method's requirements of a run."""
        return Needs()

    @property
    def has_site_models(self) -> bool:
        """Whether the server keeps a model for each site: ``models`` of the state and outcomes are (n, d)."""
        return False

    @property
    def reveals_updates(self) -> bool:
        """Whether models that sites receive to train from, with their own updates, give the update of a single other
        site, or parts of it. One of a sum over the others does not follow from it.
        """
        return False

    @property
    def has_private_models(self) -> bool:
        """Whether the models (n, d) hold parts of what a single site trained: other sites then do not test them."""
        return self.has_site_models

    @property
    def sums_updates(self) -> bool:
        """Whether every model's step is a sum of the round's updates, with weights that follow from `Reports`.

        What a site measures of the steps of its model is then evidence of the weights.
        """
        return False

    @property
    def asks(self) -> Mapping[str, Range]:
        """The numbers that the method asks sites for, with their ranges: keys of `Reports.values`."""
        return self.ranges

    def parts(self, state: Any) -> Tensor:
        """Return (k, m) places in the vector: of updates at each row, too, the method has inner products; none: (0, 0).

        All else that weights, contributions and quotas follow from is in `Reports`, so that they can be recomputed
        from a record of it.
        """
        return torch.empty(0, 0, dtype=torch.long)

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> Any:
        """Return the state before round 0, a frozen dataclass of tensors and numbers.

        By default it has only the model, or one per site.

        Args:
            model: (d,) from which all sites start.
            num_sites: n.
            layout: of that vector.

        Raises:
            ValueError: the method cannot work with so many sites.
        """
        return SiteModels(model.repeat(num_sites, 1)) if self.has_site_models else GlobalModel(model)

    def round(self, state: Any, updates: Tensor, reports: Reports) -> tuple[Any, Outcome]:
        """Aggregate one round. ``updates`` (n, d) float32: trained minus received, zero rows for absent sites."""
        raise NotImplementedError

    def restart_from(self, state: Any, models: Tensor) -> Any:
        """Return the state if sites start the next round from ``models`` (n, d), not all of them from the models of
        `round`.

        This happens if a guard withholds the outcome from a site, which then continues from its own model, or makes
        near copies share one. A method with a model per site keeps them as its state's ``models``, or overrides this.
        """
        return replace(state, models=models) if self.has_site_models else state

    def join(self, state: Any, rows: Sequence[int], num_sites: int, layout: Layout) -> Any:
        """Return the state once other sites have joined: what is known of these is what `start` knows of a site.

        They begin with the server's model, or, if each site has one and the server none, with the mean of these.

        Args:
            state: of the sites before.
            rows: the places of these among all, ascending.
            num_sites: n, of all.
            layout: of the vector.

        Raises:
            ValueError: the method cannot work with so many sites.
        """
        fresh = self.start(joining_model(state), num_sites, layout)
        return replace(state, **{name: grow(value, getattr(fresh, name), rows) for name, value in vars(state).items()})

    def report(self, view: SiteView) -> dict[str, float]:
        """Return the site half: those of the quantities in `asks` that are available."""
        return {}


def joining_model(state: Any) -> Tensor:
    """Return (d,) the model that a site begins with which joins now; as `Method.join` says."""
    known = vars(state)
    models: Tensor = next(known[name] for name in ("server", "model", "models") if name in known)
    if models.ndim == 1 or bool((models == models[0]).all()):
        return models if models.ndim == 1 else models[0]
    return models.double().mean(dim=0).to(models.dtype)


def grow(old: Any, fresh: Any, rows: Sequence[int]) -> Any:
    """Return a number for each of more sites: that of ``old`` at the places ``rows``, elsewhere that of ``fresh``.

    ``old`` is returned if it has the shape of ``fresh``, is no tensor, or ``fresh`` has no row: then it is of no single
    site. (A number for each site may be (n,), (k, n), (n, d) or (n, n); ``fresh`` may be (n, 0), of what is not known
    yet, which is 0 then.)
    """
    if not isinstance(old, Tensor) or old.shape == fresh.shape or not len(fresh):
        return old
    if not fresh.numel():
        fresh = old.new_zeros(len(fresh), *old.shape[1:])
    places, grown = torch.tensor(rows), fresh.clone()
    by_site = [dim for dim, (before, now) in enumerate(zip(old.shape, fresh.shape, strict=True)) if before != now]
    if by_site == [0, 1]:
        grown[places[:, None], places] = old
        return grown
    return grown.index_copy(by_site[0], places, old)


def inner_products(updates: Tensor, reports: Reports) -> Tensor:
    """Return (n, n) `gram` of a round's ``updates`` (n, d): the server's, computed once, if ``reports`` have it."""
    return gram(updates) if reports.products is None else reports.products


def part_products(updates: Tensor, reports: Reports, places: Tensor) -> Tensor:
    """Return (k, n, n) inner products of the parts of ``updates`` (n, d) at ``places`` (k, m)."""
    return torch.stack([gram(updates[:, part]) for part in places]) if reports.parts is None else reports.parts
