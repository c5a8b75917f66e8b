"""The checks of answers: what the server expects of each, from its task and the run. It uses only what passes them."""

from collections.abc import Collection

from torch import Tensor

from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import Method
from fedmerit.schema.codec import inspect
from fedmerit.schema.messages import (
    ClosingReceipt,
    Enrolment,
    Evaluated,
    Evaluation,
    Importance,
    ImportanceTask,
    PeerModel,
    Purpose,
    Reply,
)

MOST_CHOICES = 1000  # of a site in its final model selection


def check_reply(
    answer: object,
    round: int,
    model: Tensor,
    buffers: Buffers,
    labels: Collection[str],
    method: Method,
    others: Collection[str] = (),
    scored: bool = False,
) -> str | None:
    """Return why the answer to a training task cannot be used, or None.

    Args:
        answer: the `Reply` of a site, or anything else that came.
        round: of the task.
        model: (d,) whose size the update has.
        buffers: BatchNorm statistics whose names, shapes and types the reply's have.
        labels: of the task.
        method: of the run; it knows what it asks for.
        others: the names of the other sites.
        scored: whether sites give scores, instead of counts of voxels.
    """
    can = capabilities(method)
    expected = {"round": round, "d": len(model), "buffers": buffers, "labels": labels, "scored": scored}
    ranges = {"values": method.asks, "pairs": can.peer_quantities}
    return inspect(answer, Reply, expected | ranges | {"other sites": others, "vectors": can.vectors})


def check_evaluated(answer: object, task: Evaluation, labels: Collection[str], scored: bool = False) -> str | None:
    """Return why the answer to an evaluation cannot be used, or None; arguments as of `check_reply`."""
    expected = {
        "round": task.round,
        "labels": labels,
        "scored": scored or task.soft,
        "models": task.count,
        "choices": MOST_CHOICES if task.purpose is Purpose.FINISH else 0,
        "surfaces": task.purpose in (Purpose.FINAL, Purpose.FINISH),
        "buffers": task.buffers[0] if task.purpose is Purpose.ESTIMATE else {},
    }
    sizes = {} if task.purpose is Purpose.ESTIMATE else {"k": task.count, "bins": task.bins}
    return inspect(answer, Evaluated, expected | sizes)


def check_importance(answer: object, task: ImportanceTask, neurons: int) -> str | None:
    """Return why the importance of a number of ``neurons`` cannot be used, or None."""
    expected = {"round": task.round, "H": neurons, "images": task.images, "order": task.order}
    return inspect(answer, Importance, expected)


def check_enrolment(answer: object, round: int) -> str | None:
    """Return why an enrolment before ``round`` cannot be used, or None."""
    return inspect(answer, Enrolment, {"round": round})


def check_countersigned(answer: object, round: int) -> str | None:
    """Return why the receipt of a run's closing, after ``round`` rounds, cannot be used, or None."""
    return inspect(answer, ClosingReceipt, {"round": round})


def check_model(vector: Tensor, buffers: Buffers, like: Tensor, like_buffers: Buffers) -> str | None:
    """Return why parameters (d,) and BatchNorm statistics are none of a model like another one, or None."""
    return inspect(PeerModel(vector, buffers, 0.0), PeerModel, {"d": len(like), "buffers": like_buffers})
