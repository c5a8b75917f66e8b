"""Does paying by it help? How much of a budget goes to the wrong hospital, and what hospitals reach meanwhile.

Pay is a site's share of what an estimator says, what is below 0 counting as 0; its truth is the share by retraining.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from fedmerit_evaluation.figures.tables import Table, plain_name
from fedmerit_evaluation.ground_truth.reliability import POINTS, Resampled
from fedmerit_evaluation.ground_truth.semivalues import FloatArray

EQUAL = "equal shares"
RETRAINING = "retraining, a seed by the others"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What hospitals reach in the runs that pay, and what each reaches alone: (s, n) test Dice, as fractions."""

    together: FloatArray
    alone: FloatArray

    def columns(self) -> dict[str, float]:
        """Means over seeds and sites, and the mean over seeds of the worst site, in percent and points."""
        return {
            "Mean Dice [%]": POINTS * float(self.together.mean()),
            "Gain over alone [points]": POINTS * float((self.together - self.alone).mean()),
            "Worst hospital [%]": POINTS * float(self.together.min(axis=1).mean()),
        }


def shares(values: FloatArray) -> FloatArray:
    """(..., n) values to what each site is paid of 1; NaN where nobody is worth anything."""
    positive = np.maximum(values, 0.0)
    total = positive.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(total > 0, positive / np.where(total > 0, total, 1.0), np.nan))


def misallocated_share(one: FloatArray, other: FloatArray) -> float:
    """The part of 1 that two divisions (n,) of it give to other sites: half the sum of their differences, 0 to 1."""
    return float(np.abs(one - other).sum() / 2)


def between_seeds(said: FloatArray) -> float:
    """The mean of `displaced` over pairs of seeds of (s, n) values; NaN of one seed."""
    pairs = [misallocated_share(one, other) for one, other in combinations(shares(said), 2)]
    return float(np.mean(pairs)) if pairs else np.nan


def leave_one_seed_out(values: FloatArray) -> float:
    """The mean over seeds of `displaced` by the values (s, n) of one beside the mean of the others; NaN of one seed."""
    number = len(values)
    if number < 2:
        return np.nan
    others = (values.sum(axis=0) - values) / (number - 1)
    return float(
        np.mean([misallocated_share(one, other) for one, other in zip(shares(values), shares(others), strict=True)])
    )


def budget_table(
    world: str,
    truth: Resampled,
    said: Mapping[str, FloatArray],
    outcomes: Mapping[str, Outcome],
    costs: Mapping[str, float],
) -> Table:
    """A row for each estimator or method, beside equal shares and the truth by one seed.

    Args:
        world: its name.
        truth: the values by retraining.
        said: by estimator or method, (s, n) values of the truth's sites.
        outcomes: by estimator or method, what hospitals reach in its runs.
        costs: by estimator or method, in FedAvg trainings beside the run itself.
    """
    owed = shares(truth.mean)
    of_seeds = truth.values[..., 0]
    number = len(truth.sites)
    rows = [
        {
            "Paid by": name,
            "To the wrong hospital [%]": POINTS * misallocated_share(shares(values.mean(axis=0)), owed),
            "Moves from seed to seed [%]": POINTS * between_seeds(values),
            **outcomes[name].columns(),
            "Cost [trainings]": costs[name],
        }
        for name, values in said.items()
    ]
    best_first = pd.DataFrame(rows).sort_values("To the wrong hospital [%]", kind="stable")
    beside = [
        {"Paid by": EQUAL, "To the wrong hospital [%]": POINTS * misallocated_share(np.full(number, 1 / number), owed),
         "Moves from seed to seed [%]": 0.0, "Cost [trainings]": 0.0},
        {"Paid by": RETRAINING, "To the wrong hospital [%]": POINTS * leave_one_seed_out(of_seeds),
         "Moves from seed to seed [%]": POINTS * between_seeds(of_seeds)},
    ]  # fmt: skip
    caption = (
        f"World {world}: paid by what an estimator or method says, mean over seeds: how much of the budget goes to "
        "other hospitals than by Shapley values of retraining, how much moves when the seed does, and what hospitals "
        f"reach in the runs paid by; {RETRAINING}: the same of these values themselves, by which to judge every row"
    )
    frame = pd.concat([best_first, pd.DataFrame(beside)], ignore_index=True)
    return Table(f"paying-{plain_name(world)}", caption, frame, decimals=1)
