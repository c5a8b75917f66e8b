"""Detectors of free riders in finished runs, by the rounds in results.csv; pure functions.

Suspicions are tables ``(run, round)`` x sites, NaN if unknown; a higher one is more suspicious.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from fedmerit.errors import BadInput
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.detection.detector import Detection, Detector

ROUND = ["run", "round"]


@dataclass(frozen=True)
class ThresholdDetector:
    """A detector of free riders in results: it flags a site in a round if its suspicion is above the threshold.

    With a ``lead``, also only if the suspicion is that many times the next highest of the round.
    """

    name: str
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


WINDOW = 5  # rounds of a mean


def cosine_drops(results: Results) -> pd.DataFrame:
    """Return the drop of each site's cosine to the mean update, minus the sites' median drop: ``(run, round)`` x sites.

    From the mean of the first `WINDOW` rounds to that of the last ones; 0 while they overlap. "The similarity between
    local gradients from the free rider and global [ones] decreases" (Appendix C, Jiang et al. 2023); as training
    converges, it decreases for all sites.
    """
    cosines = of_rounds(results, "cosine_to_mean")
    if cosines.empty:
        return cosines
    runs = cosines.groupby(level="run")
    early = runs.transform(lambda column: column.iloc[:WINDOW].mean())
    recent = runs.rolling(WINDOW, min_periods=1).mean().droplevel(0).reindex(cosines.index)
    drops = (early - recent).where(runs.cumcount() >= WINDOW, 0.0).where(cosines.notna())
    return drops.sub(drops.median(axis=1), axis=0)


def low_losses(results: Results) -> pd.DataFrame:
    """Return 1 - training loss over the median site's, means over `WINDOW` rounds: ``(run, round)`` x sites.

    A site that repeats one image soon has a low loss on it. The loss is self-reported, as the error is.
    """
    losses = of_rounds(results, "train_loss")
    if losses.empty:
        return losses
    recent = losses.groupby(level="run").rolling(WINDOW, min_periods=1).mean().droplevel(0)
    return 1 - recent.div(recent.median(axis=1), axis=0)


def by_server(results: Results) -> pd.DataFrame:
    """Return 1 for each site that the server flagged, rejected or expelled in the round: ``(run, round)`` x sites."""
    total = participants(results)
    for name in ("flagged", "rejected", "expelled"):
        total += of_rounds(results, name).reindex_like(total).fillna(0)
    return total.clip(upper=1)


def participants(results: Results) -> pd.DataFrame:
    """Return 0 for every site of a run in every round, NaN for sites of other runs."""
    rows = results.rows.loc[results.rows["split"] == "", [*ROUND, "site"]].drop_duplicates()
    return rows.assign(value=0.0).pivot(index=ROUND, columns="site", values="value")


# Section 4.3, Jiang et al. 2023: an honest site's value is at most 0.03, a free rider's over 5 times as high.
VALUE = ThresholdDetector(
    "free-rider value", lambda results: accumulated(free_rider_values(results)), threshold=0.03, lead=5.0
)
# Figure 7, Jiang et al. 2023, which has no threshold.
DROP = ThresholdDetector("cosine drop", cosine_drops, threshold=0.1, lead=2.0)
# The threshold was chosen on six generated hospitals, seeds 0 to 2.
LOSS = ThresholdDetector("training loss", low_losses, threshold=0.4)
SERVER = ThresholdDetector("server", by_server, threshold=0.5)  # the method's and the guard's verdicts

RULES: tuple[Detector[Results, pd.DataFrame], ...] = (VALUE, DROP, JointDetector("both", VALUE, DROP), LOSS, SERVER)
