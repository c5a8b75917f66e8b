"""A valid message of every kind, and bad values for every field, which follow from its declaration."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from pretending import NETWORK, tiny_plan

from fedmerit.ciphertexts import Ciphertexts
from fedmerit.contract import flat
from fedmerit.schema import expected
from fedmerit.schema.messages import (
    ClosingReceipt,
    ClosingTask,
    Enrolment,
    EnrolmentTask,
    Evaluated,
    Evaluation,
    Failure,
    Importance,
    ImportanceTask,
    PeerModel,
    Purpose,
    Reply,
    SparseUpdate,
    Task,
)
from fedmerit.schema.rules import Choice, Count, Number, Part, Text
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS, Overlap, Surface
from fedmerit.schema.survey import Question, Surveyed, Tally
from fedmerit.schema.tensors import Axes, Carried, Statistics

METHOD = tiny_plan("fedce").build_method()
CYCLE = tiny_plan("cycle").build_method()
MODEL, BUFFERS = flat.get_parameters(NETWORK), flat.get_buffers(NETWORK)
ROUND, LABELS, NEURONS = 2, ("prostate",), 4
ONE = torch.ones(1, 1, dtype=torch.float64)
OVERLAPS = (Overlap("000", "prostate", 5, 2, 1, patient="3"), Overlap("001", "prostate", 0, 0, 0))
MEASURED = (replace(OVERLAPS[0], surface=Surface("px", 1.5, 0.5)),)
LOG = "a" * 64
EVALUATION = Evaluation(ROUND, SERVER_SPLIT, MODEL[None], ONE, (BUFFERS,), ONE, 3)
FINAL = replace(EVALUATION, split="testing", purpose=Purpose.FINAL)
IMPORTANCE = ImportanceTask(ROUND, SERVER_SPLIT, MODEL, BUFFERS, "exact", 8)
TASK = Task(
    ROUND,
    MODEL,
    BUFFERS,
    weight=0.3,
    data_share=float("nan"),
    neurons=torch.arange(11) % 3 == 0,  # no whole number of bytes
    peers={"Birch": PeerModel(MODEL, BUFFERS, 0.5)},
    others={"Cedar": 0.1},
    ledger="head",
    vectors={"own": -MODEL},
    ciphertexts=Ciphertexts((b"\0a", b"b"), (b"c",)),
)
SPARSE = replace(
    TASK,
    parameters=torch.empty(0),
    changes=SparseUpdate(torch.tensor([0, len(MODEL) - 1], dtype=torch.int32), torch.tensor([-0.0, 1e-45])),
)
REPLY = Reply(
    ROUND,
    0.01 * MODEL,
    BUFFERS,
    10,
    OVERLAPS,
    {"cosine": 0.25, "minus_error": 0.5},
    0.5,
    1.0,
    trained_overlaps=(replace(OVERLAPS[0], true_positives=4, false_negatives=2), OVERLAPS[1]),
    log=LOG,
)
ENROLMENT = Enrolment(
    ROUND,
    dict.fromkeys((*SPLITS, SERVER_SPLIT), 2),
    dict.fromkeys((*SPLITS, SERVER_SPLIT), 9),
    ("ab" * 16, "ac" * 16),
    "",
    "cd" * 16,
    1.0,
    "e" * 64,
)
SURVEYED = Surveyed(12, 300, {"slices": Tally((0, 7, *[0] * 10))}, 5)


def check_pairs(answer: object) -> str | None:
    return expected.check_reply(answer, ROUND, MODEL, BUFFERS, LABELS, CYCLE, ("Birch",))


def check_survey(answer: object) -> str | None:
    return None if isinstance(answer, Surveyed) else "no answer to a survey"


@dataclass(frozen=True)
class Sample:
    """A valid answer, and the check of the task that it belongs to."""

    message: Any
    check: Callable[[object], str | None]


ANSWERED: Mapping[str, Sample] = {
    "reply": Sample(REPLY, lambda one: expected.check_reply(one, ROUND, MODEL, BUFFERS, LABELS, METHOD, ("Birch",))),
    "reply of peers": Sample(replace(REPLY, update=MODEL, values={}, pairs={"available": {"Birch": 1.0}}), check_pairs),
    "evaluated": Sample(
        Evaluated(ROUND, (OVERLAPS,), torch.ones(1, 3, dtype=torch.float64), 0.5, log=LOG),
        lambda one: expected.check_evaluated(one, EVALUATION, LABELS),
    ),
    "tested": Sample(
        Evaluated(ROUND, (MEASURED,), torch.ones(1, 3, dtype=torch.float64), 0.5),
        lambda one: expected.check_evaluated(one, FINAL, LABELS),
    ),
    "estimated": Sample(
        Evaluated(ROUND, (), torch.zeros(0, 0, dtype=torch.float64), 0.5, buffers=BUFFERS),
        lambda one: expected.check_evaluated(one, replace(EVALUATION, purpose=Purpose.ESTIMATE), LABELS),
    ),
    "importance": Sample(
        Importance(ROUND, torch.tensor([0.1, -0.2, 8.0, 0.0], dtype=torch.float64), 8, 1.0),
        lambda one: expected.check_importance(one, IMPORTANCE, NEURONS),
    ),
    "enrolment": Sample(ENROLMENT, lambda one: expected.check_enrolment(one, ROUND)),
    "receipt": Sample(ClosingReceipt(ROUND), lambda one: expected.check_countersigned(one, ROUND)),
    "surveyed": Sample(SURVEYED, check_survey),
    "peer": Sample(
        PeerModel(MODEL, BUFFERS, 0.5), lambda one: expected.check_model(one.parameters, one.buffers, MODEL, BUFFERS)
    ),
}
TASKS: Mapping[str, Any] = {
    "task": TASK,
    "sparse task": SPARSE,
    "evaluation": EVALUATION,
    "own evaluation": replace(FINAL, models=torch.zeros(1, 0)),
    "importance task": IMPORTANCE,
    "enrolment task": EnrolmentTask(ROUND, LOG),
    "closing task": ClosingTask(ROUND, "digest signature", LOG),
    "question": Question(7),
}
MESSAGES: Mapping[str, Any] = {
    **{name: sample.message for name, sample in ANSWERED.items()},
    **TASKS,
    "failure": Failure("failed with ValueError; the site's own log says more"),
}


def is_same(one: Any, other: Any) -> bool:
    """Whether two messages, or parts of some, are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        same = (one.dtype, one.shape) == (other.dtype, other.shape)
        return same and one.numpy().tobytes() == other.numpy().tobytes()
    if is_dataclass(one):
        return type(one) is type(other) and all(
            is_same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)
        )
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(is_same(value, other[name]) for name, value in one.items())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return type(one) is type(other) and (one == other or one != one)


