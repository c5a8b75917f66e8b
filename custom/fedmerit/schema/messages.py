"""The messages between server and sites: every field once, with its rules, its unit and one sentence.

The form that NVFlare carries, the inspection of answers, the list of what may leave a site, the
ledger's part of a message and the tables of the documentation derive from these fields.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, TypeVar, cast

import torch
from pydantic import FailFast, PlainSerializer
from pydantic_core import core_schema
from torch import Tensor

from fedmerit.ciphertexts import Ciphertexts
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import DECIMALS
from fedmerit.errors import MemoryLost
from fedmerit.evidence.ledger import GENESIS, texts_digest
from fedmerit.methods.registry import asked_quantities
from fedmerit.reasons import LISTED, PATTERNS, reason_of
from fedmerit.schema.rules import (
    FLOAT32_SLACK,
    MOST_TENSORS,
    SITE_NAME,
    About,
    Choice,
    Count,
    Declared,
    Message,
    Number,
    Part,
    Rule,
    Switch,
    Text,
    fault,
    parts_of,
)
from fedmerit.schema.score_name import NAMES, ONLY_ONE
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS, Overlap, Surface
from fedmerit.schema.survey import TOO_FEW, Question, Surveyed
from fedmerit.schema.tensors import (
    Axes,
    Bits,
    Carried,
    Check,
    Expected,
    Statistics,
    Vector,
    Vectors,
    WholeCounts,
    as_many_as,
    at_most,
    equal,
    keys,
    max_abs,
    most_entries,
    not_negative,
    ranges,
)

MOST_FILTERS = 16  # that a site declares
T = TypeVar("T")
MOST_IMAGES, MOST_CASES, MOST_TRAINING_CASES = 10**9, 5_000, 100_000  # cases of a split, and training cases of a site
LARGEST = 1e6  # magnitude of an entry of an update: more is no training, and sums may overflow
LARGEST_STATISTIC = 1e12  # magnitude of BatchNorm statistics and counters
COUNTED = ("running_var", "num_batches_tracked")  # endings of the names of variances and counters
LONGEST = 1e9  # seconds, some 30 years
PEM = r"(-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE-----\n?)?"

LOST_MEMORY = (
    "what it remembers of the round before is missing, so that what changed since cannot be applied; "
    "the server sends the whole model in the next round"
)
OTHER_MEMORY = "the model of the round before, as it lies on disk, is not the one that this sparse update belongs to"
OVER_BUDGET = "asked to evaluate more models than the run's method needs in a round; the site's own log says how many"
OVER_CAP = "asked to evaluate more models in a round than this site's operator allows; the site's own log says how many"
NOT_FOR_OTHERS = "asked to evaluate images that this run evaluates for nobody; the site's own log says which"
NOT_NEEDED = "asked for losses or neurons that the run's method does not need; the site's own log says which"
NOT_SHARED = "sent models of other sites, which this run's plan does not share; the site's own log says which"
OTHER_NUMBERS = "sent models that are not in float32; the site's own log says what they are in"
SAME_MODEL = "sent a model that this job trained here in two other rounds; the site's own log says which"
OUT_OF_ORDER = "asked for a round that is over for this site, or before its training; the site's own log says which"
OTHER_REASON = "the site has no answer; its own log says why"
REASONS = (
    *LISTED,
    LOST_MEMORY,
    OTHER_MEMORY,
    OVER_BUDGET,
    OVER_CAP,
    NOT_FOR_OTHERS,
    NOT_NEEDED,
    NOT_SHARED,
    OTHER_NUMBERS,
    OUT_OF_ORDER,
    SAME_MODEL,
    TOO_FEW,
    OTHER_REASON,
)
REASON = "|".join([*map(re.escape, REASONS), *PATTERNS])  # as a pattern


class Params:
    """A mark: the field is carried where NVFlare's filters look for an update, in the message's parameters."""


@dataclass(frozen=True)
class InLedger:
    """A mark: the server's ledger holds the field."""

    digest: bool = False  # whether only as one digest of all its texts


@dataclass(frozen=True)
class Instead:
    """A mark: this text leaves a site instead of one that is not of the field's form."""

    text: str


