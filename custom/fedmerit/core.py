"""What every method shares: the contract (Reports, Outcome, Method) and the verbs the papers have in common.

n sites, d trainable parameters. Rows are in site-name order, always; reductions are in float64.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

DECIMALS = 6  # of the numbers a site reports: more say nothing, and could say anything
BLOCK = 1 << 15  # entries at a time in float64: they stay in the cache, and the stack is never copied


@dataclass(frozen=True)
class Layout:
    """How the vector of trainable parameters is made up."""

    tensor_sizes: tuple[int, ...]  # elements of each tensor in the vector, in order; they sum to d
    owners: Tensor  # (d,) int32: the neuron that each parameter belongs to, -1: none

    @classmethod
    def of(cls, *tensor_sizes: int) -> "Layout":
        """Tensors without neurons."""
        return cls(tensor_sizes, torch.full((sum(tensor_sizes),), -1, dtype=torch.int32))


@dataclass(frozen=True)
class Reports:
    """What the sites of one round said, beside their updates. Rows of absent sites hold zero or NaN."""

    num_samples: Tensor  # (n,) training images, float64
    present: Tensor  # (n,) bool: whose update counts this round
    values: Mapping[str, Tensor] = field(default_factory=dict)  # what the method asked for, (n,); NaN: not available
    trials: "TrialResults | None" = None  # of the method's `trials`, where it has any
    products: Tensor | None = None  # (n, n) of the updates, as `gram` gives them, where they are known already
    pairs: Mapping[str, Tensor] = field(default_factory=dict)  # (n, n) what row says of column; NaN: nothing

    @property
    def data_share(self) -> Tensor:
        """(n,) share of the present sites' training images; 0 for absent sites."""
        return share(self.num_samples, self.present)


@dataclass(frozen=True)
class Outcome:
    """What one round gave."""

    contribution: Tensor  # (n,) this round's estimate; signed, higher is better; NaN for absent sites
    reputation: Tensor  # (n,) contribution remembered over rounds
    weights: Tensor  # (n,) aggregation weights, sum to 1, zero allowed
    models: Tensor  # (d,) one global model, or (n, d) one per site: where each starts the next round
    quantities: Mapping[str, Tensor] = field(default_factory=dict)  # (n,) each; further columns for results.csv
    pairs: Mapping[str, Tensor] = field(default_factory=dict)  # (n, n) likewise, what row holds of column; NaN: nothing
    statistics: str | None = None  # of BatchNorm: "shared", "own" or "initial"; None: as the method's `shares_buffers`


@dataclass(frozen=True)
class Survey:
    """A model whose neurons have to be weighed before a round, on the server validation set."""

    model: Tensor  # (d,)
    order: str  # "exact": the loss without each neuron; "taylor": to first order
    images: int  # at most so many of every site; 0: on none, all neurons weigh nothing


@dataclass(frozen=True)
class Trials:
    """k models to evaluate on the server validation set before a round ends, as mixtures of m vectors."""

    models: Tensor  # (m, d)
    mixtures: Tensor  # (k, m) float64, rows sum to 1: what is evaluated is ``mixtures @ models``
    shares: (
        Tensor  # (k, n) float64: whose trained BatchNorm statistics it gets, averaged; a row of 0: the mean sent out
    )
    bins: int = 0  # of the histogram of losses per image; 0: none is wanted


@dataclass(frozen=True)
class TrialResults:
    """What the server validation set said of the k models of `Trials`."""

    dice: Tensor  # (k,) mean over all its cases and labels, 0 to 1
    losses: Tensor  # (k, bins) images by soft Dice loss, in equal bins on [0, 1]


@dataclass(frozen=True)
class OwnPart:
    """What a site knows of its own update in the model it receives."""

    previous: Tensor  # (d,) w_{t-1}
    trained: Tensor  # (d,) w_{t-1,i}, what it trained from w_{t-1}
    weight: float  # ρ_i, its weight in the aggregation that made w_t, in [0, 1)
    validation_dice: Callable[[Tensor], float]  # of (d,) on its validation split, with the others' BatchNorm statistics


@dataclass(frozen=True)
class SiteView:
    """What a site holds when it receives w_t."""

    received: Tensor  # (d,) w_t
    training_losses: Callable[[], Tensor]  # (images,) soft Dice loss of w_t on each of its training images, 0 to 1
    own: OwnPart | None = None  # where its own update of the round before is part of w_t


@dataclass(frozen=True)
class Sharing:
    """Whose predictions reach whom in the coming round, of methods whose sites learn from each other."""

    probability: Tensor  # (n, n) float64: that row shares with column, 0 to 1
    weights: Tensor  # (n, n) float64: λ that row has given the distillation loss of column; NaN: none yet


