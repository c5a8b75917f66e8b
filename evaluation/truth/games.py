"""What each player of a cooperative game is worth: semivalues, exact from a table of coalitions or sampled.

Players are sites, the table maps coalitions (frozensets of site names) to their utility: a number or an array of any
one shape, such as (k,) for k labels. Values are signed and come in site-name order, (n, ...) float64.

A semivalue is the mean marginal of a site over the coalitions S of the others, weighted by their size alone:
sum over S of w(|S|) (v(S + i) - v(S)), the weights of all S summing to 1 (Dubey, Neyman, Weber 1981).

The code is ours: of the libraries, shapiq (MIT, well kept) asks for Python 3.12 and pyDVL holds NumPy below 2; either
would bring scikit-learn for what is one sum here.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln

from evaluation.tables import case_dice
from fedmerit.errors import BadInput

FloatArray = NDArray[np.float64]
Coalition = frozenset[str]
Game = Mapping[Coalition, ArrayLike]
Weights = Callable[[int], FloatArray]  # n to (n,): weight of a marginal to a coalition of 0 to n - 1 others

NOBODY: Coalition = frozenset()
MOST_NAMED = 8  # coalitions that a message spells out


def text_of(coalition: Iterable[str]) -> str:
    """As column ``coalition`` of results.csv has it: names in order, joined by "+"."""
    return "+".join(sorted(coalition))


def sites_of(game: Game) -> list[str]:
    """The sites of a game, by name: all that are in any of its coalitions."""
    return sorted(frozenset[str]().union(*game))


def leave_one_out_weights(n: int) -> FloatArray:
    """All weight on the marginal to all others."""
    return np.asarray(np.eye(n)[-1])


def beta_weights(alpha: float, beta: float) -> Weights:
    """Of Beta-Shapley (Kwon and Zou 2022): B(s + β, n - 1 - s + α) / B(α, β) for a coalition of s others.

    Large α dwells on small coalitions, large β on large ones; α = β = 1 is the Shapley value.

    Raises:
        BadInput: α or β is not above 0.
    """
    if not (alpha > 0 and beta > 0):
        raise BadInput(f"Beta-Shapley: alpha {alpha}, beta {beta}: expected both above 0")

    def weights(n: int) -> FloatArray:
        sizes = np.arange(n)
        return np.asarray(np.exp(betaln(sizes + beta, n - 1 - sizes + alpha) - betaln(alpha, beta)))

    return weights


def shapley_weights(n: int) -> FloatArray:
    """1 / (n C(n - 1, s)): every size of coalition counts alike (Shapley 1953)."""
    return np.array([1 / (n * math.comb(n - 1, size)) for size in range(n)])


def banzhaf_weights(n: int) -> FloatArray:
    """2^(1 - n): every coalition counts alike (Banzhaf 1965; not scaled to sum to the grand utility)."""
    return np.full(n, 0.5 ** (n - 1))


def required(sites: Iterable[str], weights: Weights) -> list[Coalition]:
    """The coalitions whose utility a semivalue takes, the largest first, nobody last where it is one of them."""
    names = sorted(sites)
    used = weights(len(names)) > 0
    sizes = [size for size in range(len(names), -1, -1) if used[max(size - 1, 0) : size + 1].any()]
    return [frozenset(members) for size in sizes for members in combinations(names, size)]


def missing(game: Game, sites: Iterable[str], weights: Weights) -> list[Coalition]:
    """Of `required`, those that the game has no utility of, or one that is not finite."""
    return [one for one in required(sites, weights) if one not in game or not np.isfinite(game[one]).all()]


def coefficients(sites: Iterable[str], weights: Weights) -> dict[Coalition, FloatArray]:
    """(n,) of every coalition that a semivalue takes: how much of its utility each site's value holds."""
    names = sorted(sites)
    joining, left = np.concatenate([[0.0], weights(len(names))]), np.concatenate([weights(len(names)), [0.0]])
    return {  # v(S) is gained by joining S, or left behind
        one: np.array([joining[len(one)] if name in one else -left[len(one)] for name in names])
        for one in required(names, weights)
    }


def combined(game: Game, parts: Mapping[Coalition, FloatArray]) -> FloatArray:
    """(n, ...) the sum over coalitions of their (n,) ``parts``, as `coefficients` gives them, times their utilities."""
    utilities = np.stack([np.asarray(game[one], dtype=np.float64) for one in parts])
    return np.tensordot(np.stack(list(parts.values()), axis=1), utilities, axes=1)


