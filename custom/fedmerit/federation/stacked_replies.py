"""The sites' replies of a round as tensors, a row per site: what methods and the guard work on."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedmerit.capabilities.local_training import TrainsLocally
from fedmerit.capabilities.peer_learning import LearnsFromPeers
from fedmerit.core import Method, Reports
from fedmerit.federation.recorder import Replies
from fedmerit.vectors import fresh_zeros, gram


def stacked(replies: Replies, sites: Sequence[str], size: int, method: Method) -> tuple[Tensor, Reports]:
    """The updates (n, size) and what the sites said, rows of absent sites zero or NaN.

    Args:
        replies: of the n ``sites``, None where there is none that can be used.
        sites: their names, in the order of the rows.
        size: of an update.
        method: what it asks the sites for is what they said.
    """
    n = len(replies)
    asks_of_peers = method.asks_of_peers if isinstance(method, LearnsFromPeers) else ()
    beside = method.vectors if isinstance(method, TrainsLocally) else ()
    updates = rows([reply.update if reply else None for reply in replies], size)
    vectors = {name: rows([reply.vectors[name] if reply else None for reply in replies], size) for name in beside}
    samples = torch.zeros(n, dtype=torch.float64)
    values = {name: torch.full((n,), math.nan, dtype=torch.float64) for name in method.asks}
    pairs = {name: torch.full((n, n), math.nan, dtype=torch.float64) for name in asks_of_peers}
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
