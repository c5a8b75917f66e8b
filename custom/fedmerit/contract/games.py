"""Games of sites: Shapley values of any game, of games of validation Dice, and of the cosine game."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedmerit.contract.capabilities import Candidates
from fedmerit.contract.method import Reports
from fedmerit.contract.semivalues import shapley_weights
from fedmerit.contract.vectors import to_sites, trained_models


def shapley(utilities: Tensor) -> Tensor:
    """Return (n,) exact Shapley values of a game given by all its coalitions, in O(n 2^n).

    Args:
        utilities: (2^n,) float64; entry S is the utility of the sites whose bits are set in S.
    """
    n = len(utilities).bit_length() - 1
    sizes = torch.zeros(1, dtype=torch.long)
    for _ in range(n - 1):  # sizes of the coalitions of the other n - 1 sites
        sizes = torch.cat([sizes, sizes + 1])
    factors = torch.from_numpy(shapley_weights(n))[sizes]
    values = torch.empty(n, dtype=torch.float64)
    for i in range(n):
        pairs = utilities.view(-1, 2, 2**i)  # without and with site i; the other sites' order is kept
        values[i] = (factors.view(-1, 2**i) * (pairs[:, 1] - pairs[:, 0])).sum()
    return values


MOST_COALITION_SITES = 12  # 4096 evaluations a round


def require_coalitions(num_sites: int) -> None:
    """Raise `ValueError` if a round would need more than 2^12 evaluations."""
    if num_sites > MOST_COALITION_SITES:
        raise ValueError(
            f"{num_sites} sites: exact Shapley values take all 2^n coalitions a round, for at most "
            f"{MOST_COALITION_SITES} sites; merge sites, or take a method that needs no coalitions"
        )


def trained_candidates(models: Tensor, updates: Tensor, reports: Reports) -> Candidates:
    """Return the model that each of the k present sites trained, with its BatchNorm statistics.

    Args:
        models: (d,) or (n, d) models that they received.
        updates: (n, d).
        reports: of the round.
    """
    trained = trained_models(models, updates, reports.present)
    own = torch.eye(len(updates), dtype=torch.float64)[reports.present]
    return Candidates(trained, torch.eye(len(trained), dtype=torch.float64), own)


def with_received(trained: Candidates, models: Tensor, reports: Reports, bins: int) -> Candidates:
    """Return 2k candidates: the models that the k present sites trained, then those that they received.

    Args:
        trained: of `trained_candidates`.
        models: (n, d) received.
        reports: of the round.
        bins: of the histograms of losses.
    """
    return Candidates(
        models=torch.cat([trained.models, models[reports.present]]),
        mixtures=torch.eye(2 * len(trained.models), dtype=torch.float64),
        shares=torch.cat([trained.shares, torch.zeros_like(trained.shares)]),
        received=torch.cat([torch.zeros_like(trained.shares), trained.shares]),
        bins=bins,
    )


def all_coalitions(count: int) -> Tensor:
    """Return (2^count, count) int64: row S holds the sites whose bits are set in S, the first site being bit 0."""
    return (torch.arange(2**count)[:, None] >> torch.arange(count)) & 1


def coalitions_to_evaluate(count: int, most: int, seed: int) -> Tensor:
    """Return (k, count) int64 of 0 and 1: all coalitions, or, of more than ``most``, a sample, k <= most.

    The sample has the empty and the grand coalition; then, in pairs of a coalition and its complement, all of one
    site, of two, and so on up to ``most``; the rest is drawn, each pair once, of size s with probability proportional
    to the Shapley kernel's 1 / (s (n - s)) (Lundberg and Lee 2017; in pairs: Covert and Lee 2021).
    """
    if 2**count <= most:
        return all_coalitions(count)
    chosen = {(0,) * count, (1,) * count}

    def choose(places: Sequence[int]) -> None:
        one = tuple(int(place in places) for place in range(count))
        chosen.update((one, tuple(1 - member for member in one)))

    size = 1
    while len(chosen) + 2 * math.comb(count, size) <= most:
        for places in itertools.combinations(range(count), size):
            choose(places)
        size += 1
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.arange(size, count - size + 1, dtype=torch.float64)
    while len(chosen) + 2 <= most:
        of_size = int(sizes[torch.multinomial(1 / (sizes * (count - sizes)), 1, generator=generator)])
        choose(torch.randperm(count, generator=generator)[:of_size].tolist())
    return torch.tensor(sorted(chosen, key=lambda one: (sum(one), one)))


def coalition_candidates(model: Tensor, updates: Tensor, reports: Reports, members: Tensor | None = None) -> Candidates:
    """Return coalitions of the k present sites: ``model`` (d,) plus the mean of the members' updates by images.

    Row by row they are those of ``members`` (m, k), 0 or 1; None: `all_coalitions`. That of the empty coalition is the
    model itself.
    """
    present = reports.present
    count = int(present.sum())
    if members is None:
        members = all_coalitions(count)
    images = members * reports.data_share[present]
    totals = images.sum(dim=1, keepdim=True)
    weights = images / totals.where(totals > 0, torch.ones_like(totals))
    shares = torch.zeros(len(members), len(present), dtype=torch.float64)
    shares[:, present] = weights
    models = trained_models(model, updates, present, model)
    return Candidates(models, torch.cat([weights, (totals == 0).double()], dim=1), shares, coalitions=True)


def coalition_values(reports: Reports, truncation: float | None = None) -> Tensor:
    """Return (n,) `compute_values` of the candidates of `coalition_candidates`, NaN for absent sites.

    If sites judge each other, a site's value is that of the game without its own ratings.
    All are 0 if the utilities of the last and the first coalition differ by ``truncation`` or less.
    """
    assert reports.candidates is not None
    utilities, judged, count = reports.candidates.dice, reports.candidates.judged, int(reports.present.sum())
    if judged is None:
        values = compute_values(utilities, count)
    else:
        games = enumerate(judged[reports.present])
        values = torch.stack([compute_values(game, count)[place] for place, game in games])
    if truncation is not None and abs(float(utilities[-1] - utilities[0])) <= truncation:
        values = torch.zeros_like(values)
    return to_sites(values, reports.present)


def all_but_one(count: int) -> Tensor:
    """Return (k + 1, k) members of the coalitions without one site each, and of all."""
    return torch.cat([1 - torch.eye(count, dtype=torch.int64), torch.ones(1, count, dtype=torch.int64)])


def compute_values(utilities: Tensor, count: int) -> Tensor:
    """Return (k,) values of k players: Shapley values by (2^k,) utilities, leave-one-out values by `all_but_one`."""
    return shapley(utilities) if len(utilities) == 1 << count else utilities[-1] - utilities[:-1]


# The cosine game: v(S) = cos(Σ_{i∈S} r_i u_i, u_N), whose utilities take no time that depends on d

EXACT_SITES = 24  # beyond, 2^n coalitions are too many
PERMUTATIONS = 1000  # that are sampled of more sites
CANCELLED = 1e-14  # a squared norm this small beside its terms' is rounding: those updates cancel


def cosine_values(products: Tensor, weights: Tensor, seed: int, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return (n,) Shapley values of `cosine_game` and (n,) their standard errors, 0 if exact.

    They are exact, or by `sampled_shapley`; 0 for absent sites.

    Args:
        products: (n, n) of `cosine_game`.
        weights: (n,) of `cosine_game`.
        seed: of the permutations.
        present: (n,) bool, the players.
    """
    products, weights = products[present][:, present], weights[present]
    found = torch.zeros(2, len(present), dtype=torch.float64)
    if len(weights) > EXACT_SITES:
        sampled = sampled_shapley(products, weights, PERMUTATIONS, torch.Generator().manual_seed(seed))
        found[:, present] = torch.stack(sampled)
    else:
        found[0, present] = shapley(cosine_game(products, weights))
    return found[0], found[1]