def semivalue(game: Game, weights: Weights, sites: Sequence[str] | None = None) -> FloatArray:
    """The value of each site, (n, ...) by site name.

    Args:
        game: utilities, that of nobody (the empty frozenset) among them where the weights ask for it.
        weights: by the size of the coalition joined.
        sites: n names, where the game might not name all.

    Raises:
        BadInput: a coalition is missing; the message names it.
    """
    names = sorted(sites_of(game) if sites is None else sites)
    if not names:
        raise BadInput("the game has no site; give it the utility of at least one coalition")
    if lacking := missing(game, names, weights):
        raise BadInput(f"{named(lacking)}: no utility; train what is missing, then ask for the values again")
    return combined(game, coefficients(names, weights))


def named(coalitions: Sequence[Coalition]) -> str:
    """Coalitions for a message, all but the first few of them counted."""
    texts = [text_of(one) or "nobody" for one in coalitions[:MOST_NAMED]]
    more = len(coalitions) - len(texts)
    return f"coalition{'s' * (len(coalitions) > 1)} {', '.join(texts)}" + (f" and {more} more" if more else "")


def leave_one_out(game: Game) -> FloatArray:
    """v(N) - v(N without i): what all lose with site i."""
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


def normalised(values: ArrayLike) -> FloatArray:
    """Shares of the sum over sites (first axis), as the performance contribution of Jiang et al. 2023, Table 5.

    Nothing is clipped: a negative value is a negative share, so another's may exceed 1. Where the sum is not above 0
    (by more than rounding) there is nothing to share and dividing would turn the order round: all are NaN.
    """
    amounts = np.asarray(values, dtype=np.float64)
    total = amounts.sum(axis=0)
    positive = total > 1e-12 * np.abs(amounts).sum(axis=0)
    return np.asarray(amounts / np.where(positive, total, np.nan))


@dataclass(frozen=True)
class Estimate:
    """Where a sampling of Shapley values stands."""

    values: FloatArray  # (n, ...) by site name, means over permutations; NaN before the first batch is whole
    standard_errors: FloatArray  # (n, ...) of these means
    permutations: int  # that they are means of
    needed: tuple[Coalition, ...]  # to be trained before it can go on; none: it has come to its end
    ended: str  # the reason, or nothing


