"""Suspicions of free riding, by what results.csv holds of the rounds: pure functions of results, no files.

Suspicions are tables ``(run, round)`` x sites, NaN where nothing is known; a higher one is more suspicious. Nothing in
them knows who attacks.

Which site is flagged as a free rider in which round, and how well that tells: functions of suspicions, no files.

Who rides in truth is told to `auroc` and `roc` alone.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import mannwhitneyu

from fedmerit.errors import BadInput
from fedmerit_evaluation.results.views import Results

ROUND = ["run", "round"]
NEAR = math.cos(math.radians(30))  # 0.866; the last step with noise of half its norm is at 26.6 degrees, 0.894


@dataclass(frozen=True)
class Detector:
    """One way to tell: a site is flagged in a round where its suspicion is above the threshold.

    ``lead``: and at least so many times the next highest of the round; 0: whatever the others' are.
    """

    name: str
    what: str
    source: str
    suspicion: Callable[[Results], pd.DataFrame]
    threshold: float
    lead: float = 0.0


def of_rounds(results: Results, quantity: str) -> pd.DataFrame:
    """A quantity of the rounds, ``(run, round)`` x sites; without rows where it was not recorded."""
    return _by_run(results.read_folders.rounds.of(quantity))


def _by_run(table: pd.DataFrame) -> pd.DataFrame:
    return table.droplevel("seed").rename_axis(index=ROUND)


def validation_dice(results: Results, split: str) -> pd.DataFrame:
    """Mean Dice over cases and labels, ``(run, round)`` x sites; those empty in both are left out.

    Args:
        results: of any runs.
        split: ``validation``, of the model received; ``validation_trained``, of what the site made of it.
    """
    return _by_run(results.read_folders.rounds.dice(split))


def error_difference(results: Results) -> pd.DataFrame:
    """err_i(trained) - err_i(received) on the site's own validation images, -1 to 1: the second factor of Figure 4.

    Raises:
        BadInput: the results hold no Dice of trained models.
    """
    trained = validation_dice(results, "validation_trained")
    if trained.empty:
        raise BadInput(
            "results.csv holds no Dice of the models that sites trained, which the free-rider value needs; "
            "run again with --set validate_trained=true"
        )
    return validation_dice(results, "validation").reindex(trained.index) - trained


def free_rider_values(results: Results) -> pd.DataFrame:
    """f_i = cos(Δ_i, Σ ρ_j Δ_j) (err_i(trained) - err_i(received)), signed (Section 4.3, Jiang et al. 2023).

    The paper has it in words alone, and draws max(0, f_i): "a free rider is detected with a high value". A site that
    trains on one image gets worse at its own validation images, an honest one better: its value is below 0.
    """
    return of_rounds(results, "cosine_to_mean") * error_difference(results)


def accumulated(values: pd.DataFrame) -> pd.DataFrame:
    """The mean of each run's rounds so far, where a value is known."""
    if values.empty:
        return values
    means = values.groupby(level="run").expanding().mean()
    return pd.DataFrame(means.droplevel(0))


def _fedce(results: Results) -> pd.DataFrame:
    return accumulated(free_rider_values(results))


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
    """0 for every site of a run in every round, NaN for sites of other runs."""
    rows = results.rows.loc[results.rows["split"] == "", [*ROUND, "site"]].drop_duplicates()
    return rows.assign(value=0.0).pivot(index=ROUND, columns="site", values="value")


DETECTORS = (
    Detector(
        "free-rider value",
        "mean over rounds of the cosine to the mean times the growth of the own error",
        "Section 4.3, Jiang et al. 2023: the highest of an honest site is 0.03, the rider's over 5 times as high",
        _fedce,
        threshold=0.03,
        lead=5.0,
    ),
    Detector(
        "small norm",
        "norm of the update under a tenth of the median",
        "plain free riders, Fraboni et al. 2021; a tenth leaves room for sites of few images",
        lambda results: -_relative_norm(results),
        threshold=-0.1,
    ),
    Detector(
        "large norm",
        "norm of the update over 3 times the median",
        "the bound at which norms are clipped, after Sun et al. 2019",
        _relative_norm,
        threshold=3.0,
    ),
    Detector(
        "previous step",
        "the update is within 30 degrees of the mean update of the round before",
        "delta weights, Lin et al. 2019",
        lambda results: of_rounds(results, "cosine_to_previous"),
        threshold=NEAR,
    ),
    Detector(
        "near duplicate",
        "the update is within 30 degrees of another site's",
        "sybils, Fung et al. 2020",
        lambda results: of_rounds(results, "largest_pair_cosine"),
        threshold=NEAR,
    ),
    Detector(
        "repeated",
        "the very update was sent before, or by another site",
        "digests of the run's ledger",
        lambda results: of_rounds(results, "repeated"),
        threshold=0.5,
    ),
    Detector(
        "opposed",
        "the mean over rounds of the cosine to the mean is negative",
        "Figure 7, Jiang et al. 2023; the sign of Xu and Lyu 2021",
        lambda results: -accumulated(of_rounds(results, "cosine_to_mean")),
        threshold=0.0,
    ),
    Detector(
        "low contribution",
        "the method's contribution, mean over rounds, is under a third of the mean over sites",
        "the threshold of Xu and Lyu 2021",
        _contribution,
        threshold=-1 / 3,
    ),
    Detector(
        "server", "flagged, rejected or expelled in the round", "the method and the server's checks", _by_server, 0.5
    ),
)


