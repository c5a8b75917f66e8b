"""Every message of a federation, by name: a valid one, and what its receiver makes of it and how it checks that.

What a site makes of a task may end with any exception: `MeritExecutor.execute` reports its kind. What the server makes
of an answer, and what a site makes of a peer's, may not: the checks say in words what is wrong.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from pretending import NETWORK, tiny_plan
from structures import Drawing

from fedmerit.contract import flat
from fedmerit.engines.nvflare.translation import (
    answer_to_model,
    model_to_evaluated,
    model_to_evaluation,
    model_to_reply,
    model_to_task,
    peer_to_shareable,
    shareable_to_peer,
    task_to_model,
)
from fedmerit.schema.inspection import (
    check_countersigned,
    check_enrolment,
    check_evaluated,
    check_importance,
    check_model,
    check_reply,
)
from fedmerit.schema.messages import (
    ClosingReceipt,
    ClosingTask,
    Enrolment,
    EnrolmentTask,
    Evaluated,
    Evaluation,
    Importance,
    ImportanceTask,
    PeerModel,
    Purpose,
    Reply,
    SparseUpdate,
    Task,
    describe_failure,
    payload_bytes,
    round_answer,
)
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS, Overlap, Surface
from fedmerit.schema.survey import Question, Survey, Surveyed
from fedmerit.site.site import Site
from fedmerit_deploy.survey import read_answer

PLAN = tiny_plan("fedce")
METHOD = PLAN.build_method()
MODEL, BUFFERS = flat.get_parameters(NETWORK), flat.get_buffers(NETWORK)
LABELS = ("prostate",)
OVERLAP = Overlap("000", "prostate", 5, 2, 1)
TASK = Task(
    2,
    MODEL,
    BUFFERS,
    weight=0.3,
    data_share=0.3,
    neurons=torch.ones(9, dtype=torch.bool),
    peers={"Birch": PeerModel(MODEL, BUFFERS, 0.5)},
    others={"Birch": 0.1},
    vectors={"own": MODEL},
)
EVALUATION = Evaluation(
    2,
    SERVER_SPLIT,
    MODEL[None],
    torch.ones(1, 1, dtype=torch.float64),
    (BUFFERS,),
    torch.ones(1, 1, dtype=torch.float64),
    3,
)
IMPORTANCE = ImportanceTask(2, SERVER_SPLIT, MODEL, BUFFERS, "exact", 8)
REPLY = Reply(
    2,
    0.01 * MODEL,
    BUFFERS,
    10,
    (OVERLAP,),
    {"cosine": 0.25, "minus_error": 0.5},
    0.5,
    1.0,
    pairs={"agreement": {"Birch": 0.5}},
)
SURFACES = (replace(OVERLAP, surface=Surface("px", 1.5, 0.5)),)
ENROLMENT = Enrolment(
    2,
    dict.fromkeys((*SPLITS, SERVER_SPLIT), 2),
    dict.fromkeys((*SPLITS, SERVER_SPLIT), 9),
    ("ab" * 16,) * 2,
    "",
    "cd" * 16,
    1.0,
)
SURVEYED = Surveyed(12, 300, {}, 5)
Read = Callable[[Any], object]


def _answered(read: Read, check: Callable[[Any], str | None]) -> Read:
    """What the server does with an answer, up to its use."""

    def receive(model: FLModel) -> None:
        answer = read(model)
        told = check(answer)
        if told is None and not isinstance(answer, ClosingReceipt):
            round_answer(answer)
            if isinstance(answer, Reply):
                payload_bytes(answer)
        else:
            assert told is None or isinstance(told, str)

    return receive


def _asked(read: Callable[[FLModel, Any], object]) -> Read:
    """What a site does with a task, up to its own checks."""

    def receive(model: FLModel) -> None:
        try:
            payload_bytes(read(model, NETWORK))
        except Exception as error:
            if not describe_failure(error).reason.isprintable():
                raise

    return receive


def _peer(reply: Shareable) -> None:
    try:
        peer = shareable_to_peer(reply, NETWORK)
    except Exception:  # of any kind: `ModelsOfSites` takes it for a peer that does not answer
        return
    if peer is not None:
        check_model(peer.parameters, peer.buffers, MODEL, BUFFERS, "model")


def _survey(model: FLModel) -> None:
    read = read_answer(model.meta, Question(floor=5))
    assert isinstance(read, Surveyed) or (isinstance(read, str) and read.isprintable())
    if isinstance(read, Surveyed):
        Survey.from_dict(Survey(5, {"a": read}, {}).to_dict())


MESSAGES: Mapping[str, tuple[Callable[[], Any], Read]] = {
    "reply": (
        lambda: answer_to_model(REPLY, NETWORK),
        _answered(
            lambda model: model_to_reply(model, NETWORK),
            lambda one: check_reply(one, 2, MODEL, BUFFERS, LABELS, METHOD, ("Birch",)),
        ),
    ),
    "evaluated": (
        lambda: answer_to_model(Evaluated(2, ((OVERLAP,),), torch.ones(1, 3), 0.5), NETWORK),
        _answered(
            lambda model: model_to_evaluated(model, NETWORK), lambda one: check_evaluated(one, EVALUATION, LABELS)
        ),
    ),
    "tested": (
        lambda: answer_to_model(Evaluated(2, (SURFACES,), torch.ones(1, 3), 0.5), NETWORK),
        _answered(
            lambda model: model_to_evaluated(model, NETWORK),
            lambda one: check_evaluated(one, replace(EVALUATION, purpose=Purpose.FINAL), LABELS),
        ),
    ),
    "importance": (
        lambda: answer_to_model(Importance(2, torch.ones(4, dtype=torch.float64), 8, 1.0), NETWORK),
        _answered(lambda model: model_to_evaluated(model, NETWORK), lambda one: check_importance(one, IMPORTANCE, 4)),
    ),
    "enrolment": (
        lambda: answer_to_model(ENROLMENT, NETWORK),
        _answered(lambda model: model_to_evaluated(model, NETWORK), lambda one: check_enrolment(one, 2)),
    ),
    "countersigned": (
        lambda: answer_to_model(ClosingReceipt(2), NETWORK),
        _answered(lambda model: model_to_evaluated(model, NETWORK), lambda one: check_countersigned(one, 2)),
    ),
    "surveyed": (lambda: FLModel(params={}, meta={"survey": SURVEYED.to_dict()}), _survey),
    "peer": (lambda: peer_to_shareable(PeerModel(MODEL, BUFFERS, 0.5), NETWORK), _peer),
    "task": (lambda: task_to_model(TASK, NETWORK, 9), _asked(model_to_task)),
    "sparse task": (
        lambda: task_to_model(
            replace(TASK, parameters=SparseUpdate(torch.arange(3), torch.ones(3)), neurons=None), NETWORK, 9
        ),
        _asked(model_to_task),
    ),
    "evaluation": (lambda: task_to_model(EVALUATION, NETWORK, 9), _asked(model_to_evaluation)),
    "importance task": (lambda: task_to_model(IMPORTANCE, NETWORK, 9), _asked(model_to_evaluation)),
    "enrolment task": (lambda: task_to_model(EnrolmentTask(2, "0" * 64), NETWORK, 9), _asked(model_to_evaluation)),
    "closing task": (
        lambda: task_to_model(ClosingTask(2, "0" * 64, "0" * 64), NETWORK, 9),
        _asked(model_to_evaluation),
    ),
}
TASKS = ("task", "sparse task", "evaluation", "importance task", "enrolment task", "closing task")
WORK: Mapping[str, str] = {f"work of {name}": name for name in TASKS}  # by what a site does: the message that asks it


def work(site: Site, name: str, message: FLModel) -> None:
    """What `MeritExecutor` does with a task."""
    try:
        task = (model_to_task if name in ("task", "sparse task") else model_to_evaluation)(message, NETWORK)
        answer_to_model(site.answer(task), NETWORK)
    except Exception as error:
        if not describe_failure(error).reason.isprintable():
            raise


FIELDS = ("params", "meta", "current_round", "params_type")


def _value(draw: Drawing) -> Any:
    if draw.random.random() < 0.4:
        return draw.value()
    return draw.random.choice(
        [
            lambda: np.float32("nan"),
            lambda: np.array(0.5),
            lambda: np.zeros(0),
            lambda: np.full(3, np.nan),
            lambda: np.array([1, "a", None], dtype=object),
            lambda: np.array(["x" * 99]),
            lambda: np.zeros(2, [("a", "f4")]),
            lambda: np.zeros((2, 3), np.complex64),
            lambda: np.zeros(2, bool),
            lambda: np.zeros(2, "M8[s]"),
            lambda: np.zeros(2, "V8"),
            lambda: np.full(4, 2**62),
            lambda: np.zeros(1 << 20, np.float32),
            lambda: np.arange(9.0)[::-2],
            lambda: np.zeros((1,) * 30),
            lambda: np.full(3, np.inf, np.float16),
            lambda: np.broadcast_to(np.float32(0), (1 << 12, 1 << 10)),
            lambda: b"bytes",
            lambda: (1, 2),
            lambda: {1, 2},
            lambda: torch.zeros(2),
            lambda: object,
            lambda: range(9),
            lambda: 1j,
            lambda: np.int64(3),
            lambda: {1: 2},
            lambda: {None: []},
            lambda: [[[[1.0]]]] * 9,
            lambda: "x" * 100_000,
            lambda: np.zeros((0, 1 << 40)),
            lambda: np.zeros(3, ">f4"),
            lambda: [np.packbits(np.ones(9, bool)), 10**10],
            lambda: [np.packbits(np.ones(9, bool)), -1],
            lambda: np.ma.masked_all(3),
            lambda: np.zeros(3, np.uint64),
        ]
    )()


def hostile_message(name: str, draw: Drawing) -> Any:
    """A message with one to three changes."""
    whole = MESSAGES[name][0]()
    value = lambda: _value(draw)  # noqa: E731
    if isinstance(whole, Shareable):
        changed = draw.changed(dict(whole), value)
        whole.clear()
        whole.update(changed if isinstance(changed, dict) else {})
        return whole
    changed = draw.changed({one: getattr(whole, one) for one in FIELDS}, value)
    for one in FIELDS:
        setattr(whole, one, changed.get(one) if isinstance(changed, dict) else changed)
    return whole


def size(message: Any) -> int:
    """The bytes of the arrays and texts in a message."""
    total, waiting = 0, [getattr(message, one) for one in FIELDS] if isinstance(message, FLModel) else [dict(message)]
    while waiting:
        one = waiting.pop()
        total += one.nbytes if isinstance(one, np.ndarray) else len(one) if isinstance(one, str | bytes) else 0
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, list | tuple) else ()
    return total