ExtraLoss = Callable[[Tensor, Tensor], Tensor]  # of images and a network's logits of them, added to the loss


@dataclass(frozen=True)
class PeerView:
    """What site n holds when it is about to learn from its peers.

    ``predict`` is the interface behind which the exchange lies: whatever brings a peer's predictions on the site's
    images. It is None where they are not available.
    """

    round: int
    weights: Mapping[str, float]  # λ_(n,k) so far of each peer k that shares this round; NaN: none yet
    predict: Callable[[str, Tensor], Tensor | None]  # logits, without gradient, of a peer for (batch, channels, h, w)
    network: nn.Module  # θ_n, in eval mode
    batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]]  # so many of images and masks, the same in every round
    loss: Callable[[Tensor, Tensor], Tensor]  # that the site trains with, of logits and masks


@dataclass(frozen=True)
class Lesson:
    """What a site takes from its peers into a round's training."""

    loss: ExtraLoss
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # what it says of peers, by quantity, name
    weights: Mapping[str, float] = field(default_factory=dict)  # λ_(n,k) from now on, where that may change


RANGES: Mapping[str, tuple[float, float]] = {  # of `Reports.values`; "loss_bin" of loss_bin_0, loss_bin_1, ...
    "cosine": (-1.0, 1.0),
    "minus_error": (0.0, 1.0),
    "loss": (0.0, 1.0),
    "loss_bin": (0.0, 1e9),
    "misalignment": (0.0, 1.0),
    "available": (0.0, 1.0),
}


def allowed(name: str) -> tuple[float, float]:
    """The range of a value that sites report, whatever number its name ends with."""
    return RANGES[name.rstrip("_0123456789")]


class Method(Protocol):
    """One paper's mechanism: frozen parameters, a pure server half, and what it asks of sites."""

    needs_others: ClassVar[bool] = True  # False where a site may train all alone
    unfilterable: ClassVar[str] = ""  # why no privacy filter may change what sites send; "" where one may

    @property
    def shares_buffers(self) -> bool:
        """Whether all sites get the mean of the sites' BatchNorm statistics; if not, each keeps its own."""
        return True

    @property
    def sums_only(self) -> bool:
        """Whether a weighted sum of the updates, by weights that depend on no update, is all that the server needs.

        Then updates may be encrypted, and `round` gets them, and the model, with d = 0.
        """
        return False

    @property
    def asks(self) -> tuple[str, ...]:
        """What `report` returns: keys of `Reports.values`, named in `RANGES`."""
        return ()

    @property
    def least_rounds(self) -> int:
        """The fewest rounds in which the method comes to anything."""
        return 1

    @property
    def asks_of_peers(self) -> tuple[str, ...]:
        """What a site says of those that shared with it: keys of `Reports.pairs`, named in `RANGES`.

        "available" is 1 where a peer's predictions could be used; every other quantity is one of `learn_from`.
        """
        return ()

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> Any:
        """The state before round 0, a frozen dataclass of tensors and numbers.

        Args:
            model: (d,) where all sites start.
            num_sites: n.
            layout: of that vector.

        Raises:
            ValueError: the method cannot work with so many sites.
        """
        ...

    def survey(self, state: Any) -> Survey | None:
        """The model whose neurons have to be weighed before the next round goes out."""
        return None

    def allocate(self, state: Any, importance: Tensor) -> tuple[Any, Tensor, Tensor]:
        """The submodels of the next rounds, after a `survey`.

        Args:
            state: as that had it.
            importance: (H,) float64, what the loss rises by without each neuron, the mean over images; signed.

        Returns:
            The state, (n, d) models to start from, and (n, H) bool, the neurons that each site holds. What it does
            not hold is zero in its model, and stays so in training.
        """
        raise RuntimeError(f"{type(self).__name__} has no survey")

    def trials(self, state: Any, updates: Tensor, reports: Reports) -> Trials | None:
        """What has to be evaluated on the server validation set before `round`, whose arguments these are."""
        return None

    def round(self, state: Any, updates: Tensor, reports: Reports) -> tuple[Any, Outcome]:
        """One aggregation. ``updates`` (n, d) float32: trained minus received, zero rows for absent sites."""
        ...

    def report(self, view: SiteView) -> dict[str, float]:
        """The site half: the quantities named in `asks`, those of them that are available."""
        return {}

    @property
    def models_stay(self) -> bool:
        """Whether a site's model never comes to the server, and those that learn from it ask the site for it."""
        return False

    def probability(self, weights: Tensor, round: int) -> Tensor:
        """That a site shares in a round with a peer to whose distillation loss it has given ``weights``; likewise."""
        return torch.zeros_like(weights)

    def sharing(self, state: Any) -> Sharing | None:
        """Who shares with whom in the round that ``state`` is the state before; None: nobody with anybody."""
        return None

    def learn_from(self, view: PeerView) -> Lesson:
        """The site half where `sharing` has peers reach the site; by default it takes nothing from them."""
        return Lesson(lambda images, own: own.new_zeros(()))


