"""Functions that methods share, on updates (n, d), models and Gram matrices.

n sites, d trainable parameters. Rows are in site-name order, always; reductions are in float64.
"""

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

BLOCK = 1 << 15  # entries at a time in float64: they fit the cache, and the stack is never copied
LARGE = 1 << 23  # bytes from which large pages are faster


def fresh_zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return zeros on the CPU as `torch.zeros` does, large ones in pages of 2 MB if the system has them.

    Pages of 4 kB take most of the time of stacking six updates of 31 MB. The memory is freed with the last tensor that
    views it.
    """
    size = math.prod(shape) * dtype.itemsize
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if size < LARGE or advice is None:
        return torch.zeros(*shape, dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # zero, as the system gives it
    with suppress(OSError):  # a system without large pages
        memory.madvise(advice)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)


def share(amounts: Tensor, present: Tensor) -> Tensor:
    """Return (n,) ``amounts`` normalised to sum 1 over the present sites; equal shares if they sum to 0."""
    amounts = torch.where(present, amounts.double(), 0.0)
    if amounts.sum() <= 0:
        amounts = present.double()
    return amounts / amounts.sum()


def share_known(amounts: Tensor, present: Tensor) -> Tensor:
    """Return (n,) shares of the present sites, summing to 1.

    A site whose amount is NaN counts as the mean of the others.
    """
    known = present & amounts.isfinite()
    mean = amounts[known].mean() if known.any() else torch.tensor(1.0, dtype=torch.float64)
    return share(amounts.where(known, mean).clamp(min=0), present)


def remember(memory: Tensor, now: Tensor, alpha: float, present: Tensor) -> Tensor:
    """Return (n,) α memory + (1-α) now for the present sites; absent ones keep what they have."""
    return torch.where(present, alpha * memory + (1 - alpha) * now, memory)


def reshare(memory: Tensor, amounts: Tensor, present: Tensor) -> Tensor:
    """Return (n,) ``memory``, with the present sites' sum divided again among them by ``amounts``.

    Absent ones keep theirs.

    Their sum counts as 1 if they have nothing, as before the first round. With all sites present it is `share`.
    """
    held = float(memory[present].sum())
    return torch.where(present, share(amounts, present) * (min(held, 1.0) if held > 0 else 1.0), memory)


def extremes(vectors: Tensor) -> tuple[float, float]:
    """Return the smallest and the largest entry, both NaN if any entry is, 0 if there is none; reads all once."""
    if not vectors.numel():
        return 0.0, 0.0
    low, high = vectors.aminmax()
    return float(low), float(high)


def all_finite(vectors: Tensor) -> bool:
    """Return whether no entry is NaN or infinite."""
    return all(map(math.isfinite, extremes(vectors)))


def gram(updates: Tensor) -> Tensor:
    """Return (n, n) float64 inner products of the rows of (n, d) ``updates``: every norm and cosine of a round."""
    n = len(updates)
    result = torch.zeros(n, n, dtype=torch.float64)
    for block in torch.split(updates, BLOCK, dim=1):
        block = block.double()
        result += block @ block.T
    return result.triu() + result.triu(1).T  # exactly symmetric, so that half of it is all of it


def norms(products: Tensor) -> Tensor:
    """Return (n,) norms of the updates, from their Gram matrix."""
    return products.diagonal().clamp(min=0).sqrt()


def cosine_to_sum(products: Tensor, weights: Tensor) -> Tensor:
    """Return (n,) cosine of each update and the weighted sum of all, from their Gram matrix; 0 if either is zero."""
    weights = weights.double()
    sum_norm = torch.einsum("j,jk,k->", weights, products, weights).clamp(min=0).sqrt()
    return ratio(products @ weights, norms(products) * sum_norm).clamp(-1, 1)


def cosine_to_others(products: Tensor, weights: Tensor) -> Tensor:
    """Return (n,) cosine of each update and the weighted sum of the others, from their Gram matrix.

    0 if either vector is zero, as for a single site.

    Args:
        products: (n, n) Gram matrix of the updates.
        weights: (n,) weights of the sum.
    """
    others = weights.double().repeat(len(weights), 1).fill_diagonal_(0.0)  # row i: the weights without site i
    inner = (others * products).sum(dim=1)
    sums = torch.einsum("ij,jk->ik", others, products)  # one after the other: a search for the best order takes longer
    others_norm = torch.einsum("ik,ik->i", sums, others).clamp(min=0).sqrt()
    return ratio(inner, norms(products) * others_norm).clamp(-1, 1)


def ratio(amounts: Tensor, scale: Tensor) -> Tensor:
    """Return ``amounts`` / ``scale``, 0 where ``scale`` is not positive."""
    return torch.where(scale > 0, amounts / scale.where(scale > 0, 1.0), 0.0)


def aggregate(model: Tensor, weights: Tensor, updates: Tensor) -> Tensor:
    """Return (d,) ``model`` plus the weighted sum of ``updates`` (n, d), in its dtype, summed in float64 in site
    order.
    """
    result, weights = torch.empty_like(model), weights.double()
    for start in range(0, len(model), BLOCK):
        part = slice(start, start + BLOCK)
        result[part] = torch.addmv(model[part].double(), updates[:, part].double().T, weights)
    return result


def trimmed_mean(updates: Tensor, cut: int) -> Tensor:
    """Return (d,) the mean of each column of ``updates`` (k, d) without its ``cut`` smallest and largest entries, 2 cut
    < k.

    With ``cut`` = (k - 1) // 2 it is the median, of an even k the mean of the two in the middle.
    """
    blocks = torch.split(updates, BLOCK, dim=1)
    kept = (block.sort(dim=0).values[cut : len(updates) - cut] for block in blocks)
    return torch.cat([rows.double().mean(dim=0).to(updates.dtype) for rows in kept])


def average_submodels(
    model: Tensor, models: Tensor, updates: Tensor, held: Tensor, amounts: Tensor, normalised: bool = True
) -> tuple[Tensor, Tensor]:
    """Return (d,) every parameter averaged over the sites that hold it, else that of ``model``; and (n,) their parts.

    A site's part is the sum over the parameters that it holds of its share in them.

    Args:
        model: (d,).
        models: (n, d) from which the sites trained.
        updates: (n, d).
        held: (n, d) bool.
        amounts: (n,) what a site counts.
        normalised: divide by the holders' amounts; if not, by 1, though the holders' may sum to less.
    """
    model, parts = model.clone(), torch.zeros(len(amounts), dtype=torch.float64)
    for start in range(0, len(model), BLOCK):
        part = slice(start, start + BLOCK)
        masks = held[:, part].double() * amounts[:, None]
        total = masks.sum(dim=0)
        parts += (masks / total.where(total > 0, 1.0)).sum(dim=1)
        divisor = total if normalised else torch.ones_like(total)
        trained = (models[:, part].double() + updates[:, part].double()).where(held[:, part], 0.0)
        mean = (masks * trained).sum(dim=0) / divisor.where(total > 0, 1.0)
        model[part] = mean.to(model.dtype).where(total > 0, model[part])
    return model, parts


def quota_counts(quotas: Tensor, size: int) -> list[int]:
    """Return floor(size * quota) entries for each quota in [0, 1].

    The 1e-9 keeps 0.3 * 10 at 3 whatever rounding does.
    """
    return [min(size, math.floor(size * max(0.0, float(quota)) + 1e-9)) for quota in quotas]


def parameter_mask(neurons: Tensor, owners: Tensor) -> Tensor:
    """Return (..., d) bool: the parameters of the ``neurons`` (..., H) that are held; those of no neuron always are.

    Args:
        neurons: bool.
        owners: (d,) the neuron of each parameter, -1: none.
    """
    always = neurons.new_ones(*neurons.shape[:-1], 1)  # which the owner -1 finds at the end
    return torch.cat([neurons, always], dim=-1)[..., owners.long()]


def histogram(losses: Tensor, bins: int) -> Tensor:
    """Return (bins,) how many of ``losses`` (images,) lie in each of as many equal bins on [0, 1], the last one
    closed.
    """
    return torch.histc(losses.double().cpu(), bins, 0.0, 1.0)


def keep_largest(vector: Tensor, counts: Sequence[int]) -> Tensor:
    """Return (n, d) bool: row i marks the ``counts[i]`` largest magnitudes of ``vector`` (d,), ties to the lower index.

    A count of d marks everything, a count of 0 nothing.
    """
    least = smallest_kept(vector, counts)
    masks = fresh_zeros(len(counts), len(vector), dtype=torch.bool)
    for start in range(0, len(vector), BLOCK):
        part = slice(start, start + BLOCK)
        np.greater_equal(vector[part].abs().numpy(), least[:, None], out=masks[:, part].numpy())
    for mask, count, threshold in zip(masks.numpy(), counts, least, strict=True):
        if (extra := np.count_nonzero(mask) - count) > 0:
            mask[np.flatnonzero(vector.abs().numpy() == threshold)[-extra:]] = False
    return masks


def smallest_kept(vector: Tensor, counts: Sequence[int]) -> np.ndarray:
    """Return (n,) the smallest of the ``counts[i]`` largest magnitudes of ``vector`` (d,); infinity for a count of 0.

    Magnitudes are in the order of their bits. So it is enough to count once how often each upper 16 occur (exponent and
    first bits of the fraction), and to look at the few entries that share them with one that is sought.
    """
    upper = vector.view(torch.int16).view(-1, vector.itemsize // 2)[:, -1] & 0x7FFF  # last in memory; without the sign
    up_to = upper.bincount().cumsum(0).numpy()
    least = np.full(len(counts), np.inf, vector.numpy().dtype)
    for place, count in enumerate(counts):
        if count > 0:
            rank = len(vector) - count  # from the smallest, 0
            bits = int(np.searchsorted(up_to, rank, side="right"))
            alike = vector[np.flatnonzero(upper.numpy() == bits)].abs().numpy()
            rank -= up_to[bits] - len(alike)  # among these
            least[place] = np.partition(alike, rank)[rank]
    return least


def keep_largest_per_tensor(vector: Tensor, quotas: Tensor, tensor_sizes: Sequence[int]) -> Tensor:
    """Return (n, d) bool: the rule of CGSV's released code, tensor by tensor.

    Of a tensor with s > 1 elements, min(ceil(s * quota), s - 1) are kept, so even a quota of 1 loses the
    smallest of each; of a tensor with one element, that one. A quota of 0 keeps nothing.
    """
    pieces = []
    for piece in torch.split(vector, list(tensor_sizes)):
        size = len(piece)
        most = max(size - 1, 1)
        pieces.append(
            keep_largest(piece, [min(math.ceil(size * float(q) - 1e-9), most) if q > 0 else 0 for q in quotas])
        )
    return torch.cat(pieces, dim=1)


def add_masked(models: Tensor, update: Tensor, masks: Tensor, instead: Tensor | None = None) -> Tensor:
    """Return (n, d) ``models``, each plus those entries of ``update`` (d,) that its row of ``masks`` (n, d) marks.

    In the other entries each gets those of its row of ``instead`` (n, d); None: nothing.
    """
    result = fresh_zeros(*models.shape, dtype=models.dtype)
    ones = masks.view(torch.uint8)  # turned into floats four times as fast as bool
    for start in range(0, len(update), BLOCK):
        part = slice(start, start + BLOCK)
        marked = ones[:, part].to(update.dtype)  # 0 or 1
        torch.addcmul(models[:, part], update[part], marked, out=result[:, part])
        if instead is not None:
            result[:, part].addcmul_(instead[:, part], 1 - marked)
    return result


def distances(vectors: Tensor, point: Tensor) -> Tensor:
    """Return (n,) float64 Euclidean distances of the rows of (n, d) ``vectors`` to ``point`` (d,)."""
    squares = torch.zeros(len(vectors), dtype=torch.float64)
    for block, part in zip(torch.split(vectors, BLOCK, dim=1), torch.split(point, BLOCK), strict=True):
        away = block.to(torch.float64, copy=True).sub_(part)
        squares += torch.linalg.vector_norm(away, dim=1).square()
    return squares.sqrt()


def norms_outside(vector: Tensor, masks: Tensor) -> Tensor:
    """Return (n,) float64 norms of the entries of ``vector`` (d,) that each row of ``masks`` (n, d) leaves out."""
    squares = torch.zeros(len(masks), dtype=torch.float64)
    for part, block in zip(torch.split(vector, BLOCK), torch.split(masks, BLOCK, dim=1), strict=True):
        squares += (~block).view(torch.uint8).double() @ part.double().square()
    return squares.sqrt()


def to_sites(values: Tensor, present: Tensor) -> Tensor:
    """Return (n,) float64 ``values`` of the k present sites, in order, each at its site; NaN for absent sites."""
    result = torch.full(present.shape, torch.nan, dtype=torch.float64)
    result[present] = values.double()
    return result


def to_columns(members: Tensor, present: Tensor) -> Tensor:
    """Return (m, n) ``members`` (m, k) of the k present sites, in order, each in its site's column.

    Zero for absent sites.
    """
    result = members.new_zeros(len(members), len(present))
    result[:, present] = members
    return result


def trained_models(models: Tensor, updates: Tensor, present: Tensor, *more: Tensor) -> Tensor:
    """Return (k, d) ``models``, (d,) or one per site (n, d), plus the ``updates`` (n, d) of the present sites.

    Below ``more``.

    These are m further vectors (d,), so that it is (k + m, d). Nothing is held twice.
    """
    sites = present.nonzero().flatten().tolist()
    result = fresh_zeros(len(sites) + len(more), updates.shape[1], dtype=updates.dtype)
    for row, site in enumerate(sites):
        torch.add(models if models.ndim == 1 else models[site], updates[site], out=result[row])
    for row, one in enumerate(more, len(sites)):
        result[row] = one
    return result
