"""What a site measures of its model's steps: its log has it, as evidence of the weights by which the server made them,
and of the site's own work, against a verdict whose scores only the server can compute.

By the Gram matrix and the weights in the ledger it is known how long a step is, and how far it goes along each update.

A model's step is a sum of updates, s = Σ a_j u_j. Removed from it and from the site's update u_i is what could be sent
without work, as far as the site knows that: the model's earlier steps and its own first and last update. What remains
is q of the step and r of the update, so q - a_i r of the others, with the a_i that the ledger gives. The score

    z = Σ r (q - a_i r) / √(Σ r² (q - a_i r)²)

has mean 0 and variance at most 1 if r has nothing to do with the others' work: see `fedmerit.guard.work`.
"""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedmerit.contract.vectors import BLOCK
from fedmerit.guard.work import REMEMBERED, new_parts, sketch
from fedmerit.trainers.memory import Memory

WIDTH = 4096  # of sketches: real updates show z² of hundreds a round then
OWN = 2  # first rows of what is old: the first and the last update
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


def list_old_parts(model: Tensor, before: Memory | None, seed: int) -> Tensor:
    """Return (2 + k, m) sketches of what the site could send without work once it has a model.

    Args:
        model: (d,) received.
        before: of its last round; None: there was none.
        seed: of sketches.

    Returns:
        Its first and last update, and the k last steps of the model; rows of zeros if they do not exist yet.
    """
    if before is None or before.old is None:
        return torch.zeros(OWN, min(len(model), WIDTH))
    moved = torch.stack([before.trained, model]) - before.received
    update, step = sketch(moved, seed, WIDTH).nan_to_num(0, 0, 0)  # what is not finite was not accepted
    first = before.old[0] if before.old[0].any() else update
    return torch.cat([torch.stack([first, update]), torch.cat([before.old[OWN:], step[None]])[-REMEMBERED:]])


def measure_work(old: Tensor, before: Memory | None) -> dict[str, float]:
    """Compute the sums over m entries from which the score z follows.

    Args:
        old: (2 + k, m) `list_old_parts` once the site has the model of the round after, with the update and the step.
        before: of the round of the update; None: the site was away.

    Returns:
        Sums of products of r and q by name: "rr" is Σ r², "rrrq" is Σ r³ q.
    """
    if before is None or before.old is None:
        return {}
    r, q = new_parts(old[[OWN - 1, -1]], before.old)
    products = {"rr": r * r, "rq": r * q, "qq": q * q}
    products |= {f"rr{name}": r * r * product for name, product in products.items()}
    return {name: float(product.sum()) for name, product in products.items()}


def _signs(head: str, size: int) -> Tensor:
    """Return (`DIRECTIONS`, d) zeros and ones, those of SHAKE-256 of a head, in uint8."""
    width = -(-size // 8)
    stream = hashlib.shake_256(f"directions {head}".encode()).digest(DIRECTIONS * width)
    return torch.from_numpy(np.unpackbits(np.frombuffer(stream, np.uint8).reshape(DIRECTIONS, width), axis=1)[:, :size])


def _blocks(vectors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    for blocks in zip(*(torch.split(vector, BLOCK) for vector in vectors), strict=True):
        yield [block.double() for block in blocks]