class Quantity(Rule):
    """A name of a quantity that a known method asks sites for."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return core_schema.no_info_after_validator_function(self.require, core_schema.str_schema(strict=True))

    @staticmethod
    def require(name: str) -> str:
        """Return the name; raise a `fault` if no method asks for it."""
        return name if name in asked_quantities() else fault("a name that no method asks for")

    def words(self) -> str:
        """Return the rule in words."""
        return "a quantity that methods ask for"


def _require_complete_cases(value: tuple[Overlap, ...], expected: Expected) -> None:
    """Raise a `fault` unless each label of a case is there once, with scores or counts, and surfaces if expected."""
    labels, places = expected["labels"], set()
    for overlap in value:
        counts = overlap.true_positives or overlap.false_positives or overlap.false_negatives
        if expected["scored"] and (counts or overlap.surface or overlap.score is None):
            fault("no score from 0 to 1, or one beside counts of voxels")
        if overlap.score is not None and not expected["scored"]:
            fault("a score, expected counts of voxels, from which the server computes Dice")
        if overlap.label not in labels:
            fault("another label than the task's")
        if overlap.surface is not None and not (expected.get("surfaces") and _fits_counts(overlap.surface, overlap)):
            fault("distances of surfaces that nobody asked for, or that contradict the counts")
        places.add((int(overlap.case), overlap.label))
    cases = {case for case, _ in places}
    if len(cases) > MOST_CASES:
        fault(f"{len(cases)} cases, expected at most {MOST_CASES}")
    if len(places) < len(value) or len(places) < len(cases) * len(labels):
        fault("a case twice, or only some of its labels")


def _fits_counts(surface: Surface | None, overlap: Overlap) -> bool:
    """Return whether distances are there exactly if prediction and reference are."""
    if surface is None:
        return True
    masks = (overlap.true_positives + overlap.false_positives > 0, overlap.true_positives + overlap.false_negatives > 0)
    if not all(masks):
        return surface.hd95 is None and (surface.nsd == 0 if any(masks) else surface.nsd is None)
    return surface.hd95 is not None and surface.nsd is not None


def _references(overlaps: tuple[Overlap, ...]) -> list[tuple[str, str, int, str]]:
    """Return what a prediction cannot change: case, label, voxels of the reference, unit of distances."""
    return [
        (
            overlap.case,
            overlap.label,
            overlap.true_positives + overlap.false_negatives,
            overlap.surface.unit if overlap.surface else "",
        )
        for overlap in overlaps
    ]


# Types that several messages have

Round = Annotated[int, Count(), equal("round"), About("Round of the task.")]
Seconds = Annotated[float, Number(0, LONGEST), About("Wall-clock time of the work.", "s")]
Head = Annotated[str, Text(), About("Head of the server's ledger, which commits it to all rounds before.")]
LogHead = Annotated[
    str,
    Text("([0-9a-f]{64}( [0-9a-f]{256,2048})?)?", "a SHA-256 with a signature"),
    About("Hash of the last record of the site's own log, with the site's signature if it has a key."),
]
Split = Annotated[str, Text(), About("Split whose images are evaluated.")]
Model = Annotated[Tensor, Vector()]
NetworkStatistics = Annotated[Buffers, Statistics(), About("BatchNorm statistics and counters of the model.")]
SiteStatistics = Annotated[
    Buffers, Statistics(), max_abs(LARGEST_STATISTIC), not_negative(COUNTED)  # a script's network has others, too
]
Overlaps = Annotated[
    tuple[Overlap, ...], FailFast(), most_entries(200_000), Check(_require_complete_cases, "each label of a case once")
]
Numbers = Mapping[Annotated[str, Quantity()], Annotated[float, Number()]]
Site = Annotated[str, Text(SITE_NAME, "a name")]
Digest = Annotated[str, Text("[0-9a-f]{32}", "a digest of 32 hexadecimal digits")]
Encrypted = Annotated[
    Ciphertexts | None, About("Encrypted update and statistics, instead of those in the clear; none in other runs.")
]
BySplit = Mapping[Annotated[str, Choice((*SPLITS, SERVER_SPLIT))], Annotated[int, Count(0, MOST_IMAGES)]]
WEIGHT = Number(or_nan=True)


@dataclass(frozen=True)
class SparseUpdate(Declared):
    """A model (d,) as the difference to the model that the site received in the round before: exact, bit for bit."""

    indices: Annotated[Tensor, Axes("k", dtype=torch.int32, is_payload=True), About("Places that differ.")]
    values: Annotated[Tensor, Axes("k", dtype=torch.float32, is_payload=True), About("Values at those places.")]

    @classmethod
    def between(cls, changed: Tensor, model: Tensor) -> "SparseUpdate | None":
        """Return the entries of ``model`` (d,) where ``changed`` (d,) is true; None if the full model is no larger."""
        if int(changed.sum()) * 8 >= model.numel() * 4:
            return None
        places = changed.nonzero().flatten()
        return cls(places.to(torch.int32), model[places])

    def apply(self, previous: Tensor) -> Tensor:
        """Return the model (d,), from ``previous`` (d,); raise `MemoryLost` if an index lies outside of that."""
        if len(self.indices) and not 0 <= int(self.indices.min()) <= int(self.indices.max()) < len(previous):
            raise MemoryLost(OTHER_MEMORY)
        model = previous.clone()
        model[self.indices.long()] = self.values
        return model


@dataclass(frozen=True)
class PeerModel(Message):
    """A model that one site shares with another."""

    parameters: Annotated[Tensor, Vector(), max_abs(LARGEST), About("Model.")]
    buffers: Annotated[SiteStatistics, About("BatchNorm statistics of the model.")]
    weight: Annotated[float, WEIGHT, About("Weight of its distillation loss at the receiver; NaN: none yet.")]


# Answers of sites


@dataclass(frozen=True)
class Reply(Message):
    """The result of training for a round."""

    round: Round
    update: Annotated[
        Tensor,
        Vector(or_empty=True),
        max_abs(LARGEST),
        Params(),
        About("Trained minus received model; empty if models stay at the sites, or in encrypted runs."),
    ]
    buffers: Annotated[SiteStatistics, About("BatchNorm statistics after training.")]
    num_samples: Annotated[int, Count(1, MOST_IMAGES), InLedger(), About("Training images.", "images")]
    overlaps: Annotated[Overlaps, About("Results of the received model on the validation split.")]
    values: Annotated[Numbers, ranges("values"), InLedger(), About("Quantities that the method asks for.")] = field(
        default_factory=dict
    )
    train_loss: Annotated[float, Number(-LARGEST, LARGEST, or_nan=True), About("Mean training loss.")] = float("nan")
    seconds: Seconds = 0.0
    trained_overlaps: Annotated[
        Overlaps, About("Results of the trained model on the same cases, if the configuration asks for them.")
    ] = ()
    pairs: Annotated[
        Mapping[Annotated[str, Quantity()], Annotated[Mapping[Site, Annotated[float, Number()]], keys("other sites")]],
        ranges("pairs"),
        InLedger(),
        About("Quantities of other sites, by quantity and site."),
    ] = field(default_factory=dict)
    vectors: Annotated[
        Mapping[Site, Annotated[Tensor, Vector(), max_abs(LARGEST)]],
        keys("vectors", all=True),
        most_entries(4),
        About("Vectors that the method sends beside the update, by name."),
    ] = field(default_factory=dict)
    ciphertexts: Encrypted = None
    log: LogHead = ""
    metric: Annotated[
        str,
        Choice(("", ONLY_ONE, *NAMES)),
        Instead(ONLY_ONE),
        About("Metric that the site took from its script's answers; empty: none."),
    ] = ""
    restarts: Annotated[
        int, Count(0, 1000), About("Times that the site's script was started again since its last answer.")
    ] = 0
    unsent: Annotated[
        int, Count(0, MOST_TENSORS), About("Tensors of the model that the site's script left out of its answer.")
    ] = 0
    evaluation_fault: Annotated[
        str,
        Text(f"|{REASON}", "empty, or a listed reason"),
        Instead(OTHER_REASON),
        About("Reason why the site's script cannot evaluate, tried with its first training; empty: none is known."),
    ] = ""
    epsilon: Annotated[
        Annotated[float, Number(0, LARGEST)] | None, About("ε that training by DP-SGD has spent so far; none: without.")
    ] = None

    def judge(self, expected: Expected) -> None:
        """Raise a `fault` if the results of both models are not of the same references."""
        if self.trained_overlaps and _references(self.trained_overlaps) != _references(self.overlaps):
            fault("overlaps of the trained model on other cases, or with another reference, than those of the received")


@dataclass(frozen=True)
class Evaluated(Message):
    """The result of an evaluation."""

    round: Round
    overlaps: Annotated[tuple[Overlaps, ...], FailFast(), as_many_as("models"), About("Results of every model.")]
    losses: Annotated[
        Tensor,
        Axes("k", "bins", dtype=None),
        WholeCounts(MOST_IMAGES),
        About("Images by soft Dice loss, in equal bins on [0, 1], for every model.", "images"),
    ]
    seconds: Seconds = 0.0
    choice: Annotated[
        int, Count(), at_most("choices"), About("Number of the final model that the site selected; 0: of none.")
    ] = 0
    buffers: Annotated[SiteStatistics, About("Estimated BatchNorm statistics, if the task asks for them.")] = field(
        default_factory=dict
    )
    log: LogHead = ""

    def judge(self, expected: Expected) -> None:
        """Raise a `fault` if the results of the models are not of the same references and images."""
        if "bins" not in expected:
            return
        references = [_references(overlaps) for overlaps in self.overlaps]
        if any([place[:2] for place in rows] != [place[:2] for place in references[0]] for rows in references):
            fault("overlaps of other cases for one model than for another")
        if any(rows != references[0] for rows in references):
            fault("overlaps with another reference for one model than for another")
        if len(set(self.losses.sum(dim=1).tolist())) > 1:
            fault("losses of more images for one model than for another")


@dataclass(frozen=True)
class Importance(Message):
    """The importance of a model's neurons."""

    round: Round
    increases: Annotated[
        Tensor,
        Axes("H"),
        max_abs(LARGEST * MOST_IMAGES),
        InLedger(),
        About("Increase of the soft Dice loss without each neuron, summed over images."),
    ]
    images: Annotated[int, Count(1, MOST_IMAGES), at_most("images"), About("Number of images summed over.", "images")]
    seconds: Seconds = 0.0

    def judge(self, expected: Expected) -> None:
        """Raise a `fault` if an increase is more than so many images can have."""
        most = 1 + FLOAT32_SLACK if expected["order"] == "exact" else LARGEST
        if self.increases.numel() and float(self.increases.abs().max()) > self.images * most:
            fault(f"increases beyond {most:g} an image")