def bad_values(part: Part, value: Any) -> Iterator[Any]:
    """Values that no message may have in a field: of other types, and beyond the bounds that its rules declare."""
    if part.optional and value is None:
        return
    yield from (object(), [None], {"x": None}, b"x", 1j)
    if not part.optional:
        yield None
    if rule := part.mark(Carried):
        yield from _bad_tensors(rule, value)
    elif number := part.mark(Number):
        yield from ("1", True, float("inf"), -float("inf"), *(() if number.or_nan else (float("nan"),)))
        yield from (limit + step for limit, step in ((number.high, 1e3), (number.low, -1e3)) if abs(limit) < 1e300)
    elif count := part.mark(Count):
        yield from ("1", True, 1.5, float("nan"), count.low - 1, count.high + 1)
    elif text := part.mark(Text):
        yield from (7, "two\nlines", "\N{ARABIC-INDIC DIGIT ONE}\0", "9" * (text.longest + 1))
    elif part.mark(Choice):
        yield from (7, "none of them")


def _bad_tensors(rule: Carried, value: Any) -> Iterator[Any]:
    if isinstance(rule, Statistics):
        for name, tensor in value.items():
            for other in _bad_tensors_like(tensor):
                yield {**value, name: other}
            yield {key: entry for key, entry in value.items() if key != name}
        yield {**value, "further": torch.zeros(1)}
    else:
        any_number = isinstance(rule, Axes) and rule.dtype is None
        yield from (bad for bad in _bad_tensors_like(value) if not any_number or getattr(bad, "dtype", 0) != torch.half)


def _bad_tensors_like(tensor: torch.Tensor) -> Iterator[Any]:
    yield tensor.numpy()
    yield tensor[None]
    yield tensor.to(torch.float16)
    if tensor.is_floating_point() and tensor.numel():
        for entry in (float("nan"), float("inf"), -3e38 if tensor.dtype == torch.float32 else -1e300):
            spoiled = tensor.clone()
            spoiled.reshape(-1)[-1] = entry
            yield spoiled
