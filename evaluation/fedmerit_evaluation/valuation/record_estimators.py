"""Estimators made of what every run records: the method's own contributions, and how many images there are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmerit.errors import BadInput
from fedmerit_evaluation.ground_truth.semivalues import FloatArray
from fedmerit_evaluation.statistics.bootstrap import nan_mean
from fedmerit_evaluation.valuation.estimator import Estimator
from fedmerit_evaluation.valuation.observed_run import ObservedRun


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
