"""What server and sites send each other, whatever carries it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
from torch import Tensor

from fedmerit.ciphertexts import Ciphertexts
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import DECIMALS
from fedmerit.errors import MemoryLost
from fedmerit.evidence.ledger import GENESIS, texts_digest
from fedmerit.files import DISK_FULL, is_full
from fedmerit.schema.scores import Overlap

TRAIN, EVALUATE = "train", "evaluate"  # the two kinds of work a site does
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
OUT_OF_ORDER = "asked for a round that is over for this site, or before its training; the site's own log says which"
REFUSED = "refuses the job; the site's own log says why"
REASONS = (
    REFUSED,
    DISK_FULL,
    LOST_MEMORY,
    OTHER_MEMORY,
    OVER_BUDGET,
    OVER_CAP,
    NOT_FOR_OTHERS,
    NOT_NEEDED,
    NOT_SHARED,
    OTHER_NUMBERS,
    OUT_OF_ORDER,
)  # why a site has no answer; or `describe_failure`: no text of its own leaves it


@dataclass(frozen=True)
class SparseUpdate:
    """A model (d,) as its difference to the one the site received the round before: exact, bit for bit."""

    indices: Tensor  # (k,) int32, where they differ
    values: Tensor  # (k,) float32, their values now

    @classmethod
    def between(cls, changed: Tensor, model: Tensor) -> "SparseUpdate | None":
        """The entries of ``model`` (d,) where ``changed`` (d,) is true; None if the whole model is no larger."""
        if int(changed.sum()) * 8 >= model.numel() * 4:
            return None
        places = changed.nonzero().flatten()
        return cls(places.to(torch.int32), model[places])

    def apply(self, previous: Tensor) -> Tensor:
        """The model (d,), from ``previous`` (d,); `MemoryLost` if an index lies outside of that."""
        if len(self.indices) and not 0 <= int(self.indices.min()) <= int(self.indices.max()) < len(previous):
            raise MemoryLost(OTHER_MEMORY)
        model = previous.clone()
        model[self.indices.long()] = self.values
        return model


@dataclass(frozen=True)
class PeerModel:
    """What a site gets of another that shares with it."""

    parameters: Tensor  # (d,) float32
    buffers: Buffers
    weight: float  # of its distillation loss, as the receiver has it from the rounds before; NaN: none yet


@dataclass(frozen=True)
class Task:
    """Train: the model to start round ``round`` from, and the site's part in it."""

    round: int
    parameters: Tensor | SparseUpdate  # (d,) float32, or what changed since the round before; (0,): the site has it
    buffers: Buffers
    weight: float | None = None  # of its last update in this model; None: it has no part in it
    data_share: float | None = None  # its share of the BatchNorm statistics in it, likewise
    neurons: Tensor | None = None  # (H,) bool, those it holds: the others are zero and stay so; None: all
    peers: Mapping[str, PeerModel] = field(default_factory=dict)  # those that share with the site, by name
    others: Mapping[str, float] = field(default_factory=dict)  # whom to ask for a model, with `PeerModel.weight`
    ledger: str = GENESIS  # `Ledger.head` of the server's: its word on all rounds before
    vectors: Mapping[str, Tensor] = field(default_factory=dict)  # (d,) each, sent beside the model, by name
    # under encryption: what the rounds so far added to the model all sites began with
    ciphertexts: Ciphertexts | None = None


@dataclass(frozen=True)
class Reply:
    """What training gave. Nothing else leaves the site."""

    round: int
    update: Tensor  # (d,) float32, trained minus received; (0,) if models stay at the sites
    buffers: Buffers
    num_samples: int  # training images
    overlaps: tuple[Overlap, ...]  # of the received model, on the validation split
    values: Mapping[str, float] = field(default_factory=dict)  # what the method asked for, if available
    train_loss: float = float("nan")
    seconds: float = 0.0
    # of what it trained, on the same cases, if the configuration asks for them
    trained_overlaps: tuple[Overlap, ...] = ()
    pairs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # what it says of others, by quantity, name
    vectors: Mapping[str, Tensor] = field(default_factory=dict)  # (d,) float32 each, beside the update, by name
    ciphertexts: Ciphertexts | None = None  # under encryption: update and statistics, instead of those above
    log: str = ""  # hash of the last record of the site's own log, and its signature of `log_payload` if it has a key


class Purpose(StrEnum):
    """What models are evaluated for."""

    ROUND = "round"  # to compare them in a round: masks are where logits are above 0
    FINAL = "final"  # they are the run's last or best: masks as they are used, and how far their surfaces lie apart
    FINISH = "finish"  # final model selection: as FINAL, of the received model, the local-only one and the selected one
    ESTIMATE = "estimate"  # of the one model, say BatchNorm statistics estimated on the split, and nothing else


@dataclass(frozen=True)
class Evaluation:
    """Evaluate k models on one split, each a mixture of m vectors with a mixture of b sets of BatchNorm statistics."""

    round: int
    split: str
    models: Tensor  # (m, d) float32; (1, 0): the site's own, which it has
    mixtures: Tensor  # (k, m) float64
    buffers: tuple[Buffers, ...]  # (b,)
    shares: Tensor  # (k, b) float64, rows sum to 1
    bins: int = 0  # of a histogram of losses per image; 0: none is wanted
    ledger: str = GENESIS  # as in `Task`
    ciphertexts: Ciphertexts | None = None  # likewise; the model to evaluate is made of it
    purpose: Purpose = Purpose.ROUND

    @property
    def count(self) -> int:
        """How many models are evaluated."""
        return {Purpose.ESTIMATE: 0, Purpose.FINISH: 3}.get(self.purpose, len(self.mixtures))


