"""The contract of an estimator of values: a frozen dataclass of parameters and one function of a run; and the simplest.

The simplest estimators use only what every run records: the method's own contributions, and the number of images.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmerit.errors import BadInput
from fedmerit.schema.parameters import Checked
from fedmerit_evaluation.ground_truth.semivalues import FloatArray
from fedmerit_evaluation.statistics.bootstrap import nan_mean
from fedmerit_evaluation.valuation.observed_run import ObservedRun

ROUNDING = 1e-6  # of the largest contribution per image


class Estimator(Checked):
    """An estimate of the values of the sites from one run."""

    about: ClassVar[str]  # one line of description
    observes: ClassVar[str] = ""  # the observer that it needs; "": none
    in_dice: ClassVar[bool] = False  # whether its values are fractions of Dice, else of its own unit

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) values by site name, higher is better, as observed and in D - 1 bootstrap samples.

        Values that do not depend on evaluated models are the same in all samples.

        Raises:
            BadInput: the run lacks what it needs.
        """
        raise NotImplementedError

    def rests_on_training(self, run: ObservedRun) -> bool:
        """Whether values could be others by chance in training; if not, such as counts, they are not tested."""
        return bool(self.observes)


@dataclass(frozen=True)
class OwnContribution(Estimator):
    """Mean over rounds of each site's contribution by the run's method."""

    about: ClassVar[str] = "contribution by the run's own method, mean over rounds"

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) in the method's units; rounds are resampled."""
        table = run.results.rounds.of("contribution").droplevel(["method", "seed"]).reindex(columns=run.sites)
        if table.isna().all(axis=None):
            raise BadInput(f"{run.path}: its method {run.info['method']} makes no estimate of contributions")
        recorded = table.to_numpy(dtype=np.float64)  # (T, n)
        counts = run.round_counts(len(recorded))  # (T, D)
        known = np.isfinite(recorded)
        totals = known.T.astype(np.float64) @ counts
        sums = np.where(known, recorded, 0.0).T @ counts
        drawn = sums / np.where(totals > 0, totals, np.nan)
        return np.where(np.isfinite(drawn), drawn, nan_mean(recorded, axis=0)[:, None])

    def rests_on_training(self, run: ObservedRun) -> bool:
        """Whether it is no multiple of the sites' training images, as FedAvg's is in every round."""
        rounds = run.results.rounds
        ratio = rounds.of("contribution") / rounds.of("num_samples")
        return not bool((ratio.max(axis=1) - ratio.min(axis=1) <= ROUNDING * ratio.max(axis=1)).all())


@dataclass(frozen=True)
class DataSize(Estimator):
    """n_i."""

    about: ClassVar[str] = "training images"

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) counts."""
        return np.repeat(run.num_samples[:, None], run.count, axis=1)


ESTIMATORS: Mapping[str, type[Estimator]] = {"contribution": OwnContribution, "data_size": DataSize}
