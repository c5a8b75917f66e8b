"""Values of sites with 95 % confidence intervals, significant differences between pairs, and intervals of ranks.

Values come for s seeds, n sites and D draws of everything else that is random, such as patients; the first draw is the
observed one. All seeds get the same draw, and `fedmerit_evaluation.statistics.resampling.draw_over_seeds` draws other
seeds; with one seed the variation over seeds is unknown, and the intervals are too short. Differences of pairs are
two-sided at 5 %, over all pairs (Holm). A rank's interval counts the sites that are significantly above and below: all
intervals at once hold the true ranks in 95 of 100 studies (Al Mohamad, van Zwet, Solari and Goeman 2021).

With folds these take the place of seeds, or the draws are of them. Intervals and tests count that folds share training
patients, by `fedmerit_evaluation.statistics.inference.fold_overlap`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedmerit_evaluation.statistics.inference import SIGNIFICANCE_LEVEL, SampleSize, holm, p_values
from fedmerit_evaluation.statistics.resampling import ENDS, FloatArray, draw_over_seeds

ROUNDING = 1e-12  # of the largest value: rounding of means of equal numbers, summed in another order
NO_VARIANCE = "no variance was measured"


@dataclass(frozen=True, eq=False)
class Ranking:
    """The values of n sites by one estimator, mean over seeds; rank 1 is the highest."""

    sites: list[str]
    value: FloatArray  # (n,)
    low: FloatArray  # (n,) ends of the percentile intervals; NaN: nothing was resampled, such as of counts
    high: FloatArray
    lowest_rank: NDArray[np.int_]  # (n,) ends of the intervals of ranks, 1 to n
    highest_rank: NDArray[np.int_]
    order_signs: NDArray[np.int_]  # (n, n) 1: row significantly above column; -1: below; 0: no significant difference
    pair_p: FloatArray  # (n, n) p of two sites' difference, not corrected; NaN: not tested
    seeds: int
    folds: int = 0  # that values and intervals are over; 0: not of several
    insufficient_data: str = ""  # why no two sites may be called significantly different

    @property
    def share(self) -> FloatArray:
        """(n,) shares of the sum; NaN if a value is negative: then there are no shares."""
        total = self.value.sum()
        return np.asarray(
            self.value / total if total > 0 and (self.value >= 0).all() else np.full_like(self.value, np.nan)
        )

    @property
    def order(self) -> list[str]:
        """The sites, the highest value first."""
        return [self.sites[place] for place in np.argsort(-self.value, kind="stable")]

    @property
    def measured(self) -> bool:
        """Whether the values have intervals."""
        return bool(np.isfinite(self.low).any())

    @property
    def has_significant_pairs(self) -> bool:
        """Whether any two sites differ significantly."""
        return bool(self.order_signs.any())

    def times(self, factor: float) -> "Ranking":
        """Return the ranking in another unit: all values times ``factor``."""
        return replace(self, value=factor * self.value, low=factor * self.low, high=factor * self.high)

    @property
    def table(self) -> pd.DataFrame:
        """The columns ``value, low, high, share, ranks, tied`` by site, the highest value first."""
        rows = {}
        for site in self.order:
            place = self.sites.index(site)
            first, last = int(self.highest_rank[place]), int(self.lowest_rank[place])
            signs = self.order_signs[place]
            tied = [other for other in self.order if other != site and not signs[self.sites.index(other)]]
            rows[site] = {
                "value": self.value[place],
                "low": self.low[place],
                "high": self.high[place],
                "share": self.share[place],
                "ranks": str(first) if first == last else f"{first} to {last}",
                "tied": ", ".join(tied) or "none",
            }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("site")


def ranking(
    sites: Sequence[str], values: FloatArray, seed: int = 0, sample: SampleSize | None = None, folds: int = 0
) -> Ranking:
    """Rank sites by (s, n, D) values.

    NaN draws (single patients, a site that never answered) give no significant difference: every rank is possible.
    The same holds for one seed without draws.

    Args:
        sites: n names.
        values: D is 1 if only seeds, or the ``folds`` in their place, are drawn.
        seed: that the draws of seeds start from.
        sample: the patients and seeds that the values rest on; if it is insufficient, nothing is significant.
        folds: that are drawn; 0: not of several.
    """
    insufficient_data = "" if sample is None else sample.insufficient_data
    drawn = draw_over_seeds(values, seed, folds=folds)  # (R, n)
    low, high = np.quantile(drawn, ENDS, axis=0)
    widest = np.nanmax(np.ptp(values, axis=(0, 2)), initial=0.0)  # of the sites with known values
    if widest <= ROUNDING * np.nanmax(np.abs(values), initial=0.0):
        low = high = np.full(len(sites), np.nan)
        if len(values) == 1:
            insufficient_data = insufficient_data or NO_VARIANCE
    value = values[..., 0].mean(axis=0)
    signs = np.zeros((len(sites), len(sites)), dtype=int)
    pair_p = np.full(signs.shape, np.nan)
    if not insufficient_data:
        first, second = np.triu_indices(len(sites), k=1)
        below, above = np.quantile(drawn[:, first] - drawn[:, second], ENDS, axis=0)
        difference = value[first] - value[second]
        difference = np.where(np.abs(difference) <= ROUNDING * np.nanmax(np.abs(value), initial=0.0), 0.0, difference)
        p = p_values(difference, below, above, folds or len(values))
        pair_p[first, second] = pair_p[second, first] = p
        signs[first, second] = np.where(holm(p) <= SIGNIFICANCE_LEVEL, np.sign(difference), 0)
        signs -= signs.T
    return Ranking(
        sites=list(sites),
        value=value,
        low=low,
        high=high,
        lowest_rank=len(sites) - (signs > 0).sum(axis=1),
        highest_rank=1 + (signs < 0).sum(axis=1),
        order_signs=signs,
        pair_p=pair_p,
        seeds=len(values),
        folds=folds,
        insufficient_data=insufficient_data,
    )


def count_rank_flips(rankings: Mapping[str, Ranking]) -> pd.DataFrame:
    """Count the pairs of sites that two estimators rank differently: ``first, second, flips, contradictions, pairs``.

    ``contradictions`` are the flips of pairs that differ significantly by both estimators.
    """
    rows = []
    for (first, ours), (second, theirs) in combinations(rankings.items(), 2):
        pairs = list(combinations(range(len(ours.sites)), 2))
        flips = sum(np.sign(ours.value[a] - ours.value[b]) * np.sign(theirs.value[a] - theirs.value[b]) < 0
                    for a, b in pairs)  # fmt: skip
        contradictions = sum(ours.order_signs[a, b] * theirs.order_signs[a, b] < 0 for a, b in pairs)
        rows.append((first, second, flips, contradictions, len(pairs)))
    return pd.DataFrame(rows, columns=["first", "second", "flips", "contradictions", "pairs"])