@dataclass(frozen=True)
class Enrolment(Message):
    """The commitment of a site before round 0: how much it will train on, and digests of which images."""

    round: Round
    cases: Annotated[BySplit, keys((*SPLITS, SERVER_SPLIT), all=True), InLedger(), About("By split.", "cases")]
    slices: Annotated[
        BySplit,
        keys((*SPLITS, SERVER_SPLIT), all=True),
        InLedger(),
        About("By split; of training, those that are trained on.", "slices"),
    ]
    fingerprint: Annotated[
        tuple[Digest, ...],
        FailFast(),
        most_entries(MOST_TRAINING_CASES),
        InLedger(digest=True),
        About("Digests of the images of the training cases, with the run's salt, sorted."),
    ]
    certificate: Annotated[str, Text(PEM, "a certificate", 10_000), About("The site's, PEM; empty if it has none.")] = (
        ""
    )
    seal: Annotated[Digest, About("Secret of the site, without which `sealed` digests show nothing of any image.")] = ""
    seconds: Seconds = 0.0
    preparation: Annotated[
        str,
        Text("([0-9a-f]{64})?", "a SHA-256"),
        About("Digest of how the images were prepared; empty if the site's folder does not say."),
    ] = ""
    channels: Annotated[
        str,
        Text("([0-9a-f]{64})?", "a SHA-256"),
        About("Digest of the names of the images' channels; empty if the site's folder states none."),
    ] = ""
    modality: Annotated[
        str,
        Text("([0-9a-f]{64})?", "a SHA-256"),
        About("Digest of the images' modality; empty if the site's folder states none."),
    ] = ""
    filters: Annotated[
        tuple[Annotated[str, Text(r"[A-Za-z]\w{0,63}", "a name of a class")], ...],
        most_entries(MOST_FILTERS),
        InLedger(),
        About("Privacy filters that change the site's updates on their way, by the names of their classes."),
    ] = ()

    def judge(self, expected: Expected) -> None:
        """Raise a `fault` if counts and digests contradict each other."""
        cases = self.cases["training"]
        if not cases or self.slices["training"] < cases:
            fault("no training cases, or fewer slices than cases")
        if len(self.fingerprint) != cases:
            fault(f"{len(self.fingerprint)} digests for {cases} cases")

    def sealed(self) -> "Enrolment":
        """Return what the server keeps, also on disk: digests that only the site's seal connects with an image."""
        digests = sorted(texts_digest((self.seal, digest)) for digest in self.fingerprint)
        return replace(self, fingerprint=tuple(digests), seal="", seconds=0.0)


