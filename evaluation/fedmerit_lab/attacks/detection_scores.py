"""How well detectors find free riders: first flags, suspicions, AUROC and ROC. Only `auroc` and `roc` know them."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from scipy.stats import mannwhitneyu

from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.detectors import DETECTORS, participants


def first_flags(results: Results, since: Mapping[str, int] | None = None) -> pd.DataFrame:
    """Return the first round in which each detector flags each site: columns ``run, site, detector, round``.

    Args:
        results: of any runs.
        since: by run, the round before which flags do not count; 0 for other runs.
    """
    found = []
    for detector in DETECTORS:
        flagged = detector.see(results).flagged
        rows, columns = flagged.to_numpy().nonzero()
        for (run, round), site in zip(flagged.index[rows], flagged.columns[columns], strict=True):
            if round >= (since or {}).get(run, 0):
                found.append((run, site, detector.name, round))
    rounds = pd.DataFrame(found, columns=["run", "site", "detector", "round"])
    return rounds.groupby(["run", "site", "detector"], sort=False)["round"].min().reset_index()


def suspicions(results: Results, until: Mapping[str, int]) -> pd.DataFrame:
    """Return every detector's suspicion of every site in a round of each run: ``(run, site)`` x detectors.

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


def highest_site(values: pd.DataFrame) -> pd.Series:
    """Return the site of the highest positive value of each row, "" where none is positive."""
    highest = values.max(axis=1)
    return values.where(values.gt(0), -1.0).idxmax(axis=1).where(highest > 0, "")


def auroc(attackers: Iterable[float], honest: Iterable[float]) -> float:
    """Return the probability that an attacker's suspicion is above an honest site's, ties half (Mann-Whitney's U).

    NaN without values of both; unknown values are left out.
    """
    one, other = (np.array([value for value in values if not math.isnan(value)]) for values in (attackers, honest))
    if not len(one) or not len(other):
        return math.nan
    return float(mannwhitneyu(one, other).statistic) / (len(one) * len(other))


def roc(attackers: Iterable[float], honest: Iterable[float]) -> pd.DataFrame:
    """Return the receiver operating characteristic: ``threshold, false_positive_rate, true_positive_rate``, 0 to 1.

    From the threshold that flags no site to the one that flags all sites of known suspicion.
    """
    one, other = (np.array([value for value in values if not math.isnan(value)]) for values in (attackers, honest))
    thresholds = np.concatenate([[np.inf], np.unique(np.concatenate([one, other]))[::-1]])
    shares = {
        name: [float((values >= threshold).mean()) if len(values) else math.nan for threshold in thresholds]
        for name, values in (("false_positive_rate", other), ("true_positive_rate", one))
    }
    return pd.DataFrame({"threshold": thresholds, **shares})
