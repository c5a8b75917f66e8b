"""From values to money: bands of hospitals that share alike, a floor and a cap, amounts that sum to the budget.

Two hospitals are in one band if their values do not differ significantly, or if such hospitals link them. A band's
members each get its mean value, not below 0; amounts are in proportion, and no pair is paid differently by chance.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.sparse.csgraph import connected_components

from fedmerit.errors import BadInput
from fedmerit_evaluation.statistics.ranks import Ranking
from fedmerit_evaluation.statistics.resampling import draw_over_seeds
from fedmerit_evaluation.valuation.valued_runs import Valued

FloatArray = NDArray[np.float64]
IN_PROPORTION = "in proportion, without bands"


@dataclass(frozen=True)
class Rule:
    """A rule that a group agrees on before training; `BadInput` if a part is out of range."""

    budget: int  # whole units of money
    floor: float = 0.0  # least share of a hospital, of an equal one, 0 to 1
    cap: float = float("inf")  # largest share, likewise, 1 or more

    def __post_init__(self) -> None:
        if self.budget < 1 or not 0 <= self.floor <= 1 or not self.cap >= 1:
            raise BadInput(
                f"budget {self.budget}, floor {self.floor:g}, cap {self.cap:g}: expected a budget of 1 or more, a "
                "floor from 0 to 1 and a cap of 1 or more, both of an equal share"
            )

    def shares(self, worth: FloatArray) -> FloatArray:
        """Return (n,) shares of hospitals of that worth, sum 1, in proportion within floor and cap; equal if all 0."""
        n = len(worth)
        positive = np.maximum(worth, 0.0)
        if not positive.any():
            return np.full(n, 1 / n)
        low, high = self.floor / n, min(self.cap / n, 1.0)

        def within(scale: float) -> FloatArray:
            return np.asarray(np.clip(scale * positive / positive.sum(), low, high))

        most = 1 / (positive[positive > 0] / positive.sum()).min()  # beyond it nothing grows
        if within(most).sum() < 1:  # the others are capped: the rest is shared by those worth nothing
            rest = np.where(positive > 0, high, 0.0)
            return np.where(positive > 0, high, (1 - rest.sum()) / max((positive == 0).sum(), 1))
        return within(brentq(lambda scale: within(scale).sum() - 1, 0.0, most, xtol=1e-15))

    def amounts(self, shares: FloatArray) -> NDArray[np.int_]:
        """Return (n,) units that sum to the budget: rounded down, then one each to the largest remainders."""
        exact = self.budget * shares
        whole = np.floor(exact + 1e-9).astype(int)
        left = self.budget - int(whole.sum())
        whole[np.argsort(whole - exact, kind="stable")[:left]] += 1
        return whole


@dataclass(frozen=True)
class Payout:
    """The amounts by one estimator, and under other assumptions."""

    spec: str  # of the estimator
    ranking: Ranking
    band: NDArray[np.int_]  # (n,) 1: that of the highest mean value
    amounts: NDArray[np.int_]  # (n,)
    low: FloatArray  # (n,) 95 % confidence interval of the amount in proportion to values, without bands
    high: FloatArray
    alternatives: Mapping[str, NDArray[np.int_]]  # by assumption, (n,) amounts

    @property
    def is_differentiated(self) -> bool:
        """Whether hospitals are in different bands."""
        return bool(self.band.max() > 1)

    @property
    def sentence(self) -> str:
        """The verdict on the amounts, in words."""
        if self.is_differentiated:
            return f"{self.band.max()} bands differ significantly; within a band all get the same."
        why = self.ranking.insufficient_data or "no two hospitals' values differ significantly, or links join all"
        return f"No differentiated payment can be justified ({why}): equal shares."


def pay(valued: Valued, spec: str, rule: Rule) -> Payout:
    """Return amounts by the estimator ``spec``; the other estimators, seeds and folds are the alternatives.

    Raises:
        BadInput: a site's value is not known.
    """
    rankings = valued.rankings
    for name, found in rankings.items():
        if unknown := [site for site, value in zip(found.sites, found.value, strict=True) if not np.isfinite(value)]:
            raise BadInput(f"{name}: the value of {', '.join(unknown)} is not known; expected values of all sites")
    one = rankings.pop(spec)
    band, amounts = _pay(one, rule)
    drawn = [rule.shares(values) for values in draw_over_seeds(valued.values(spec)) if np.isfinite(values).all()]
    low, high = (
        rule.budget * np.quantile(np.stack(drawn), [0.025, 0.975], axis=0)
        if drawn and one.measured
        else np.full((2, len(one.sites)), np.nan)
    )
    others = {
        IN_PROPORTION: rule.amounts(rule.shares(one.value)),
        "equal shares": rule.amounts(np.full(len(one.sites), 1 / len(one.sites))),
    }
    others |= {f"without {part}": _pay(rest.ranking(spec), rule)[1] for part, rest in valued.without_each.items()}
    for name, other in rankings.items():
        others[f"by {name}"] = _pay(other, rule)[1]
        others[f"by {name}, {IN_PROPORTION}"] = rule.amounts(rule.shares(other.value))
    return Payout(spec, one, band, amounts, low, high, others)


def _pay(one: Ranking, rule: Rule) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    """Return (n,) bands and amounts."""
    _, group = connected_components(one.order_signs == 0, directed=False)
    means = np.array([one.value[group == number].mean() for number in range(group.max() + 1)])
    order = np.argsort(-means, kind="stable")
    return 1 + np.argsort(order)[group], rule.amounts(rule.shares(means[group]))
