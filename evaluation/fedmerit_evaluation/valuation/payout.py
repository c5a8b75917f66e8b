"""From values to money: shares in proportion to values, shrunk to equal ones by their reliability, a floor and a cap.

The share of a hospital is 1/n + β λ (s − 1/n): s is its share of the sum of all values, those below 0 counted as 0; λ
the reliability of the values (`fedmerit_evaluation.valuation.valued_runs.Valued.reliability`), 0 to 1; β the slope of
the shares that retraining gives on those of the estimator, 1 until a benchmark of the same kind of task has measured
it. Values that are all noise pay equal shares, values without noise pay in proportion, and no amount jumps between.
Source: Efron and Morris 1975, Data Analysis Using Stein's Estimator and its Generalizations. Compared with other rules
by simulation: docs/valuation.md.

Bands of hospitals whose values do not differ significantly are a test beside the amounts; they change none.
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
from fedmerit_evaluation.valuation.valued_runs import UNMEASURED, Valued

FloatArray = NDArray[np.float64]
IN_PROPORTION, EQUAL = "in proportion", "equal shares"
MOST_SLOPE = 10.0
MOST_BUDGET = 10**15


@dataclass(frozen=True)
class Rule:
    """A rule that a group agrees on before training; `BadInput` if a part is out of range."""

    budget: int  # whole units of money, at most `MOST_BUDGET`
    floor: float = 0.0  # least share of a hospital, of an equal one, 0 to 1
    cap: float = float("inf")  # largest share, likewise, 1 or more
    slope: float = 1.0  # β, 0 to `MOST_SLOPE`

    def __post_init__(self) -> None:
        is_budget = 1 <= self.budget <= MOST_BUDGET
        if not (is_budget and 0 <= self.floor <= 1 and self.cap >= 1 and 0 <= self.slope <= MOST_SLOPE):
            raise BadInput(
                f"budget {self.budget}, floor {self.floor:g}, cap {self.cap:g}, slope {self.slope:g}: expected a "
                f"budget of 1 or more, at most {MOST_BUDGET}, a floor from 0 to 1 and a cap of 1 or more, both of an "
                f"equal share, and a slope from 0 to {MOST_SLOPE:g}"
            )

    def shares(self, worth: FloatArray, reliability: float = 1.0, repeated: FloatArray | None = None) -> FloatArray:
        """Return (n,) shares, sum 1, of hospitals with values ``worth`` of a reliability, within floor and cap.

        ``repeated`` (n,), 0 to 1, multiplies each share before; if it is 0 for all, shares are equal. None: 1.
        """
        n = len(worth)
        positive = np.maximum(worth, 0.0)
        proportional = positive / positive.sum() if positive.any() else np.full(n, 1 / n)
        shares = 1 / n + self.slope * reliability * (proportional - 1 / n)
        if repeated is not None:
            shares = np.maximum(shares, 0.0) * repeated
        return self._within_bounds(shares if shares.any() else np.full(n, 1 / n))

    def _within_bounds(self, shares: FloatArray) -> FloatArray:
        """Return the shares within floor and cap: what these take or leave goes to the others in proportion."""
        n, positive = len(shares), np.maximum(shares, 0.0)
        low, high = self.floor / n, min(self.cap / n, 1.0)

        def within(scale: float) -> FloatArray:
            return np.asarray(np.clip(scale * positive / positive.sum(), low, high))

        most = 1 / (positive[positive > 0] / positive.sum()).min()  # beyond it nothing grows
        if within(most).sum() < 1:  # the others are capped: the rest is shared by those with nothing
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
    reliability: float  # λ, 0 to 1
    unreliable: str  # why λ is 0 without being measured; "": it is measured
    slope: float  # β
    amounts: NDArray[np.int_]  # (n,)
    low: FloatArray  # (n,) 95 % confidence interval of the amount, with λ and β as they are
    high: FloatArray
    band: NDArray[np.int_]  # (n,) 1: that of the highest mean value; hospitals of a band do not differ significantly
    alternatives: Mapping[str, NDArray[np.int_]]  # by assumption, (n,) amounts
    repeated: FloatArray | None = None  # (n,) `Valued.repeated`, if pay counts only audited rounds

    @property
    def sentence(self) -> str:
        """The rule and the test beside it, in words."""
        if self.repeated is None:
            return self._rule
        shares = ", ".join(f"{site} {share:.2f}" for site, share in zip(self.ranking.sites, self.repeated, strict=True))
        return f"{self._rule} Multiplied by the share of rounds whose drawn steps an auditor repeated: {shares}."

    @property
    def _rule(self) -> str:
        if self.reliability == 0:
            why = self.unreliable or "differences between values are no larger than their errors"
            agreed = " To pay by it all the same, agree on the amounts in proportion." if why == UNMEASURED else ""
            return f"Equal shares: the reliability of the values is 0 ({why}).{agreed}"
        test = (
            f"{self.band.max()} bands differ significantly"
            if self.band.max() > 1
            else "no two bands of hospitals differ significantly"
        )
        return (
            f"Shares are {self.reliability * self.slope:.2f} of the way from equal ones to those in proportion to "
            f"values (reliability {self.reliability:.2f}, slope {self.slope:g}). Test beside it: {test}."
        )


def pay(valued: Valued, spec: str, rule: Rule) -> Payout:
    """Return amounts by the estimator ``spec``; the other estimators, seeds and folds are the alternatives.

    Raises:
        BadInput: a site's value is not known.
    """
    rankings = valued.rankings
    for name, found in rankings.items():
        if unknown := [site for site, value in zip(found.sites, found.value, strict=True) if not np.isfinite(value)]:
            raise BadInput(f"{name}: the value of {', '.join(unknown)} is not known; expected values of all sites")
    own = rankings.pop(spec)
    reliability, unreliable = valued.reliability(spec)
    seeds = draw_over_seeds(valued.values(spec), folds=valued.folds)
    repeated = valued.repeated
    drawn = [rule.shares(values, reliability, repeated) for values in seeds if np.isfinite(values).all()]
    low, high = (
        rule.budget * np.quantile(np.stack(drawn), [0.025, 0.975], axis=0)
        if drawn and own.measured
        else np.full((2, len(own.sites)), np.nan)
    )
    others = {
        IN_PROPORTION: rule.amounts(rule.shares(own.value, 1 / rule.slope if rule.slope else 0.0, repeated)),
        EQUAL: rule.amounts(np.full(len(own.sites), 1 / len(own.sites))),
    }
    others |= {f"without {part}": _amounts(rest, spec, rule) for part, rest in valued.without_each.items()}
    others |= {f"by {name}": _amounts(valued, name, rule) for name in rankings}
    amounts, audited = _amounts(valued, spec, rule), repeated if valued.auditors else None
    return Payout(spec, own, reliability, unreliable, rule.slope, amounts, low, high, _bands(own), others, audited)


def _amounts(valued: Valued, spec: str, rule: Rule) -> NDArray[np.int_]:
    values = valued.values(spec)[..., 0].mean(axis=0)
    return rule.amounts(rule.shares(values, valued.reliability(spec)[0], valued.repeated))


def _bands(order: Ranking) -> NDArray[np.int_]:
    """Return (n,) bands: two hospitals are in one if their values do not differ significantly, or others link them."""
    _, group = connected_components(order.order_signs == 0, directed=False)
    means = [order.value[group == number].mean() for number in range(group.max() + 1)]
    place = np.argsort(np.argsort(-np.array(means), kind="stable"))
    return np.asarray(1 + place[group])