def require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """`ValueError` where a parameter is none of its choices."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(choices)}")


def share(amounts: Tensor, present: Tensor) -> Tensor:
    """(n,) ``amounts`` normalised to sum 1 over the present sites; equal shares where they sum to 0."""
    amounts = torch.where(present, amounts.double(), 0.0)
    if amounts.sum() <= 0:
        amounts = present.double()
    return amounts / amounts.sum()


def remember(memory: Tensor, now: Tensor, alpha: float, present: Tensor) -> Tensor:
    """(n,) α memory + (1-α) now for the present sites; absent ones keep what they have."""
    return torch.where(present, alpha * memory + (1 - alpha) * now, memory)


def reshare(memory: Tensor, amounts: Tensor, present: Tensor) -> Tensor:
    """(n,) ``memory``, of which the present sites share anew by ``amounts`` what they held; absent ones keep theirs.

    That is 1 where they held nothing, as before the first round. With all sites present it is `share`.
    """
    held = float(memory[present].sum())
    return torch.where(present, share(amounts, present) * (min(held, 1.0) if held > 0 else 1.0), memory)


def gram(updates: Tensor) -> Tensor:
    """(n, n) float64 inner products of the rows of (n, d) ``updates``: every norm and cosine of a round."""
    n = len(updates)
    result = torch.zeros(n, n, dtype=torch.float64)
    for block in torch.split(updates, BLOCK, dim=1):
        block = block.double()
        result += block @ block.T
    return result


def inner_products(updates: Tensor, reports: Reports) -> Tensor:
    """(n, n) `gram` of a round's ``updates`` (n, d): the server's, computed once, where ``reports`` carry it."""
    return gram(updates) if reports.products is None else reports.products


def norms(products: Tensor) -> Tensor:
    """(n,) norms of the updates, from their Gram matrix."""
    return products.diagonal().clamp(min=0).sqrt()


def cosine_to_sum(products: Tensor, weights: Tensor) -> Tensor:
    """(n,) cosine of each update and the weighted sum of all, from their Gram matrix; 0 where either is zero."""
    weights = weights.double()
    sum_norm = torch.einsum("j,jk,k->", weights, products, weights).clamp(min=0).sqrt()
    return _cosine(products @ weights, norms(products) * sum_norm)


def cosine_to_others(products: Tensor, weights: Tensor) -> Tensor:
    """(n,) cosine of each update and the weighted sum of the others, from their Gram matrix.

    0 where either vector is zero, as for a site alone.

    Args:
        products: (n, n) Gram matrix of the updates.
        weights: (n,) weights of the sum.
    """
    others = weights.double().repeat(len(weights), 1).fill_diagonal_(0.0)  # row i: the weights without site i
    inner = (others * products).sum(dim=1)
    others_norm = torch.einsum("ij,jk,ik->i", others, products, others).clamp(min=0).sqrt()
    return _cosine(inner, norms(products) * others_norm)


def _cosine(inner: Tensor, scale: Tensor) -> Tensor:
    return torch.where(scale > 0, inner / scale.where(scale > 0, torch.ones_like(scale)), 0.0).clamp(-1, 1)


def aggregate(model: Tensor, weights: Tensor, updates: Tensor) -> Tensor:
    """(d,) ``model`` plus the weighted sum of ``updates`` (n, d), in its dtype, summed in float64 in site order."""
    result, weights = torch.empty_like(model), weights.double()
    for start in range(0, len(model), BLOCK):
        part = slice(start, start + BLOCK)
        result[part] = torch.addmv(model[part].double(), updates[:, part].double().T, weights)
    return result


def quota_counts(quotas: Tensor, size: int) -> list[int]:
    """floor(size * quota) entries for each quota in [0, 1]; the 1e-9 keeps 0.3 * 10 at 3 whatever rounding does."""
    return [min(size, math.floor(size * max(0.0, float(quota)) + 1e-9)) for quota in quotas]


def owned(neurons: Tensor, owners: Tensor) -> Tensor:
    """(..., d) bool: the parameters of the ``neurons`` (..., H) that are held; those of no neuron always are.

    Args:
        neurons: bool.
        owners: (d,) as in `Layout`.
    """
    always = neurons.new_ones(*neurons.shape[:-1], 1)  # which the owner -1 finds at the end
    return torch.cat([neurons, always], dim=-1)[..., owners.long()]


def histogram(losses: Tensor, bins: int) -> Tensor:
    """(bins,) how many of ``losses`` (images,) lie in each of as many equal bins on [0, 1], the last one closed."""
    return torch.histc(losses.double().cpu(), bins, 0.0, 1.0)


def keep_largest(vector: Tensor, counts: Sequence[int]) -> Tensor:
    """(n, d) bool: row i marks the ``counts[i]`` largest magnitudes of ``vector`` (d,), ties to the lower index.

    A count of d marks everything, a count of 0 nothing.
    """
    size, magnitude = len(vector), vector.abs()
    masks = torch.zeros(len(counts), size, dtype=torch.bool)
    places = sorted({size - count for count in counts if 0 < count < size})
    ordered = np.partition(magnitude.numpy(), places) if places else magnitude.numpy()
    for mask, count in zip(masks, counts, strict=True):
        if count >= size:
            mask.fill_(True)
        elif count > 0:
            threshold = float(ordered[size - count])
            torch.gt(magnitude, threshold, out=mask)
            ties = (magnitude == threshold).nonzero().flatten()
            mask[ties[: count - int(mask.sum())]] = True
    return masks


def keep_largest_per_tensor(vector: Tensor, quotas: Tensor, tensor_sizes: Sequence[int]) -> Tensor:
    """(n, d) bool: the rule of CGSV's released code, tensor by tensor.

    Of a tensor with s > 1 elements, min(ceil(s * quota), s - 1) are kept, so that even a quota of 1 loses the
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


