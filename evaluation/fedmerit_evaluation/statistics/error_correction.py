"""Spread and correlation of true numbers of sites, without the error that their estimates have, and share.

Of estimates, the standard deviation over sites is too large, and the correlation of two methods' Dice is drawn towards
that of their errors: both are tested on the same patients. The errors' (co)variance is subtracted, as in the correction
for attenuation (Spearman 1904) with correlated errors. Assumed: seeds and cases are independent, and crossed.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from fedmerit_evaluation.statistics.bootstrap import FloatArray


def error_covariance(x: FloatArray, y: FloatArray) -> float:
    """Covariance of the errors of two means over (s, n) numbers of the same s seeds and n cases, two or more.

    Of one seed that over cases; else by the mean squares of crossed random effects (Searle et al. 1992, chapter 4).
    """
    s, n = x.shape
    if s == 1:
        return float(np.cov(x[0], y[0])[0, 1] / n)
    cases = s * float(np.cov(x.mean(axis=0), y.mean(axis=0))[0, 1])
    seeds = n * float(np.cov(x.mean(axis=1), y.mean(axis=1))[0, 1])
    a, b = (one - one.mean(axis=0, keepdims=True) - one.mean(axis=1, keepdims=True) + one.mean() for one in (x, y))
    rest = float((a * b).sum()) / ((s - 1) * (n - 1))
    return float((cases + seeds - rest) / (s * n))


def mean_error_covariance(cases: pd.Series, one: str, other: str) -> float:
    """`error_covariance` of two methods' Dice, mean over sites; NaN if a site has fewer than two common cases.

    Args:
        cases: Dice by ``(method, seed, site, case)``.
        other: method; the same: the variance.
    """
    found = []
    by_case = cases.unstack(["site", "case"])  # (method, seed) x (site, case)
    x, y = (pd.DataFrame(by_case.xs(method, level="method")).dropna(how="all") for method in (one, other))
    seeds = x.index.intersection(y.index)
    for site in dict.fromkeys(by_case.columns.get_level_values("site")):
        both = [pd.DataFrame(table.loc[seeds, site]) for table in (x, y)]
        known = [case for case in both[0] if both[0][case].notna().all() and both[1][case].notna().all()]
        if len(known) < 2 or not len(seeds):
            return np.nan
        found.append(error_covariance(*(table[known].to_numpy(dtype=np.float64) for table in both)))
    return float(np.mean(found))


def corrected_std(numbers: FloatArray, error: float) -> FloatArray:
    """(...) standard deviation (ddof 1) over sites of true numbers, by (..., n) estimates with that error variance."""
    return np.asarray(np.sqrt(np.maximum(numbers.var(axis=-1, ddof=1) - error, 0.0)))


def corrected_correlation(x: FloatArray, y: FloatArray, errors: Iterable[float]) -> FloatArray:
    """(...) Pearson's correlation over sites of true numbers, -1 to 1; NaN if the errors leave no variance.

    Args:
        x: (..., n) estimates.
        y: (..., n) likewise.
        errors: mean error variance of x, of y, and their covariance.
    """
    of_x, of_y, of_both = errors
    n = x.shape[-1]
    a, b = (one - one.mean(axis=-1, keepdims=True) for one in (x, y))
    variances = ((a * a).sum(axis=-1) / (n - 1) - of_x) * ((b * b).sum(axis=-1) / (n - 1) - of_y)
    positive = ((a * a).sum(axis=-1) / (n - 1) > of_x) & (variances > 0)
    ratio = ((a * b).sum(axis=-1) / (n - 1) - of_both) / np.sqrt(np.where(positive, variances, np.nan))
    return np.asarray(ratio.clip(-1, 1))
