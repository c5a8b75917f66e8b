"""Budget allocation by estimated values: the misallocated share of a budget, and the Dice that hospitals reach.

A site is paid its share of an estimator's values, negative ones counted as 0; the reference is the share by retraining.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from fedmerit.contract.semivalues import FloatArray
from fedmerit_evaluation.figures.tables import Table, plain_name
from fedmerit_evaluation.ground_truth.reliability import POINTS, Resampled
from fedmerit_evaluation.valuation.payout import EQUAL

RETRAINING = "retraining, one seed against the others"
MISALLOCATED, BETWEEN_SEEDS = "Misallocated [%]", "Misallocated between seeds [%]"


@dataclass(frozen=True, eq=False)
class Outcome:
    """A pair of Dice of hospitals in the runs behind the payment and of local-only training: (runs, n), 0 to 1."""

    federated: FloatArray
    local_only: FloatArray

    def columns(self) -> dict[str, float]:
        """Return means over seeds and sites, and the mean over seeds of the worst site, in percent and points."""
        return {
            "Mean Dice [%]": POINTS * float(self.federated.mean()),
            "Gain over local-only [points]": POINTS * float(self.federated.mean() - self.local_only.mean()),
            "Worst hospital [%]": POINTS * float(self.federated.min(axis=1).mean()),
        }


def shares(values: FloatArray) -> FloatArray:
    """Return (..., n) payments by values (..., n): they sum to 1; NaN if no value is positive."""
    positive = np.maximum(values, 0.0)
    total = positive.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(total > 0, positive / np.where(total > 0, total, 1.0), np.nan))


def misallocated_share(one: FloatArray, other: FloatArray) -> float:
    """Return half the sum of absolute differences of two divisions (n,) of 1, so 0 to 1."""
    return float(np.abs(one - other).sum() / 2)


def misallocated_between_seeds(values: FloatArray) -> float:
    """Return the mean of `misallocated_share` over pairs of seeds of (s, n) values; NaN for one seed."""
    pairs = [misallocated_share(one, other) for one, other in combinations(shares(values), 2)]
    return float(np.mean(pairs)) if pairs else np.nan


def leave_one_seed_out(values: FloatArray) -> float:
    """Return the mean over seeds of `misallocated_share` of (s, n) values and the others' mean; NaN for one seed."""
    number = len(values)
    if number < 2:
        return np.nan
    others = (values.sum(axis=0) - values) / (number - 1)
    pairs = zip(shares(values), shares(others), strict=True)
    return float(np.mean([misallocated_share(one, other) for one, other in pairs]))


def budget_table(
    scenario: str,
    reference: Resampled,
    values: Mapping[str, FloatArray],
    outcomes: Mapping[str, Outcome],
    costs: Mapping[str, float],
) -> Table:
    """Return a row for each estimator or method, for equal shares, and for retraining with one seed.

    Args:
        scenario: its name.
        reference: the values by retraining.
        values: by estimator or method, (s, n) values of the same sites.
        outcomes: by estimator or method, Dice in its runs.
        costs: by estimator or method, in FedAvg trainings beyond the run itself.
    """
    repeats = reference.repeats
    owed = shares(repeats.mean(axis=0))
    number = len(reference.sites)
    rows = [
        {
            "Paid by": name,
            MISALLOCATED: POINTS * misallocated_share(shares(found.mean(axis=0)), owed),
            BETWEEN_SEEDS: POINTS * misallocated_between_seeds(found),
            **outcomes[name].columns(),
            "Cost [trainings]": costs[name],
        }
        for name, found in values.items()
    ]
    best_first = pd.DataFrame(rows).sort_values(MISALLOCATED, kind="stable")
    references = [
        {"Paid by": EQUAL, MISALLOCATED: POINTS * misallocated_share(np.full(number, 1 / number), owed),
         BETWEEN_SEEDS: 0.0, "Cost [trainings]": 0.0},
        {"Paid by": RETRAINING, MISALLOCATED: POINTS * leave_one_seed_out(repeats),
         BETWEEN_SEEDS: POINTS * misallocated_between_seeds(repeats)},
    ]  # fmt: skip
    caption = (
        f"Scenario {scenario}, payment by the values of an estimator or method, mean over seeds: share of the budget "
        "that differs from payment by Shapley values of retraining; share that differs between two seeds; Dice that "
        f"hospitals reach in the runs behind it. {RETRAINING}: the noise floor of these Shapley values"
    )
    if reference.folds:
        caption += "; folds take the place of seeds"
    frame = pd.concat([best_first, pd.DataFrame(references)], ignore_index=True)
    return Table(f"budget-{plain_name(scenario)}", caption, frame, decimals=1)