@dataclass(frozen=True)
class Sampling:
    """Truncated permutation sampling of Shapley values (Algorithm 1, Ghorbani and Zou 2019).

    Sites join in a random order; the marginal of each is one sample of its value. Once the utility is within
    ``truncation`` of the grand coalition's, the rest of the order counts as marginals of 0, untrained: the values
    then miss at most ``truncation`` in sum. It goes on batch by batch until, after ``fewest`` permutations, no
    standard error (sample standard deviation over sqrt(permutations)) exceeds ``precision``, or to ``most``.

    Everything follows from the fields and the utilities known: whoever trains what is `Estimate.needed`, in any order,
    side by side or on another day, and asks again, comes to the same end.
    """

    sites: tuple[str, ...]
    seed: int = 0
    truncation: float = 0.01  # in units of utility; this is GTG-Shapley's, Liu et al. 2022
    precision: float = 0.005  # in units of utility
    fewest: int = 20
    most: int = 1000
    batch: int = 10  # permutations at work at a time: their next coalitions can be trained side by side

    def __post_init__(self) -> None:
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise BadInput(f"sites {', '.join(self.sites) or 'none'}: expected at least one, each once")
        if not (self.truncation >= 0 and self.precision >= 0):
            raise BadInput(f"truncation {self.truncation}, precision {self.precision}: expected 0 or more")
        if not (2 <= self.fewest <= self.most and self.batch >= 1):
            raise BadInput(
                f"fewest {self.fewest}, most {self.most}, batch {self.batch}: expected 2 <= fewest <= most, batch >= 1"
            )

    def order(self, number: int) -> list[str]:
        """The permutation of that number, from 0: the same whatever was drawn before."""
        names = sorted(self.sites)
        return [names[place] for place in np.random.default_rng([self.seed, number]).permutation(len(names))]

    def estimate(self, game: Game) -> Estimate:
        """How far the utilities known carry, from the first permutation on.

        Raises:
            BadInput: a utility is not finite, or that of nobody is missing: it is stated, not trained.
        """
        if NOBODY not in game:
            raise BadInput("coalition nobody: no utility; state it, for instance 0")
        for one, utility in game.items():
            if not np.isfinite(utility).all():
                raise BadInput(f"{named([one])}: its utility is {np.asarray(utility)}, not finite; train it again")
        grand = frozenset(self.sites)
        if grand not in game:
            unknown = np.full((len(self.sites), *np.shape(game[NOBODY])), np.nan)
            return Estimate(unknown, unknown, 0, (grand,), "")
        whole: list[FloatArray] = []
        needed: dict[Coalition, None] = {}
        while not needed and not (ended := self._ended(whole)):
            walks = [self._walk(game, number) for number in range(len(whole), self._batch_end(len(whole)))]
            needed = dict.fromkeys(walk[-1] for walk in walks if walk[-1] not in game)
            if not needed:
                whole += [self._marginals(game, walk) for walk in walks]
        values, errors = self._means(whole, np.shape(game[grand]))
        return Estimate(values, errors, len(whole), tuple(needed), "" if needed else ended)

    def coefficients(self, game: Game) -> dict[Coalition, FloatArray]:
        """As `coefficients`, of the estimate that the utilities known carry to: sums over its permutations.

        They say what the estimate would be for other utilities of the same coalitions, cut off where this one is.
        """
        names = sorted(self.sites)
        found = {NOBODY: np.zeros(len(names))}
        count = self.estimate(game).permutations
        for number in range(count):
            for before, joined in pairwise(self._walk(game, number)):
                (name,) = joined - before
                for one, sign in ((joined, 1.0), (before, -1.0)):
                    found.setdefault(one, np.zeros(len(names)))[names.index(name)] += sign / count
        return found

    def _batch_end(self, start: int) -> int:
        return min(start + self.batch, self.most)

    def _walk(self, game: Game, number: int) -> list[Coalition]:
        """From nobody on, the coalitions that grow in one permutation, up to where the rest counts as 0.

        The last is not in the game where it has to be known to go on.
        """
        end, walk = np.asarray(game[frozenset(self.sites)], dtype=np.float64), [NOBODY]
        for name in self.order(number):
            if np.abs(end - np.asarray(game[walk[-1]])).max() <= self.truncation:
                break
            walk.append(walk[-1] | {name})
            if walk[-1] not in game:
                break
        return walk

    def _marginals(self, game: Game, walk: Sequence[Coalition]) -> FloatArray:
        """(n, ...) what each site adds in a permutation, by site name."""
        names = sorted(self.sites)
        marginals = np.zeros((len(names), *np.shape(game[NOBODY])))
        for before, joined in pairwise(walk):
            (name,) = joined - before
            marginals[names.index(name)] = np.asarray(game[joined]) - np.asarray(game[before])
        return marginals

    def _means(self, whole: Sequence[FloatArray], shape: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
        unknown = np.full((len(self.sites), *shape), np.nan)
        if len(whole) < 2:
            return (whole[0] if whole else unknown), unknown
        samples = np.stack(whole)
        return samples.mean(axis=0), samples.std(axis=0, ddof=1) / math.sqrt(len(whole))

    def _ended(self, whole: Sequence[FloatArray]) -> str:
        count = len(whole)
        if count >= self.fewest:
            largest = self._means(whole, whole[0].shape[1:])[1].max()
            if largest <= self.precision:
                return f"{count} permutations: no standard error above {self.precision:g}"
            if count >= self.most:
                return f"{count} permutations, the most allowed: standard errors up to {largest:.2g}"
        return ""


def coalition_dice(results: pd.DataFrame) -> pd.DataFrame:
    """Test Dice of each coalition's model on the cases of all sites: `evaluation.tables.case_dice` by coalition.

    Args:
        results: rows of a folder of ground truth, ``coalition`` naming who trained.

    Returns:
        ``(method, seed, site, case)`` x labels, where ``method`` is the coalition as `text_of` has it.
    """
    trained = results[results["coalition"] != ""]
    return case_dice(trained.assign(method=trained["coalition"]))


def coalition_utilities(results: pd.DataFrame, *, per_label: bool = False) -> dict[int, dict[Coalition, FloatArray]]:
    """The game of each seed: utility of a coalition = its model's test Dice, a fraction, mean over sites.

    A site's Dice is the mean over its cases of the mean over labels, as in every table, so that the utility is the
    table's Avg.; with ``per_label`` it is (k,), for each label the mean over sites of the mean over cases. NaN where
    a site has no Dice, all its cases being empty in reference and prediction. The utility of nobody is stated as 0.

    Args:
        results: rows of a folder of ground truth, ``coalition`` naming who trained.
        per_label: whether labels stay apart.

    Raises:
        BadInput: a coalition was not tested on some site that another was tested on, or holds a site never tested.
    """
    cases = coalition_dice(results)
    dice = (cases if per_label else cases.mean(axis=1).to_frame()).groupby(level=["seed", "method", "site"]).mean()
    games: dict[int, dict[Coalition, FloatArray]] = {}
    tested = set(dice.index.get_level_values("site"))
    for (seed, text), rows in dice.groupby(level=["seed", "method"]):
        there = set(rows.index.get_level_values("site"))
        members = frozenset(str(text).split("+"))
        if lacking := sorted((tested | members) - there):
            raise BadInput(
                f"coalition {text}, seed {seed}: not tested on the cases of {', '.join(lacking)}; "
                "test it on all sites, with the command that trained it"
            )
        utility: FloatArray = rows.to_numpy(dtype=np.float64).mean(axis=0)
        utility = utility if per_label else utility.reshape(())
        games.setdefault(int(str(seed)), {NOBODY: np.zeros_like(utility)})[members] = utility
    return games
