"""Measures of fairness: pure functions of vectors over sites.

Vectors are (..., n) float64, n sites in the last axis; a measure is (...), one for each pair of vectors. It is NaN
where it is undefined, without a warning, and `explain_undefined` says why.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta, rankdata

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

CONSTANT = "is the same for all sites"  # why a correlation is undefined
MIN_CORRELATED = 3  # sites; two points always lie on a line
ROUNDING = 1e-12  # a vector whose entries differ by less, relative to the largest, is constant


def pearson(x: ArrayLike, y: ArrayLike) -> FloatArray:
    """Return the scaled Pearson correlation, 100 r in [-100, 100] (ρ of Xu et al. 2021, Section 4.1).

    Performance fairness (Table 2, Jiang et al. 2023; γ of Definition 1, FedSAC) of standalone and final performance;
    collaboration fairness (Table 3) of ground-truth and estimated contributions; CGSV's ρ (Table 7, Xu et al. 2021) of
    contributions and final performance. Undefined for fewer than 3 sites and for a constant vector.
    """
    x, y = _vectors(x, y)
    return np.where(_correlated(x, y), 100 * _correlation(x, y), np.nan)


def pearson_p(x: ArrayLike, y: ArrayLike) -> FloatArray:
    """Return the two-sided p-value of `pearson`, in [0, 1]: of uncorrelated normal samples, as `scipy.stats.pearsonr`.

    Twice the mean of several p-values, such as over seeds, is a p-value under any dependence (Vovk and Wang 2020).
    """
    half = np.shape(x)[-1] / 2 - 1
    r = np.abs(pearson(x, y)) / 100
    return np.asarray(2 * beta.sf(np.minimum(r, 1), max(half, 0.5), max(half, 0.5), loc=-1, scale=2))


def spearman(x: ArrayLike, y: ArrayLike) -> FloatArray:
    """Return Spearman's correlation of ranks in [-1, 1], ties sharing their mean rank; undefined where `pearson` is."""
    x, y = _vectors(x, y)
    return np.where(_correlated(x, y), _correlation(rankdata(x, axis=-1), rankdata(y, axis=-1)), np.nan)


def kendall(x: ArrayLike, y: ArrayLike) -> FloatArray:
    """Return Kendall's τ_b in [-1, 1], pairs corrected for ties; undefined where `pearson` is."""
    x, y = _vectors(x, y)
    first, second = np.triu_indices(x.shape[-1], k=1)
    a, b = (np.sign(vector[..., first] - vector[..., second]) for vector in (x, y))
    return np.where(_correlated(x, y), _over((a * b).sum(-1), np.sqrt((a * a).sum(-1) * (b * b).sum(-1))), np.nan)


def euclidean(x: ArrayLike, y: ArrayLike) -> FloatArray:
    """Return the Euclidean distance in the unit of the vectors: points of Dice in Table 2 (Jiang 2023), shares in 3."""
    x, y = _vectors(x, y)
    return np.asarray(np.sqrt(((x - y) ** 2).sum(axis=-1)))


def cosine(x: ArrayLike, y: ArrayLike) -> FloatArray:
    """Return the cosine in [-1, 1] (Table 3, Jiang et al. 2023); undefined where a vector is zero."""
    x, y = _vectors(x, y)
    return _over((x * y).sum(-1), np.sqrt((x * x).sum(-1) * (y * y).sum(-1)))


def mean(x: ArrayLike) -> FloatArray:
    """Return the mean over sites."""
    return np.asarray(np.asarray(x, dtype=np.float64).mean(axis=-1))


def std(x: ArrayLike) -> FloatArray:
    """Return the standard deviation over sites (ddof 1), the Std. of Table 1; undefined for one site."""
    vector = np.asarray(x, dtype=np.float64)
    return np.asarray(vector.std(axis=-1, ddof=1)) if vector.shape[-1] > 1 else np.full(vector.shape[:-1], np.nan)


def worst(x: ArrayLike) -> FloatArray:
    """Return the lowest over sites."""
    return np.asarray(np.asarray(x, dtype=np.float64).min(axis=-1))


def mean_gain(local: ArrayLike, final: ArrayLike) -> FloatArray:
    """Return MCG of CYCle: mean over sites of the collaboration gain, final minus standalone performance."""
    local, final = _vectors(local, final)
    return mean(final - local)