def flags(detector: Detector, suspicion: pd.DataFrame) -> pd.DataFrame:
    """Whether each site is flagged in each round: ``(run, round)`` x sites, bool.

    Args:
        detector: whose threshold.
        suspicion: what it says.
    """
    flagged = suspicion > detector.threshold
    if detector.lead:
        flagged &= suspicion >= detector.lead * _highest_of_others(suspicion).clip(lower=0)
    return flagged


def _highest_of_others(table: pd.DataFrame) -> pd.DataFrame:
    others = {site: table.drop(columns=site).max(axis=1) for site in table}
    return pd.DataFrame(others, index=table.index, columns=table.columns).fillna(0)


def first_flags(results: Results, since: Mapping[str, int] | None = None) -> pd.DataFrame:
    """The first round in which each detector flags each site: columns ``run, site, detector, round``.

    Args:
        results: of any runs.
        since: by run, the round before which flags do not count; 0 for runs it does not name.
    """
    found = []
    for detector in DETECTORS:
        flagged = flags(detector, detector.suspicion(results))
        rows, columns = flagged.to_numpy().nonzero()
        for (run, round), site in zip(flagged.index[rows], flagged.columns[columns], strict=True):
            if round >= (since or {}).get(run, 0):
                found.append((run, site, detector.name, round))
    rounds = pd.DataFrame(found, columns=["run", "site", "detector", "round"])
    return rounds.groupby(["run", "site", "detector"], sort=False)["round"].min().reset_index()


def suspicions(results: Results, until: Mapping[str, int]) -> pd.DataFrame:
    """Every detector's suspicion of every site in a round of each run: ``(run, site)`` x detectors.

    Args:
        results: of any runs.
        until: by run, the round.
    """
    columns = {}
    for detector in DETECTORS:
        table = detector.suspicion(results)
        if table.empty:
            table = participants(results) * math.nan
        of_run = table.index.get_level_values("run").map(until)
        chosen = table[table.index.get_level_values("round") == of_run].droplevel("round")
        columns[detector.name] = chosen.rename_axis(columns="site").stack()
    here = participants(results).groupby(level="run").max().stack().index
    return pd.DataFrame(columns).rename_axis(["run", "site"]).reindex(here)


def is_detected(values: pd.DataFrame) -> pd.Series:
    """The site of the highest positive value of each row, "" where none is positive."""
    highest = values.max(axis=1)
    return values.where(values.gt(0), -1.0).idxmax(axis=1).where(highest > 0, "")


def auroc(riders: Iterable[float], honest: Iterable[float]) -> float:
    """The probability that a rider's suspicion is above an honest site's, ties counted half (Mann-Whitney's U).

    NaN where there are none of either; unknown values are left out.
    """
    one, other = (np.array([value for value in values if not math.isnan(value)]) for values in (riders, honest))
    if not len(one) or not len(other):
        return math.nan
    return float(mannwhitneyu(one, other).statistic) / (len(one) * len(other))


def roc(riders: Iterable[float], honest: Iterable[float]) -> pd.DataFrame:
    """The receiver operating characteristic: ``threshold, false_positives, riders_flagged``, shares at or above it.

    From the threshold that flags nobody to the one that flags all whose suspicion is known.
    """
    one, other = (np.array([value for value in values if not math.isnan(value)]) for values in (riders, honest))
    thresholds = np.concatenate([[np.inf], np.unique(np.concatenate([one, other]))[::-1]])
    shares = {
        name: [float((values >= threshold).mean()) if len(values) else math.nan for threshold in thresholds]
        for name, values in (("honest_flagged", other), ("riders_flagged", one))
    }
    return pd.DataFrame({"threshold": thresholds, **shares})
