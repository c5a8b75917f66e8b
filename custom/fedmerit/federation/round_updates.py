"""The sites' replies of a round as tensors, a row per site: what methods and the guard work on.

What a round's updates say of the sites whatever the method: norms and cosines, from their Gram matrix.

Recorded in results.csv for `fedmerit_evaluation.freeriders.detectors`; no method acts on it.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedmerit.capabilities import capabilities
from fedmerit.core import Method, Reports
from fedmerit.federation.recorder import Replies
from fedmerit.vectors import BLOCK, cosine_to_sum, fresh_zeros, gram, norms


def stack_replies(replies: Replies, sites: Sequence[str], size: int, method: Method) -> tuple[Tensor, Reports]:
    """The updates (n, size) and what the sites said, rows of absent sites zero or NaN.

    Args:
        replies: of the n ``sites``, None where there is none that can be used.
        sites: their names, in the order of the rows.
        size: of an update.
        method: what it asks the sites for is what they said.
    """
    n = len(replies)
    can = capabilities(method)
    updates = rows([reply.update if reply else None for reply in replies], size)
    vectors = {name: rows([reply.vectors[name] if reply else None for reply in replies], size) for name in can.vectors}
    samples = torch.zeros(n, dtype=torch.float64)
    values = {name: torch.full((n,), math.nan, dtype=torch.float64) for name in method.asks}
    pairs = {name: torch.full((n, n), math.nan, dtype=torch.float64) for name in can.peer_quantities}
    for row, reply in enumerate(replies):
        if reply:
            samples[row] = reply.num_samples
            for name, value in reply.values.items():
                values[name][row] = value
            for name, of_others in reply.pairs.items():
                for site, value in of_others.items():
                    pairs[name][row, sites.index(site)] = value
    present = torch.tensor([reply is not None for reply in replies])
    return updates, Reports(samples, present, values, pairs=pairs, products=gram(updates), vectors=vectors)


def rows(vectors: Sequence[Tensor | None], size: int) -> Tensor:
    """(n, size) of ``vectors`` (size,), rows of those that are not there zero."""
    result = fresh_zeros(len(vectors), size)
    for row, vector in zip(result, vectors, strict=True):
        if vector is not None:
            row.copy_(vector)
    return result


def measure_updates(
    updates: Tensor, products: Tensor, weights: Tensor, present: Tensor, last_mean: Tensor | None
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The mean of a round's updates, and what each is to it, to the others and to the mean of the round before.

    Args:
        updates: (n, d), zero rows for absent sites.
        products: (n, n) their Gram matrix, float64.
        weights: (n,) ρ of the round's aggregation, 0 for absent sites.
        present: (n,) bool, whose update counts.
        last_mean: (d,) what this function gave for the round before, if any.

    Returns:
        (d,) Σ ρ_j Δ_j in the dtype of the updates; and float64 quantities (n,), NaN for absent sites:
        ``norm``, ‖Δ_i‖; ``cosine_to_mean``, cos(Δ_i, Σ ρ_j Δ_j) (Section 4.3, Jiang et al. 2023);
        ``cosine_to_previous``, to the mean of the round before, NaN where there is none; ``largest_pair_cosine``, to
        the nearest other update, NaN where there is no other (Fung et al. 2020). A cosine to zeros is 0.
    """
    rho, n = weights.double(), len(updates)
    mean = torch.empty_like(updates[0])
    to_last, last_square = torch.zeros(n, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for start in range(0, updates.shape[1], BLOCK):  # in one pass, as the vectors are long
        part = slice(start, start + BLOCK)
        rows = updates[:, part].double()
        mean[part] = rho @ rows
        if last_mean is not None:
            last = last_mean[part].double()
            to_last += rows @ last
            last_square += last @ last
    lengths = norms(products)
    others = present[:, None] & present & ~torch.eye(n, dtype=torch.bool)
    pairs = _cosines(products, torch.outer(lengths, lengths)).where(others, -torch.inf).amax(dim=1)
    quantities = {
        "norm": lengths,
        "cosine_to_mean": cosine_to_sum(products, rho),
        "cosine_to_previous": _cosines(to_last, lengths * last_square.sqrt()),
        "largest_pair_cosine": pairs.where(others.any(dim=1), torch.nan),
    }
    if last_mean is None:
        quantities["cosine_to_previous"] = torch.full_like(lengths, torch.nan)
    return mean, {name: values.where(present, torch.nan) for name, values in quantities.items()}


def _cosines(inner: Tensor, scale: Tensor) -> Tensor:
    return torch.where(scale > 0, inner / scale.where(scale > 0, 1.0), 0.0).clamp(-1, 1)
