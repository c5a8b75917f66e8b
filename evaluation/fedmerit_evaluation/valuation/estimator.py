"""The contract of an estimator of values: a frozen dataclass of parameters and one function of a run.

Estimators made of what every run records: the method's own contributions, and how many images there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmerit.errors import BadInput
from fedmerit.parameters import Checked
from fedmerit_evaluation.ground_truth.semivalues import FloatArray
from fedmerit_evaluation.statistics.bootstrap import nan_mean
from fedmerit_evaluation.valuation.observed_run import ObservedRun


class Estimator(Checked):
    """What is said of the sites' worth, by one run."""

    about: ClassVar[str]  # one line: what it is
    observes: ClassVar[str] = ""  # the observer that a run needs for it; "": none
    in_dice: ClassVar[bool] = False  # whether its values are fractions of Dice, not of a unit of its own

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) by site name, higher is worth more, in units of its own.

        What does not depend on evaluated models is the same in all draws.

        Raises:
            BadInput: the run does not hold what it takes.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class OwnContribution(Estimator):
    """The mean over rounds of what the run's method called each site's contribution."""

    about: ClassVar[str] = "what the run's own method says, mean over rounds"

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) in the method's units; the draws are of rounds."""
        table = run.results.rounds.of("contribution").droplevel(["method", "seed"]).reindex(columns=run.sites)
        if table.isna().all(axis=None):
            raise BadInput(f"{run.path}: its method {run.info['method']} says nothing of contributions")
        said = table.to_numpy(dtype=np.float64)  # (T, n)
        counts = run.round_counts(len(said))  # (T, D)
        known = np.isfinite(said)
        totals = known.T.astype(np.float64) @ counts
        sums = np.where(known, said, 0.0).T @ counts
        drawn = sums / np.where(totals > 0, totals, np.nan)
        return np.where(np.isfinite(drawn), drawn, nan_mean(said, axis=0)[:, None])


@dataclass(frozen=True)
class DataSize(Estimator):
    """n_i."""

    about: ClassVar[str] = "training images"

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) counts."""
        return np.repeat(run.num_samples[:, None], run.count, axis=1)


ESTIMATORS: Mapping[str, type[Estimator]] = {"contribution": OwnContribution, "data_size": DataSize}
