"""Which site is flagged as a free rider in which round, and how well that tells: functions of suspicions, no files.

Who rides in truth is told to `auroc` and `roc` alone.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from scipy.stats import mannwhitneyu

from evaluation.freeriders.detectors import DETECTORS, Detector, taking_part
from evaluation.results.views import Results


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
            table = taking_part(results) * math.nan
        of_run = table.index.get_level_values("run").map(until)
        chosen = table[table.index.get_level_values("round") == of_run].droplevel("round")
        columns[detector.name] = chosen.rename_axis(columns="site").stack()
    here = taking_part(results).groupby(level="run").max().stack().index
    return pd.DataFrame(columns).rename_axis(["run", "site"]).reindex(here)


def named(values: pd.DataFrame) -> pd.Series:
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
    """The receiver operating characteristic: ``threshold, honest_flagged, riders_flagged``, shares at or above it.

    From the threshold that flags nobody to the one that flags all whose suspicion is known.
    """
    one, other = (np.array([value for value in values if not math.isnan(value)]) for values in (riders, honest))
    thresholds = np.concatenate([[np.inf], np.unique(np.concatenate([one, other]))[::-1]])
    shares = {
        name: [float((values >= threshold).mean()) if len(values) else math.nan for threshold in thresholds]
        for name, values in (("honest_flagged", other), ("riders_flagged", one))
    }
    return pd.DataFrame({"threshold": thresholds, **shares})