def reward(models: Tensor, update: Tensor, quotas: Tensor, tensor_sizes: Sequence[int] | None = None) -> Tensor:
    """(n, d) ``models``, each plus its quota of ``update`` (d,): the largest magnitudes (Eq. 5, Xu et al. 2021).

    Args:
        models: (n, d).
        update: (d,).
        quotas: (n,) the fraction of the entries that each gets, 0 to 1.
        tensor_sizes: for the rule of `keep_largest_per_tensor`; None: the largest of all.
    """
    return add_masked(models, update, earned(update, quotas, tensor_sizes))


def earned(update: Tensor, quotas: Tensor, tensor_sizes: Sequence[int] | None = None) -> Tensor:
    """(n, d) bool: the entries of ``update`` (d,) that each site earns, by the arguments of `reward`."""
    if tensor_sizes is None:
        return keep_largest(update, quota_counts(quotas, len(update)))
    return keep_largest_per_tensor(update, quotas, tensor_sizes)


def add_masked(models: Tensor, update: Tensor, masks: Tensor) -> Tensor:
    """(n, d) ``models``, each plus those entries of ``update`` (d,) that its row of ``masks`` (n, d) marks."""
    result = torch.empty_like(models)
    for row, model, mask in zip(result, models, masks, strict=True):
        torch.mul(update, mask, out=row)  # no copy of the stack beside the result
        row += model
    return result


def distances(vectors: Tensor, point: Tensor) -> Tensor:
    """(n,) float64 Euclidean distances of the rows of (n, d) ``vectors`` to ``point`` (d,)."""
    squares = torch.zeros(len(vectors), dtype=torch.float64)
    for block, part in zip(torch.split(vectors, BLOCK, dim=1), torch.split(point, BLOCK), strict=True):
        squares += (block.double() - part.double()).square().sum(dim=1)
    return squares.sqrt()


def norms_outside(vector: Tensor, masks: Tensor) -> Tensor:
    """(n,) float64 norms of the entries of ``vector`` (d,) that each row of ``masks`` (n, d) leaves out."""
    squares = torch.zeros(len(masks), dtype=torch.float64)
    for part, block in zip(torch.split(vector, BLOCK), torch.split(masks, BLOCK, dim=1), strict=True):
        squares += (~block).double() @ part.double().square()
    return squares.sqrt()