@dataclass(frozen=True)
class ClosingReceipt(Message):
    """The receipt that the site's own log holds how the run was closed."""

    round: Round


@dataclass(frozen=True)
class Failure(Message):
    """The reason why a site sends no answer."""

    reason: Annotated[
        str,
        Text(REASON, "a listed reason"),
        Instead(OTHER_REASON),
        About("One of a list, or the kind of an error: no text of the site's own leaves it."),
    ]


# Tasks of the server


class Purpose(StrEnum):
    """A purpose of an evaluation of models."""

    ROUND = "round"  # to compare them in a round: masks are where logits are above 0
    FINAL = "final"  # they are the run's last or best: masks as they are used, and how far their surfaces lie apart
    FINISH = "finish"  # final model selection: as FINAL, of the received model, the local-only one and the selected one
    ESTIMATE = "estimate"  # of one model, BatchNorm statistics estimated on the split, and nothing else


@dataclass(frozen=True)
class Task(Message):
    """A task to train for a round."""

    round: Round
    parameters: Annotated[
        Tensor,
        Vector(or_empty=True),
        Params(),
        About("Model to start from; empty if the site has it, or ``changes`` lead to it."),
    ]
    buffers: NetworkStatistics
    weight: Annotated[
        Annotated[float, WEIGHT] | None, About("Weight of the site's last update in the model; none if it has no part.")
    ] = None
    data_share: Annotated[
        Annotated[float, WEIGHT] | None, About("Share of the site in the model's BatchNorm statistics; none likewise.")
    ] = None
    neurons: Annotated[
        Annotated[Tensor, Bits()] | None, About("Neurons that the site holds; the others are 0 and stay so; none: all.")
    ] = None
    peers: Annotated[Mapping[Site, PeerModel], About("Models of the sites that share with this site.")] = field(
        default_factory=dict
    )
    others: Annotated[
        Mapping[Site, Annotated[float, WEIGHT]],
        About("Sites to ask for a model, with the weight of its distillation loss."),
    ] = field(default_factory=dict)
    ledger: Head = GENESIS
    vectors: Annotated[Mapping[Site, Model], About("Vectors beside the model, by name.")] = field(default_factory=dict)
    ciphertexts: Annotated[
        Ciphertexts | None, About("In encrypted runs: the sum of what the rounds added to the first model.")
    ] = None
    changes: Annotated[
        SparseUpdate | None, About("Difference to the model received in the round before, if that is smaller.")
    ] = None