def cosine_game(products: Tensor, weights: Tensor) -> Tensor:
    """Return (2^n,) v(S) = cos(Σ_{i∈S} r_i u_i, u_N) of every coalition, -1 to 1 (Sec. 3.2, Xu et al. 2021).

    It is 0 if either sum is zero. Each site doubles the coalitions, those with it after those without: O(2^n) in all.

    Args:
        products: (n, n) Gram matrix of the normalised updates u_i; their common norm Γ does not matter.
        weights: (n,) r_i, not negative.
    """
    weights = weights.double()
    pairs = weights[:, None] * products * weights  # ⟨r_i u_i, r_j u_j⟩
    zero = torch.zeros(1, dtype=torch.float64)
    inner = squared = length = zero  # of each coalition: with u_N, with itself, were its updates parallel
    lengths = pairs.diagonal().clamp(min=0).sqrt()
    for i, row in enumerate(pairs):
        cross = zero  # of each coalition with site i
        for product in row[:i]:
            cross = torch.cat([cross, cross + product])
        squared = torch.cat([squared, squared + 2 * cross + row[i]])
        inner = torch.cat([inner, inner + row.sum()])
        length = torch.cat([length, length + lengths[i]])
    return _cosines(inner, squared, length, pairs)


def sampled_shapley(
    products: Tensor, weights: Tensor, permutations: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return (n,) estimates of the Shapley values of `cosine_game`, and (n,) standard errors, in O(permutations n²).

    A site's value is the mean, over random orders of all sites, of what it adds to those before it. The values sum
    to v of all sites exactly; sites with identical updates get values that agree within their errors.

    Args:
        products: (n, n) of `cosine_game`.
        weights: (n,) of `cosine_game`.
        permutations: orders to draw, at least 2.
        generator: of the orders.
    """
    n, weights = len(weights), weights.double()
    pairs = weights[:, None] * products * weights
    to_all, lengths = pairs.sum(dim=1), pairs.diagonal().clamp(min=0).sqrt()
    orders = torch.rand(permutations, n, generator=generator).argsort(dim=1)
    inner, squared, length, before = torch.zeros(4, permutations, dtype=torch.float64)
    cross = torch.zeros(permutations, n, dtype=torch.float64)  # of those before with every site
    marginals = torch.empty(permutations, n, dtype=torch.float64)
    for joining in orders.T.unsqueeze(2):  # (permutations, 1): who comes next
        site = joining.squeeze(1)
        squared = squared + 2 * cross.gather(1, joining).squeeze(1) + pairs.diagonal()[site]
        inner = inner + to_all[site]
        length = length + lengths[site]
        cross += pairs[site]
        now = _cosines(inner, squared, length, pairs)
        marginals.scatter_(1, joining, (now - before).unsqueeze(1))
        before = now
    return marginals.mean(dim=0), marginals.std(dim=0) / math.sqrt(permutations)


def _cosines(inner: Tensor, squared: Tensor, length: Tensor, pairs: Tensor) -> Tensor:
    """Return cosines with u_N; 0 if a coalition's updates, or all, cancel up to rounding."""
    total = pairs.sum()
    if total <= CANCELLED * pairs.diagonal().clamp(min=0).sqrt().sum() ** 2:
        return torch.zeros_like(inner)
    cosines = inner / (squared.clamp(min=0) * total).sqrt()
    return cosines.where(squared > CANCELLED * length**2, 0.0).clamp(-1, 1)
