"""A round's replies: which of them count, their updates as tensors with a row per site, and what these show.

What `measure_updates` returns is recorded in results.csv for detectors; no method uses it.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedmerit.contract.capabilities import Capabilities
from fedmerit.contract.method import Reports
from fedmerit.contract.vectors import BLOCK, cosine_to_sum, fresh_zeros, gram, norms, ratio
from fedmerit.schema.messages import Evaluated, Evaluation, Reply, payload_bytes
from fedmerit.server.exchange import Exchange
from fedmerit.server.round_inputs import Ratings

Replies = Sequence[Reply | None]  # in site order; None: absent or rejected


@dataclass(frozen=True)
class RoundReplies:
    """A round's messages: which of them count, and which do not."""

    replies: Replies
    rejected: Mapping[str, str]  # the reason, by site, and by the name in the message for other messages
    received: Sequence[int]  # bytes sent to each site
    evaluated: Mapping[str, Sequence[Evaluated]] = field(default_factory=dict)  # by site, its ratings that count
    ratings: Mapping[str, Ratings] = field(default_factory=dict)  # what they say, and the server, by what is rated
    rated: Mapping[str, Mapping[str, Evaluation]] = field(default_factory=dict)  # by what is rated, the raters' tasks
    left: Collection[str] = ()  # sites that were not asked, as they left the run
    failed: Collection[str] = ()  # of the rejected: sites that sent no answer to the training task

    @classmethod
    def collect(
        cls, training: Exchange, sites: Sequence[str], earlier: tuple[int, Mapping[str, str]]
    ) -> "RoundReplies":
        """Collect a training's answers; ``earlier`` are bytes sent to each site in the round before it, and faults.

        Raises:
            RunFailed: too few sites sent a usable reply.
        """
        usable, (size, faults) = training.usable(), earlier
        replies = [usable.get(site) for site in sites]
        asked = training.tasks
        received = [payload_bytes(asked[site]) + size if site in asked else 0 for site in sites]
        left = [site for site in sites if site not in asked]
        return cls(replies, {**faults, **training.faults()}, received, left=left, failed=training.failed)  # type: ignore[arg-type]

    def num_samples(self, sites: Sequence[str]) -> dict[str, int]:
        """Return, by site with a reply, its training images."""
        return {site: reply.num_samples for site, reply in zip(sites, self.replies, strict=True) if reply}

    def with_ratings(
        self, sites: Sequence[str], ratings: Mapping[str, Evaluated], sizes: Sequence[int], rejected: Mapping[str, str]
    ) -> "RoundReplies":
        """Return the replies with what sites evaluated in the same round.

        ``sizes`` are the bytes sent to each of ``sites`` for it.
        """
        replies = [
            reply and replace(reply, seconds=reply.seconds + (ratings[site].seconds if site in ratings else 0.0))
            for site, reply in zip(sites, self.replies, strict=True)
        ]
        received = [before + size for before, size in zip(self.received, sizes, strict=True)]
        rated = {site: (*self.evaluated.get(site, ()), one) for site, one in ratings.items()}
        evaluated = {**self.evaluated, **rated}
        return replace(self, replies=replies, rejected=rejected, received=received, evaluated=evaluated)


def stack_replies(
    replies: Replies, sites: Sequence[str], size: int, asks: Iterable[str], can: Capabilities
) -> tuple[Tensor, Reports]:
    """Return the updates (n, size) and what the sites report; rows of absent sites are zero or NaN."""
    n = len(replies)
    updates = rows([reply.update if reply else None for reply in replies], size)
    vectors = {name: rows([reply.vectors[name] if reply else None for reply in replies], size) for name in can.vectors}
    samples = torch.zeros(n, dtype=torch.float64)
    values = {name: torch.full((n,), math.nan, dtype=torch.float64) for name in asks}
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
    """Return (n, size) of ``vectors`` (size,); rows of None are zero."""
    result = fresh_zeros(len(vectors), size)
    for row, vector in zip(result, vectors, strict=True):
        if vector is not None:
            row.copy_(vector)
    return result


def measure_updates(
    updates: Tensor, products: Tensor, weights: Tensor, present: Tensor, last_mean: Tensor | None
) -> tuple[Tensor | None, Mapping[str, Tensor]]:
    """Return the mean of a round's updates, and each update's relation to it, to the others and to the mean before.

    Args:
        updates: (n, d), zero rows for absent sites; d = 0: the server does not see them, and nothing is measured.
        products: (n, n) their Gram matrix, float64.
        weights: (n,) ρ of the round's aggregation, 0 for absent sites.
        present: (n,) bool, the sites whose update counts.
        last_mean: (d,) the mean of the round before, if any.

    Returns:
        (d,) Σ ρ_j Δ_j in the dtype of the updates; and float64 quantities (n,), NaN for absent sites:
        ``norm``, ‖Δ_i‖; ``cosine_to_mean``, cos(Δ_i, Σ ρ_j Δ_j) (Section 4.3, Jiang et al. 2023);
        ``cosine_to_previous``, to the mean of the round before, NaN if there is none; ``largest_pair_cosine``, to
        the nearest other update, NaN if there is no other (Fung et al. 2020). A cosine to zeros is 0.
    """
    if not updates.shape[1]:
        return last_mean, {}
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
    pairs = ratio(products, torch.outer(lengths, lengths)).clamp(-1, 1).where(others, -torch.inf).amax(dim=1)
    to_previous = ratio(to_last, lengths * last_square.sqrt()).clamp(-1, 1)
    quantities = {
        "norm": lengths,
        "cosine_to_mean": cosine_to_sum(products, rho),
        "cosine_to_previous": torch.full_like(lengths, torch.nan) if last_mean is None else to_previous,
        "largest_pair_cosine": pairs.where(others.any(dim=1), torch.nan),
    }
    return mean, {name: values.where(present, torch.nan) for name, values in quantities.items()}