@dataclass(frozen=True)
class Evaluation(Message):
    """A task to evaluate k models on one split: mixtures of m vectors with mixtures of b sets of statistics."""

    round: Round
    split: Split
    models: Annotated[Tensor, Vectors(), About("Vectors that are mixed; (1, 0): the site has its own.")]
    mixtures: Annotated[Tensor, Axes("k", "m"), About("The evaluated models are mixtures @ models.")]
    buffers: Annotated[tuple[NetworkStatistics, ...], FailFast(), About("Sets of BatchNorm statistics.")]
    shares: Annotated[Tensor, Axes("k", "b"), About("Mixtures of the sets of statistics; rows sum to 1.")]
    bins: Annotated[int, Count(0, MOST_IMAGES), About("Bins of a histogram of losses per image; 0: none.")] = 0
    soft: Annotated[bool, Switch(), About("Whether scores are soft Dice of each case, instead of counts.")] = False
    ledger: Head = GENESIS
    ciphertexts: Annotated[Ciphertexts | None, About("In encrypted runs: what the model is made of.")] = None
    purpose: Annotated[Purpose, PlainSerializer(str), About("What the models are evaluated for.")] = Purpose.ROUND

    @property
    def count(self) -> int:
        """The number of models that are evaluated."""
        return {Purpose.ESTIMATE: 0, Purpose.FINISH: 3}.get(self.purpose, len(self.mixtures))