def shapley(utilities: Tensor) -> Tensor:
    """(n,) exact Shapley values of a game given by all its coalitions, in O(n 2^n).

    Args:
        utilities: (2^n,) float64; entry S is the utility of the sites whose bits are set in S, entry 0 of nobody.
    """
    n = len(utilities).bit_length() - 1
    sizes = torch.zeros(1, dtype=torch.long)
    for _ in range(n - 1):  # sizes of the coalitions of the other n - 1 sites
        sizes = torch.cat([sizes, sizes + 1])
    factors = torch.tensor([1 / (n * math.comb(n - 1, size)) for size in range(n)], dtype=torch.float64)[sizes]
    values = torch.empty(n, dtype=torch.float64)
    for i in range(n):
        pairs = utilities.view(-1, 2, 2**i)  # without and with site i; the other sites' order is kept
        values[i] = (factors.view(-1, 2**i) * (pairs[:, 1] - pairs[:, 0])).sum()
    return values


def to_sites(values: Tensor, present: Tensor) -> Tensor:
    """(n,) float64 ``values`` of the k present sites, in order, each at its site; NaN for absent sites."""
    result = torch.full(present.shape, torch.nan, dtype=torch.float64)
    result[present] = values.double()
    return result


def trained_models(models: Tensor, updates: Tensor, present: Tensor) -> Tensor:
    """(k, d) ``models``, (d,) or one per site (n, d), plus the ``updates`` (n, d) of the present sites."""
    result = updates[present]  # a copy
    return result.add_(models if models.ndim == 1 else models[present])


def divergence(own: Tensor, peer: Tensor, temperature: float, kl: str) -> Tensor:
    """() KL divergence of two predictions of the same pixels, mean over pixels, labels and images.

    Predictions are p = sigmoid(z / T), each label's on its own. No factor T² makes up for the temperature.

    Args:
        own: (batch, labels, h, w) logits z_n.
        peer: likewise z_k.
        temperature: T.
        kl: "own_peer", KL(p_n || p_k); or "peer_own", KL(p_k || p_n).
    """
    first, second = (own, peer) if kl == "own_peer" else (peer, own)
    first, second = first.float() / temperature, second.float() / temperature
    probability = first.sigmoid()
    shown = probability * (logsigmoid(first) - logsigmoid(second))
    absent = (1 - probability) * (logsigmoid(-first) - logsigmoid(-second))
    return (shown + absent).mean()


DIRECTIONS = ("own_peer", "peer_own")  # of `divergence`
EXCHANGES = ("relay", "peer")  # how a site's model reaches its peers


def distillation(
    predict: Callable[[str, Tensor], Tensor | None], weights: Mapping[str, float], temperature: float, kl: str
) -> ExtraLoss:
    """Σ_k λ_(n,k) L_DL(n,k) (Eq. 2, Tastan et al. 2025); the term of a peer that is not available is 0."""

    def loss(images: Tensor, own: Tensor) -> Tensor:
        total = own.new_zeros((), dtype=torch.float32)
        for peer, weight in weights.items():
            logits = predict(peer, images)
            if logits is not None:
                total = total + weight * divergence(own, logits, temperature, kl)
        return total

    return loss


MOST_COALITION_SITES = 12  # 4096 evaluations a round


def require_coalitions(num_sites: int) -> None:
    """Raise ValueError where a round would need more than 2^12 evaluations."""
    if num_sites > MOST_COALITION_SITES:
        raise ValueError(
            f"{num_sites} sites: exact Shapley values take all 2^n coalitions a round, for at most "
            f"{MOST_COALITION_SITES} sites; merge sites, or take a method that needs no coalitions"
        )


def coalition_trials(model: Tensor, updates: Tensor, reports: Reports) -> Trials:
    """All 2^k coalitions of the k present sites: ``model`` (d,) plus the mean of its members' updates by images.

    Row S holds the sites whose bits are set in S, the first present site being bit 0; row 0 is the model itself.
    """
    present = reports.present
    count = int(present.sum())
    members = (torch.arange(2**count)[:, None] >> torch.arange(count)) & 1  # (2^k, k)
    images = members * reports.data_share[present]
    totals = images.sum(dim=1, keepdim=True)
    weights = images / totals.where(totals > 0, torch.ones_like(totals))
    shares = torch.zeros(2**count, len(present), dtype=torch.float64)
    shares[:, present] = weights
    models = torch.cat([trained_models(model, updates, present), model[None]])
    return Trials(models, torch.cat([weights, (totals == 0).double()], dim=1), shares)


def coalition_values(reports: Reports, truncation: float) -> Tensor:
    """(n,) exact Shapley values of the trials of `coalition_trials`, NaN for absent sites.

    All are 0 where the grand coalition's utility and that of nobody differ by ``truncation`` or less.
    """
    assert reports.trials is not None
    utilities = reports.trials.dice
    values = shapley(utilities)
    if abs(float(utilities[-1] - utilities[0])) <= truncation:
        values = torch.zeros_like(values)
    return to_sites(values, reports.present)
