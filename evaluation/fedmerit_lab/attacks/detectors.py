"""Free-rider detection from the rounds in results.csv: suspicions and flags; pure functions.

Suspicions are tables ``(run, round)`` x sites, NaN if unknown; a higher one is more suspicious.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedmerit.errors import BadInput
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.detection.detector import Detection

ROUND = ["run", "round"]
NEAR = math.cos(math.radians(30))  # 0.866; the last step with noise of half its norm is at 26.6 degrees, 0.894


@dataclass(frozen=True)
class ThresholdDetector:
    """A detector of free riders in results: it flags a site in a round if its suspicion is above the threshold.

    With a ``lead``, also only if the suspicion is that many times the next highest of the round.
    """

    name: str
    what: str
    source: str
    suspicion: Callable[[Results], pd.DataFrame]
    threshold: float
    lead: float = 0.0

    def see(self, results: Results) -> Detection[pd.DataFrame]:
        """Return suspicions and flags, ``(run, round)`` x sites."""
        suspicion = self.suspicion(results)
        flagged = suspicion > self.threshold
        if self.lead:
            others = {site: suspicion.drop(columns=site).max(axis=1) for site in suspicion}
            highest = pd.DataFrame(others, index=suspicion.index, columns=suspicion.columns).fillna(0)
            flagged &= suspicion >= self.lead * highest.clip(lower=0)
        return Detection(suspicion, flagged)


@dataclass(frozen=True)
class JointDetector:
    """A detector that flags the sites that two detectors flag; its suspicion is the product of both, from 0."""

    name: str
    first: ThresholdDetector
    second: ThresholdDetector

    def see(self, results: Results) -> Detection[pd.DataFrame]:
        """Return suspicions and flags, ``(run, round)`` x sites."""
        first, second = self.first.see(results), self.second.see(results)
        also = second.flagged.reindex_like(first.flagged).fillna(False).astype(bool)
        return Detection(first.suspicion.clip(lower=0) * second.suspicion.clip(lower=0), first.flagged & also)


def of_rounds(results: Results, quantity: str) -> pd.DataFrame:
    """Return a quantity of the rounds, ``(run, round)`` x sites; without rows if it was not recorded."""
    return _by_run(results.read_folders.rounds.of(quantity))


def _by_run(table: pd.DataFrame) -> pd.DataFrame:
    return table.droplevel("seed").rename_axis(index=ROUND)


def validation_dice(results: Results, split: str) -> pd.DataFrame:
    """Return mean Dice over cases and labels, ``(run, round)`` x sites; those empty in both are left out.

    Args:
        results: of any runs.
        split: ``validation``, of the received model; ``validation_trained``, of the model that the site trained.
    """
    return _by_run(results.read_folders.rounds.dice(split))


def error_difference(results: Results) -> pd.DataFrame:
    """Return err_i(trained) - err_i(received) on the site's validation images, -1 to 1: Figure 4's second factor.

    Raises:
        BadInput: the results hold no Dice of trained models.
    """
    trained = validation_dice(results, "validation_trained")
    if trained.empty:
        raise BadInput(
            "results.csv has no Dice of the models that sites trained, which the free-rider value needs; "
            "run again with --set validate_trained=true"
        )
    return validation_dice(results, "validation").reindex(trained.index) - trained


def free_rider_values(results: Results) -> pd.DataFrame:
    """Return f_i = cos(Δ_i, Σ ρ_j Δ_j) (err_i(trained) - err_i(received)), signed (Section 4.3, Jiang et al. 2023).

    The paper defines it in words and draws max(0, f_i): "a free rider is detected with a high value". A site that
    trains on one image gets worse on its own validation images, an honest one gets better: its value is below 0.
    """
    return of_rounds(results, "cosine_to_mean") * error_difference(results)


def accumulated(values: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of the known values of each run's rounds so far."""
    if values.empty:
        return values
    means = values.groupby(level="run").expanding().mean()
    return pd.DataFrame(means.droplevel(0))


def _relative_norm(results: Results) -> pd.DataFrame:
    norms = of_rounds(results, "norm")
    return norms.div(norms.median(axis=1).replace(0, np.nan), axis=0)


def _contribution(results: Results) -> pd.DataFrame:
    mean = accumulated(of_rounds(results, "contribution"))
    return -mean.div(mean.mean(axis=1).where(lambda fair: fair > 0), axis=0)


def _by_server(results: Results) -> pd.DataFrame:
    total = participants(results)
    for name in ("flagged", "rejected", "expelled"):
        total += of_rounds(results, name).reindex_like(total).fillna(0)
    return total


def participants(results: Results) -> pd.DataFrame:
    """Return 0 for every site of a run in every round, NaN for sites of other runs."""
    rows = results.rows.loc[results.rows["split"] == "", [*ROUND, "site"]].drop_duplicates()
    return rows.assign(value=0.0).pivot(index=ROUND, columns="site", values="value")


DETECTORS = (
    ThresholdDetector(
        "free-rider value",
        "mean over rounds of the cosine to the mean times the growth of the own error",
        "Section 4.3, Jiang et al. 2023: the highest of an honest site is 0.03, a free rider's over 5 times as high",
        lambda results: accumulated(free_rider_values(results)),
        threshold=0.03,
        lead=5.0,
    ),
    ThresholdDetector(
        "small norm",
        "norm of the update under a tenth of the median",
        "plain free riders, Fraboni et al. 2021; a tenth leaves room for sites of few images",
        lambda results: -_relative_norm(results),
        threshold=-0.1,
    ),
    ThresholdDetector(
        "large norm",
        "norm of the update over 3 times the median",
        "the bound at which norms are clipped, after Sun et al. 2019",
        _relative_norm,
        threshold=3.0,
    ),
    ThresholdDetector(
        "previous step",
        "the update is within 30 degrees of the mean update of the round before",
        "delta weights, Lin et al. 2019",
        lambda results: of_rounds(results, "cosine_to_previous"),
        threshold=NEAR,
    ),
    ThresholdDetector(
        "near duplicate",
        "the update is within 30 degrees of another site's",
        "sybils, Fung et al. 2020",
        lambda results: of_rounds(results, "largest_pair_cosine"),
        threshold=NEAR,
    ),
    ThresholdDetector(
        "repeated",
        "the very update was sent before, or by another site",
        "digests of the run's ledger",
        lambda results: of_rounds(results, "repeated"),
        threshold=0.5,
    ),
    ThresholdDetector(
        "opposed",
        "the mean over rounds of the cosine to the mean is negative",
        "Figure 7, Jiang et al. 2023; the sign of Xu and Lyu 2021",
        lambda results: -accumulated(of_rounds(results, "cosine_to_mean")),
        threshold=0.0,
    ),
    ThresholdDetector(
        "low contribution",
        "the method's contribution, mean over rounds, is under a third of the mean over sites",
        "the threshold of Xu and Lyu 2021",
        _contribution,
        threshold=-1 / 3,
    ),
    ThresholdDetector(
        "server", "flagged, rejected or expelled in the round", "the method and the server's checks", _by_server, 0.5
    ),
)
