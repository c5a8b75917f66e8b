"""A training's result, kept with the site's memory of the round until the server has it.

The same task, asked again because the line was cut or the server ended, is answered from it without training again.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from fedmerit.schema.scores import Overlap
from fedmerit.trainers.memory import Learned, Memory
from fedmerit.trainers.trainer import Trained

OVERLAPS = ("overlaps", "trained_overlaps")


def keep_answer(trained: Trained, received: Tensor, question: str, seconds: float) -> Mapping[str, Any]:
    """All that a `Memory` lacks of ``trained``, in what a file of tensors holds.

    Args:
        trained: of the round.
        received: (d,) the model that it began with.
        question: digest of what was asked for.
        seconds: that it took.
    """
    learned = trained.learned
    is_difference = torch.equal(learned.update, learned.trained - received)  # of an attack it need not be
    return {
        "question": question,
        "seconds": seconds,
        "num_samples": trained.num_samples,
        "values": dict(trained.values),
        **{name: [asdict(one) for one in getattr(trained, name)] for name in OVERLAPS},
        "update": None if is_difference else learned.update,
        "loss": learned.loss,
        "pairs": {name: dict(of_peers) for name, of_peers in learned.pairs.items()},
        "vectors": dict(learned.vectors),
    }


def recall_answer(memory: Memory | None, received: Tensor, question: str) -> tuple[Trained, float] | None:
    """What the round gave, and the seconds that it took; None if it was asked for something else.

    ``memory``: of the round, None if it is not done; the others are those of `keep_answer`.
    """
    kept = memory and memory.answer
    if memory is None or not kept or kept["question"] != question or not torch.equal(memory.received, received):
        return None
    learned = Learned(
        update=unfiltered_update(memory),
        trained=memory.trained,
        buffers=memory.buffers,
        loss=kept["loss"],
        pairs=kept["pairs"],
        weights=memory.weights,
        vectors=kept["vectors"],
        kept=memory.kept,
        own=memory.own,
    )
    overlaps = {name: tuple(Overlap.from_dict(**one) for one in kept[name]) for name in OVERLAPS}
    return Trained(learned, kept["num_samples"], **overlaps, values=kept["values"]), kept["seconds"]


def unfiltered_update(memory: Memory) -> Tensor:
    """(d,) what the training gave, whatever a privacy filter made of it."""
    kept = memory.answer["update"] if memory.answer else None
    return memory.trained - memory.received if kept is None else kept
