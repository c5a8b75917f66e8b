"""Every message of a federation, by name, and what its receiver does with it up to the checks of its own.

What a site makes of a task may end with any exception: `MeritExecutor.execute` reports its kind. What the server makes
of an answer, and what a site makes of a peer's, may not: the checks say in words what is wrong.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from message_samples import ANSWERED, MESSAGES, TASKS
from nvflare.app_common.abstract.fl_model import FLModel
from pretending import NETWORK, tiny_plan
from structures import Drawing

from fedmerit.engines.nvflare.translation import message_to_model, model_to_answer, model_to_task
from fedmerit.errors import BadInput
from fedmerit.schema.codec import decode, encode
from fedmerit.schema.messages import Failure, PeerModel, Reply, describe_failure, payload_bytes, rounded
from fedmerit.site.site import Site

PLAN = tiny_plan("fedce")
WORK: Mapping[str, str] = {f"work of {name}": name for name in TASKS if name != "question"}  # by work: the task
FIELDS = ("params", "meta", "current_round", "params_type")


def valid_message(name: str) -> FLModel:
    """The message as NVFlare carries it."""
    message = MESSAGES[name]
    if isinstance(message, PeerModel):
        return FLModel(params={}, meta=encode(message, NETWORK)[1])
    return message_to_model(message, NETWORK, 9)


def receive(name: str, model: FLModel) -> None:
    """What the receiver of a message does with it, up to its use."""
    if name in TASKS:
        try:
            payload_bytes(model_to_task(model, NETWORK))
        except Exception as error:
            if not describe_failure(error).reason.isprintable():
                raise
    elif name == "peer":
        try:
            peer = decode({}, model.meta, NETWORK, (PeerModel,))
        except BadInput:
            return
        ANSWERED[name].check(peer)
    else:
        answer = model_to_answer(model, NETWORK)
        fault = ANSWERED[name].check(answer) if name in ANSWERED else None
        assert fault is None or (isinstance(fault, str) and (isinstance(answer, Failure) or fault.isprintable()))
        if fault is None and isinstance(rounded(answer), Reply):
            payload_bytes(answer)


def work(site: Site, name: str, message: FLModel) -> None:
    """What `MeritExecutor` does with a task."""
    try:
        message_to_model(site.answer(model_to_task(message, NETWORK)), NETWORK)
    except Exception as error:
        if not describe_failure(error).reason.isprintable():
            raise


VALUES: tuple[Callable[[], Any], ...] = (
    lambda: np.float32("nan"), lambda: np.array(0.5), lambda: np.zeros(0),
    lambda: np.array([1, "a", None], dtype=object), lambda: np.array(["x" * 99]), lambda: np.zeros(2, [("a", "f4")]),
    lambda: np.zeros((2, 3), np.complex64), lambda: np.zeros(2, bool), lambda: np.zeros(2, "M8[s]"),
    lambda: np.zeros(2, "V8"), lambda: np.full(4, 2**62), lambda: np.arange(9.0)[::-2], lambda: np.zeros((1,) * 30),
    lambda: np.full(3, np.inf, np.float16), lambda: np.broadcast_to(np.float32(0), (1 << 12, 1 << 10)),
    lambda: b"bytes", lambda: {1, 2}, lambda: torch.zeros(2), lambda: object, lambda: range(9), lambda: np.int64(3),
    lambda: {None: []}, lambda: [[[[1.0]]]] * 9, lambda: "x" * 100_000, lambda: np.zeros((0, 1 << 40)),
    lambda: np.zeros(3, ">f4"), lambda: [np.packbits(np.ones(9, bool)), 10**10],
    lambda: [np.packbits(np.ones(9, bool)), -1], lambda: np.ma.masked_all(3), lambda: np.zeros(3, np.uint64)
)  # fmt: skip


def _containers(value: Any) -> Any:
    """A copy in containers that can be changed."""
    if isinstance(value, Mapping):
        return {name: _containers(entry) for name, entry in value.items()}
    return [_containers(entry) for entry in value] if isinstance(value, list | tuple) else value


def hostile_message(name: str, draw: Drawing) -> FLModel:
    """A message with one to three changes."""
    model = valid_message(name)
    value = lambda: draw.value() if draw.random.random() < 0.4 else draw.random.choice(VALUES)()  # noqa: E731
    changed = draw.changed({field: _containers(getattr(model, field)) for field in FIELDS}, value)
    for field in FIELDS:
        setattr(model, field, changed.get(field) if isinstance(changed, dict) else changed)
    return model


def size(message: FLModel) -> int:
    """The bytes of the arrays and texts in a message."""
    total, waiting = 0, [getattr(message, field) for field in FIELDS]
    while waiting:
        value = waiting.pop()
        total += value.nbytes if isinstance(value, np.ndarray) else len(value) if isinstance(value, str | bytes) else 0
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return total