def gain_spread(local: ArrayLike, final: ArrayLike) -> FloatArray:
    """Return CGS of CYCle: sample standard deviation over sites (ddof 1) of the collaboration gain."""
    local, final = _vectors(local, final)
    return std(final - local)


def share_worse_off(local: ArrayLike, final: ArrayLike) -> FloatArray:
    """Share of the sites, 0 to 1, with a negative collaboration gain: worse than local training."""
    local, final = _vectors(local, final)
    return _where_known(mean(final < local), local, final)


def reward_bounds(local: ArrayLike, final: ArrayLike) -> tuple[BoolArray, BoolArray]:
    """Return (..., n) which sites keep each bound of Definition 1 of FedSAC: c_i < θ_i and θ_i < (c_i + max θ) / 2.

    c is standalone, θ final performance. A site with the largest θ cannot keep both: see `share_within_bounds`.
    """
    local, final = _vectors(local, final)
    return local < final, final < (local + final.max(axis=-1, keepdims=True)) / 2


def share_within_bounds(local: ArrayLike, final: ArrayLike) -> FloatArray:
    """Share of the sites, 0 to 1, within both bounds of bounded collaborative fairness (Definition 1, FedSAC).

    The upper bound is not asked of the sites with the largest reward, which could keep it only by losing.
    """
    local, final = _vectors(local, final)
    lower, upper = reward_bounds(local, final)
    kept = lower & (upper | (final == final.max(axis=-1, keepdims=True)))
    return _where_known(mean(kept), local, final)


@dataclass(frozen=True)
class Measure:
    """A function of two vectors, its heading in tables, and its range."""

    heading: str
    of: Callable[[ArrayLike, ArrayLike], FloatArray]
    bounds: tuple[float, float]


CORRELATIONS: Mapping[str, Measure] = {
    "pearson": Measure("Pearson", pearson, (-100, 100)),
    "pearson_p": Measure("p", pearson_p, (0, 1)),
    "spearman": Measure("Spearman", spearman, (-1, 1)),
    "kendall": Measure("Kendall", kendall, (-1, 1)),
}


def explain_undefined(name: str, x: ArrayLike, y: ArrayLike, names: tuple[str, str] = ("one", "the other")) -> str:
    """Explain why a measure of two (n,) vectors is NaN; "" if it is defined.

    Args:
        name: of the function in this module, such as ``pearson``.
        x: (n,).
        y: (n,).
        names: what the vectors are, for the sentence.
    """
    x, y = _vectors(x, y)
    for vector, what in zip((x, y), names, strict=True):
        if np.isnan(vector).any():
            return f"{what} is missing{'' if np.isnan(vector).all() else ' for some site'}"
        if name in CORRELATIONS and x.shape[-1] < MIN_CORRELATED:
            return f"{x.shape[-1]} sites; a correlation takes {MIN_CORRELATED}"
        if name in CORRELATIONS and _constant(vector):
            return f"{what} {CONSTANT}"
        if name == "cosine" and not vector.any():
            return f"{what} is zero for all sites"
    return "one site has no spread" if name in ("std", "gain_spread") and x.shape[-1] < 2 else ""


def _vectors(x: ArrayLike, y: ArrayLike) -> tuple[FloatArray, FloatArray]:
    a, b = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))
    return np.where(np.isfinite(a), a, np.nan), np.where(np.isfinite(b), b, np.nan)


def _constant(x: FloatArray) -> BoolArray:
    return np.asarray(x.max(axis=-1) - x.min(axis=-1) <= ROUNDING * np.abs(x).max(axis=-1))


def _correlated(x: FloatArray, y: FloatArray) -> BoolArray:
    if x.shape[-1] < MIN_CORRELATED:
        return np.zeros(x.shape[:-1], dtype=np.bool_)
    return np.asarray(~(_constant(x) | _constant(y)) & ~np.isnan(x + y).any(axis=-1))


def _correlation(x: FloatArray, y: FloatArray) -> FloatArray:
    x, y = (vector - vector.mean(axis=-1, keepdims=True) for vector in (x, y))
    return np.clip(_over((x * y).sum(-1), np.sqrt((x * x).sum(-1) * (y * y).sum(-1))), -1, 1)


def _over(inner: FloatArray, scale: FloatArray) -> FloatArray:
    return np.asarray(inner / np.where(scale > 0, scale, np.nan))


def _where_known(measure: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    return np.where(np.isnan(x + y).any(axis=-1), np.nan, measure)
