"""Spread and correlation of true numbers of sites, without the error that their estimates have, and share.

Of estimates, the standard deviation over sites is too large, and the correlation of two methods' Dice is drawn towards
that of their errors: both are tested on the same patients. The errors' (co)variance is subtracted, as in the correction
for attenuation (Spearman 1904) with correlated errors. Assumed: seeds and patients are independent, and crossed; all
images of a patient are one. With folds, these are independent.
"""

from collections.abc import Iterable

import numpy as np

from fedmerit_evaluation.statistics.bootstrap import FloatArray
from fedmerit_evaluation.statistics.crossed_effects import CrossedEffects


def mean_error_covariance(effects: CrossedEffects, one: str, other: str) -> float:
    """Covariance of the errors of two methods' Dice, mean over sites [squared fractions].

    NaN if a site has no common seed, or fewer than two common patients (or folds).

    Args:
        effects: of both methods at least.
        one: method.
        other: method; the same: the variance.
    """
    pair = [effects.methods.index(method) for method in (one, other)]
    found = []
    for site in range(len(effects.sites)):
        means, moves = effects.means[pair, :, site], effects.moves[pair, :, site]
        seeds = np.isfinite(means).all(axis=0)
        tested = effects.known[pair, :, site][:, seeds].any(axis=1)  # (2, p)
        if tested.all(axis=0).sum() < 2:
            return np.nan
        found.append(_error_covariance(means[:, seeds], moves[:, seeds], has_folds=effects.has_folds))
    return float(np.mean(found))


def _error_covariance(means: FloatArray, moves: FloatArray, *, has_folds: bool) -> float:
    """Of two means over s seeds, (2, s), which each of p patients moves, (2, s, p), as `CrossedEffects`.

    By moments of crossed random effects (Searle et al. 1992, chapter 4), which of one seed, or over folds, are those
    of patients or folds.
    """
    s = means.shape[1]
    patients = float(moves.mean(axis=1).prod(axis=0).sum())
    if s == 1 or has_folds:
        return patients
    seeds = float(np.cov(means)[0, 1]) / s
    both = float((moves - moves.mean(axis=1, keepdims=True)).prod(axis=0).sum()) / (s * (s - 1))
    return float(seeds + patients - both)


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