@dataclass(frozen=True)
class ImportanceTask(Message):
    """A task to measure the importance of each neuron of a model on one split."""

    round: Round
    split: Split
    model: Annotated[Model, Params(), About("Model.")]
    buffers: NetworkStatistics
    order: Annotated[str, Choice(("exact", "taylor")), About("Approximation, as in `ImportanceRequest`.")]
    images: Annotated[int, Count(0, MOST_IMAGES), About("At most, evenly spaced over the split.", "images")]
    ledger: Head = GENESIS


@dataclass(frozen=True)
class EnrolmentTask(Message):
    """A task to commit, before round 0, to the cases that the site holds."""

    round: Round
    ledger: Head = GENESIS


@dataclass(frozen=True)
class ClosingTask(Message):
    """A task to log, after all else, how the server closed the run."""

    round: Round
    closing: Annotated[str, Text(), About("Digest of the closing record, with the server's signature if it has a key.")]
    ledger: Head = GENESIS


WithModels = Task | Evaluation | ImportanceTask  # what has a site evaluate models
Work = WithModels | EnrolmentTask | ClosingTask
Given = Reply | Evaluated | Importance | Enrolment
Answer = Given | ClosingReceipt | Failure
WORK: tuple[type[Message], ...] = (Task, Evaluation, ImportanceTask, EnrolmentTask, ClosingTask, Question)
ANSWERS: tuple[type[Message], ...] = (Reply, Evaluated, Importance, Enrolment, ClosingReceipt, Surveyed, Failure)


def describe_failure(error: Exception) -> Failure:
    """Return what the server learns of an error at a site: a reason of the closed list."""
    return Failure(reason_of(error))


def rounded(value: T, decimals: int = DECIMALS) -> T:
    """Return a number, numbers by name, or an answer with its numbers as they leave a site: with so many ``decimals``.

    Arrays and counts stay unchanged, and so do overlaps with `DECIMALS`, which they are measured with.
    """
    result: Any = value
    if isinstance(value, Message):
        result = type(value)(**{name: rounded(part, decimals) for name, part in vars(value).items()})
    elif isinstance(value, Mapping):
        result = {name: rounded(entry, decimals) for name, entry in value.items()}
    elif isinstance(value, float):
        result = round(value, decimals)
    elif isinstance(value, tuple) and decimals < DECIMALS:
        result = tuple(rounded(entry, decimals) for entry in value)
    elif isinstance(value, Overlap | Surface) and decimals < DECIMALS:
        result = replace(value, **{name: rounded(part, decimals) for name, part in vars(value).items()})
    return cast(T, result)


def recorded(message: Message) -> dict[str, Any]:
    """Return the fields of a message that the ledger holds, by name; of digests only the digest of all."""
    marks = {part.name: part.mark(InLedger) for part in parts_of(type(message))}
    values = {name: (getattr(message, name), mark) for name, mark in marks.items() if mark}
    listed = {name: list(value) if isinstance(value, tuple) else value for name, (value, _) in values.items()}
    return {name: texts_digest(values[name][0]) if values[name][1].digest else value for name, value in listed.items()}


def payload_bytes(message: Declared) -> int:
    """Return the bytes of the models and statistics in a message; of a boolean vector a bit an entry."""
    kind: Any = type(message)
    return sum(_bytes(getattr(message, name)) for name in payload_fields(kind))


@cache
def payload_fields(kind: Any) -> tuple[str, ...]:
    """Return the names of a message's fields with models or statistics, in the clear or encrypted."""
    return tuple(part.name for part in parts_of(kind) if _is_payload(part))


def _is_payload(part: Part) -> bool:
    if rule := part.mark(Carried):
        return rule.is_payload
    inner = (*part.parts, part.item) if part.item else part.parts
    return part.base is Ciphertexts or any(map(_is_payload, inner))


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return -(-len(value) // 8) if value.dtype is torch.bool else value.numel() * value.element_size()
    if isinstance(value, Ciphertexts):
        return value.size
    if isinstance(value, Declared):
        return payload_bytes(value)
    return sum(map(_bytes, value.values() if isinstance(value, Mapping) else value or ()))
