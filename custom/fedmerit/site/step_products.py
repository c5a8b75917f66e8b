"""What a site measures of its model's steps: its log has it, as evidence of the weights by which the server made them.

By the Gram matrix and the weights in the ledger it is known how long a step is, and how far it goes along each update.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedmerit.contract.vectors import BLOCK
from fedmerit.trainers.memory import Memory


def measure_step(model: Tensor, before: Memory | None, update: Tensor | None = None) -> dict[str, float]:
    """Compute squared norms and inner products of a round's vectors in float64; those of missing vectors are left out.

    Args:
        model: (d,) received, w_t.
        before: of the round before: w_{t-1}, and with it Δ_{t-1}; None: the site was away.
        update: (d,) that leaves, Δ_t; None: none does.

    Returns:
        "model" ‖w_t‖²; "update" ‖Δ_t‖²; "moved" ‖w_t - w_{t-1}‖²; "before" (w_t - w_{t-1}) · Δ_{t-1}.
    """
    vectors = {"model": model} | ({} if update is None else {"update": update})
    pairs = {name: (name, name) for name in vectors}
    if before is not None:
        vectors |= {"received": before.received, "trained": before.trained}
        pairs |= {"moved": ("step", "step"), "before": ("step", "last")}
    sums = torch.zeros(len(pairs), dtype=torch.float64)
    for blocks in _blocks(list(vectors.values())):
        part = dict(zip(vectors, blocks, strict=True))
        if before is not None:
            part["step"] = part["model"] - part["received"]
            part["last"] = part["trained"] - part["received"]
        sums += torch.stack([part[one] @ part[other] for one, other in pairs.values()])
    return dict(zip(pairs, sums.tolist(), strict=True))


def _blocks(vectors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    for blocks in zip(*(torch.split(vector, BLOCK) for vector in vectors), strict=True):
        yield [block.double() for block in blocks]
