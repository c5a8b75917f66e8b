"""What a site measures of its model's steps: its log has it, as evidence of the weights by which the server made them.

By the Gram matrix and the weights in the ledger it is known how long a step is, and how far it goes along each update.
"""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedmerit.contract.vectors import BLOCK
from fedmerit.trainers.memory import Memory

DIRECTIONS = 8  # a wrong step, 100 times as long as rounding, passes them all with a probability of about 1e-17


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


def project_step(model: Tensor, before: Memory | None, head: str) -> list[list[float]]:
    """Compute how far a site's last update, and the model's step since, go along random directions, in float64.

    If the step is a sum of updates, so are its projections. The directions are signs that follow from the ledger head,
    which has the digest of the model: the server knows them only once it cannot change the model any more.

    Args:
        model: (d,) received, w_t.
        before: of the round before: w_{t-1} and Δ_{t-1}; None: the site was away.
        head: hash of the ledger's last record.

    Returns:
        r_k · Δ_{t-1} and r_k · (w_t - w_{t-1}), k = 1 ... `DIRECTIONS`; nothing if the site was away, or a
        number is not finite.
    """
    if before is None:
        return []
    signs = _signs(head, len(model))
    sums, start = torch.zeros(2, DIRECTIONS, dtype=torch.float64), 0
    for new, received, trained in _blocks([model, before.received, before.trained]):
        directions = signs[:, start : start + len(new)].double() * 2 - 1
        sums += torch.stack([directions @ (trained - received), directions @ (new - received)])
        start += len(new)
    return sums.tolist() if bool(sums.isfinite().all()) else []


def _signs(head: str, size: int) -> Tensor:
    """Return (`DIRECTIONS`, d) zeros and ones, those of SHAKE-256 of a head, in uint8."""
    width = -(-size // 8)
    stream = hashlib.shake_256(f"directions {head}".encode()).digest(DIRECTIONS * width)
    return torch.from_numpy(np.unpackbits(np.frombuffer(stream, np.uint8).reshape(DIRECTIONS, width), axis=1)[:, :size])


def _blocks(vectors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    for blocks in zip(*(torch.split(vector, BLOCK) for vector in vectors), strict=True):
        yield [block.double() for block in blocks]
