"""Semivalues of the players of a cooperative game, exact from a table of coalitions.

Players are sites, the table maps coalitions (frozensets of site names) to their utility: a number or an array of any
one shape, such as (k,) for k labels. Values are signed and come in site-name order, (n, ...) float64.

A semivalue is the mean marginal of a site over the coalitions S of the others, weighted only by their size:
sum over S of w(|S|) (v(S + i) - v(S)), the weights of all S summing to 1 (Dubey, Neyman, Weber 1981).

The code is our own: shapiq needs Python 3.12 and pyDVL NumPy below 2, and both scikit-learn, for one sum here.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmerit.errors import BadInput

FloatArray = NDArray[np.float64]
Coalition = frozenset[str]
Game = Mapping[Coalition, ArrayLike]
Weights = Callable[[int], FloatArray]  # n to (n,): weight of a marginal to a coalition of 0 to n - 1 others

EMPTY_COALITION: Coalition = frozenset()
MAX_LISTED = 8  # coalitions that a message lists


def format_spec(coalition: Iterable[str]) -> str:
    """As column ``coalition`` of results.csv has it: names in order, joined by "+"."""
    return "+".join(sorted(coalition))


def parse_coalition(text: str) -> Coalition:
    """The sites that `format_spec` wrote."""
    return frozenset(text.split("+")) if text else EMPTY_COALITION


def list_sites(game: Game) -> list[str]:
    """The sites of a game, by name: all that are in any of its coalitions."""
    return sorted(frozenset[str]().union(*game))


def leave_one_out_weights(n: int) -> FloatArray:
    """All weight on the marginal to all others."""
    return np.asarray(np.eye(n)[-1])


def beta_weights(alpha: float, beta: float) -> Weights:
    """Of Beta-Shapley (Kwon and Zou 2022): B(s + β, n - 1 - s + α) / B(α, β) for a coalition of s others.

    Large α puts weight on small coalitions, large β on large ones; α = β = 1 is the Shapley value.

    Raises:
        BadInput: α or β is not above 0.
    """
    if not (alpha > 0 and beta > 0):
        raise BadInput(f"Beta-Shapley: alpha {alpha}, beta {beta}: expected both above 0")

    def weights(n: int) -> FloatArray:
        from scipy.special import betaln  # it takes long to import, and verification does not need it

        sizes = np.arange(n)
        return np.asarray(np.exp(betaln(sizes + beta, n - 1 - sizes + alpha) - betaln(alpha, beta)))

    return weights


def shapley_weights(n: int) -> FloatArray:
    """1 / (n C(n - 1, s)): every size of coalition counts the same (Shapley 1953)."""
    return np.array([1 / (n * math.comb(n - 1, size)) for size in range(n)])


def banzhaf_weights(n: int) -> FloatArray:
    """2^(1 - n): every coalition counts the same (Banzhaf 1965; not scaled to sum to the grand utility)."""
    return np.full(n, 0.5 ** (n - 1))


LEAVE_ONE_OUT, SHAPLEY = "leave-one-out", "Shapley"
EXACT: Mapping[str, Weights] = {LEAVE_ONE_OUT: leave_one_out_weights, SHAPLEY: shapley_weights}


def required_coalitions(sites: Iterable[str], weights: Weights) -> list[Coalition]:
    """The coalitions whose utility a semivalue needs, the largest first, the empty one last if needed."""
    names = sorted(sites)
    used = weights(len(names)) > 0
    sizes = [size for size in range(len(names), -1, -1) if used[max(size - 1, 0) : size + 1].any()]
    return [frozenset(members) for size in sizes for members in combinations(names, size)]


def missing_coalitions(game: Game, sites: Iterable[str], weights: Weights) -> list[Coalition]:
    """Of `required`, those that the game has no utility of, or one that is not finite."""
    return [one for one in required_coalitions(sites, weights) if one not in game or not np.isfinite(game[one]).all()]


def coefficients(sites: Iterable[str], weights: Weights) -> dict[Coalition, FloatArray]:
    """(n,) coefficients of each coalition's utility in the values of the sites."""
    names = sorted(sites)
    joining, left = np.concatenate([[0.0], weights(len(names))]), np.concatenate([weights(len(names)), [0.0]])
    return {  # v(S) is gained by joining S, or left behind
        one: np.array([joining[len(one)] if name in one else -left[len(one)] for name in names])
        for one in required_coalitions(names, weights)
    }


def combine(game: Game, parts: Mapping[Coalition, FloatArray]) -> FloatArray:
    """(n, ...) the sum over coalitions of their (n,) ``parts``, as `coefficients` gives them, times their utilities."""
    utilities = np.stack([np.asarray(game[one], dtype=np.float64) for one in parts])
    return np.tensordot(np.stack(list(parts.values()), axis=1), utilities, axes=1)


def semivalue(game: Game, weights: Weights, sites: Sequence[str] | None = None) -> FloatArray:
    """The value of each site, (n, ...) by site name.

    Args:
        game: utilities; with that of the empty coalition if the weights need it.
        weights: by the size of the coalition joined.
        sites: n names, if the game might not name all.

    Raises:
        BadInput: a coalition is missing; the message names it.
    """
    names = sorted(list_sites(game) if sites is None else sites)
    if not names:
        raise BadInput("the game has no site; give it the utility of at least one coalition")
    if lacking := missing_coalitions(game, names, weights):
        raise BadInput(
            f"{format_coalitions(lacking)}: no utility; train what is missing, then ask for the values again"
        )
    return combine(game, coefficients(names, weights))


def format_coalitions(coalitions: Sequence[Coalition], most: int = MAX_LISTED) -> str:
    """Coalitions for a message, all but the first ``most`` of them counted."""
    texts = [format_spec(one) or "nobody" for one in coalitions[:most]]
    more = len(coalitions) - len(texts)
    return f"coalition{'s' * (len(coalitions) > 1)} {', '.join(texts)}" + (f" and {more} more" if more else "")


def leave_one_out(game: Game) -> FloatArray:
    """v(N) - v(N without i)."""
    return semivalue(game, leave_one_out_weights)


def shapley(game: Game) -> FloatArray:
    """Exact Shapley values; they sum to v(N) - v(nobody)."""
    return semivalue(game, shapley_weights)


def banzhaf(game: Game) -> FloatArray:
    """Banzhaf values: the mean marginal over all coalitions."""
    return semivalue(game, banzhaf_weights)


def beta_shapley(game: Game, alpha: float, beta: float) -> FloatArray:
    """Beta(α, β)-Shapley values."""
    return semivalue(game, beta_weights(alpha, beta))


def normalise(values: ArrayLike) -> FloatArray:
    """Shares of the sum over sites (first axis), as the performance contribution of Jiang et al. 2023, Table 5.

    Nothing is clipped: a negative value is a negative share, so another's may exceed 1. If the sum is not above 0 (by
    more than rounding) there are no shares: all are NaN.
    """
    amounts = np.asarray(values, dtype=np.float64)
    total = amounts.sum(axis=0)
    positive = total > 1e-12 * np.abs(amounts).sum(axis=0)
    return np.asarray(amounts / np.where(positive, total, np.nan))
