"""Games with known values, and values straight from their definitions, slowly."""

from itertools import combinations, permutations

import numpy as np


def subsets(players):
    """Every coalition, the empty one first."""
    names = sorted(players)
    return [frozenset(chosen) for size in range(len(names) + 1) for chosen in combinations(names, size)]


def table(players, utility):
    """The game of all coalitions."""
    return {one: utility(one) for one in subsets(players)}


def voting(weights, quota):
    """1 where the coalition's weights reach the quota."""
    return table(weights, lambda one: float(sum(weights[name] for name in one) >= quota))


def gloves(left, right):
    """Pairs that a coalition can make."""
    return table([*left, *right], lambda one: float(min(len(one & set(left)), len(one & set(right)))))


def airport(costs):
    """A runway costs as much as its largest plane needs."""
    return table(costs, lambda one: float(max((costs[name] for name in one), default=0)))


def random_game(players, seed, shape=()):
    """Any utilities; nobody's is 0."""
    random = np.random.default_rng(seed)
    game = table(players, lambda one: random.normal(size=shape))
    game[frozenset()] = np.zeros(shape)
    return game


def shapley_by_permutations(game, players):
    """Mean marginal over all n! orders."""
    names = sorted(players)
    total = np.zeros((len(names), *np.shape(game[frozenset()])))
    orders = list(permutations(range(len(names))))
    for order in orders:
        joined = frozenset()
        for place in order:
            total[place] += np.asarray(game[joined | {names[place]}]) - np.asarray(game[joined])
            joined |= {names[place]}
    return total / len(orders)


def mean_marginals(game, players, name):
    """The mean marginal of one player by the size of the coalition joined, 0 to n - 1."""
    others = [other for other in sorted(players) if other != name]
    return [
        np.mean([game[frozenset(chosen) | {name}] - game[frozenset(chosen)] for chosen in combinations(others, size)])
        for size in range(len(others) + 1)
    ]
