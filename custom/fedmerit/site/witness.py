"""What a site notes of its own work: evidence against a verdict whose scores only the server can compute.

A model's step is a sum of updates, s = Σ a_j u_j. Removed from it and from the site's update u_i is what could be sent
without work, as far as the site knows that: the model's earlier steps and its own first and last update. What remains
is q of the step and r of the update, so q - a_i r of the others, with the a_i that the ledger gives. The score

    z = Σ r (q - a_i r) / √(Σ r² (q - a_i r)²)

has mean 0 and variance at most 1 if r has nothing to do with the others' work: see `fedmerit.guard.work`.
"""

import torch
from torch import Tensor

from fedmerit.guard.work import REMEMBERED, new_parts, sketch
from fedmerit.trainers.memory import Memory

WIDTH = 4096  # of sketches: real updates show z² of hundreds a round then
OWN = 2  # first rows of what is old: the first and the last update


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