@dataclass(frozen=True)
class Evaluated:
    """What the evaluation gave. Nothing else leaves the site."""

    round: int
    overlaps: tuple[tuple[Overlap, ...], ...]  # (k,) one tuple per model
    losses: Tensor  # (k, bins) images by soft Dice loss, in equal bins on [0, 1]
    seconds: float = 0.0
    choice: int = 0  # the final model that the site selected, of `fedmerit.trainers.monai.final_model_selection`
    buffers: Buffers = field(default_factory=dict)  # if they were to be estimated
    log: str = ""  # as in `Reply`


@dataclass(frozen=True)
class ImportanceTask:
    """Say what each neuron of a model is worth on one split."""

    round: int
    split: str
    model: Tensor  # (d,) float32
    buffers: Buffers
    order: str  # "exact" or "taylor", as in `ImportanceRequest`
    images: int  # at most, evenly spaced over the split
    ledger: str = GENESIS  # as in `Task`


@dataclass(frozen=True)
class Importance:
    """What the neurons are worth. Nothing else leaves the site."""

    round: int
    increases: Tensor  # (H,) float64, what the soft Dice loss rises by without each neuron, summed over images
    images: int
    seconds: float = 0.0


@dataclass(frozen=True)
class EnrolmentTask:
    """Before round 0: commit to what the site holds."""

    round: int
    ledger: str = GENESIS  # as in `Task`


@dataclass(frozen=True)
class Enrolment:
    """What a site commits to. Nothing else leaves the site."""

    round: int
    cases: Mapping[str, int]  # by split
    slices: Mapping[str, int]  # likewise; of training those that are trained on
    fingerprint: tuple[str, ...]  # digests of its training cases' images, with the run's salt, sorted
    certificate: str = ""  # the site's, PEM; "": it has none
    seal: str = ""  # only the site can know it: without it `sealed` shows nothing of any image
    seconds: float = 0.0
    preparation: str = ""  # digest of how its images were prepared, data plan included; "": its folder does not say

    @property
    def sealed(self) -> tuple[str, ...]:
        """Of each digest, with the seal, another one, sorted: what the server keeps."""
        return tuple(sorted(texts_digest((self.seal, one)) for one in self.fingerprint))


@dataclass(frozen=True)
class ClosingTask:
    """After all else: write down how the server closed the run."""

    round: int
    closing: str  # digest of its closing record, and the server's signature of that if it has a key
    ledger: str = GENESIS  # as in `Task`


@dataclass(frozen=True)
class ClosingReceipt:
    """That it is in the site's own log. Nothing else leaves the site."""

    round: int


@dataclass(frozen=True)
class Failure:
    """In place of an answer: why a site sent none."""

    reason: str


def describe_failure(error: Exception) -> Failure:
    """What the server learns of an error at a site: its kind, or that the disk is full."""
    if is_full(error):
        return Failure(DISK_FULL)
    return Failure(f"failed with {type(error).__name__}; the site's own log says more")


WithModels = Task | Evaluation | ImportanceTask  # what has a site evaluate models
Work = WithModels | EnrolmentTask | ClosingTask
Given = Reply | Evaluated | Importance | Enrolment
Answer = Given | ClosingReceipt | Failure


def round_answer(answer: Given) -> Given:
    """The answer with its numbers rounded to `DECIMALS`; arrays and counts stay unchanged."""
    answer = replace(answer, seconds=round(answer.seconds, DECIMALS))
    if not isinstance(answer, Reply):
        return answer
    pairs = {name: rounded(values) for name, values in answer.pairs.items()}
    return replace(answer, values=rounded(answer.values), pairs=pairs, train_loss=round(answer.train_loss, DECIMALS))


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Numbers as they leave a site."""
    return {name: round(value, DECIMALS) for name, value in values.items()}


def payload_bytes(message: Work | Reply) -> int:
    """Bytes of the models and statistics in a message; a bit for each neuron that may be held or not."""
    if isinstance(message, EnrolmentTask | ClosingTask):
        return 0
    if isinstance(message, Evaluation):
        tensors = [message.models, *(value for buffers in message.buffers for value in buffers.values())]
    elif isinstance(message, ImportanceTask):
        tensors = [message.model, *message.buffers.values()]
    else:
        vector = message.parameters if isinstance(message, Task) else message.update
        parts = [vector.indices, vector.values] if isinstance(vector, SparseUpdate) else [vector]
        tensors = [*parts, *message.vectors.values(), *message.buffers.values()]
        if isinstance(message, Task) and message.neurons is not None:
            tensors.append(torch.empty(-(-len(message.neurons) // 8), dtype=torch.uint8))
        for peer in message.peers.values() if isinstance(message, Task) else ():
            tensors += [peer.parameters, *peer.buffers.values()]
    ciphertexts = None if isinstance(message, ImportanceTask) else message.ciphertexts
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) + (ciphertexts.size if ciphertexts else 0)
