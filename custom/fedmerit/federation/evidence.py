"""What a round's updates say of the sites whatever the method: norms and cosines, from their Gram matrix.

Recorded in results.csv for `evaluation.freeriders.detection`; no method acts on it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedmerit.vectors import BLOCK, cosine_to_sum, norms


def evidence_of(
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
