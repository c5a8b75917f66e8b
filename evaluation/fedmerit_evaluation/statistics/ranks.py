"""Values of sites with what is not known of them: intervals, pairs that cannot be told apart, ranks as intervals.

Values come for s seeds, n sites and D draws of everything else that is random, such as patients; the first draw is what
was observed. A resample takes one draw for all seeds, and `SeedDraws` of what others would have given: with a single
seed, nothing is known of that, and the intervals are too short.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from fedmerit_evaluation.statistics.bootstrap import DRAWS, LEVEL, FloatArray, SeedDraws

ROUNDING = 1e-12  # of the largest value: what means of equal numbers, summed in another order, may differ by


@dataclass(frozen=True, eq=False)
class Ranking:
    """What one estimator says of n sites, the mean over seeds; ranks are 1 for the highest."""

    sites: list[str]
    value: FloatArray  # (n,)
    low: FloatArray  # (n,) ends of the percentile intervals; NaN where nothing was resampled, as of counts
    high: FloatArray
    lowest_rank: NDArray[np.int_]  # (n,) ends of the intervals of ranks, 1 to n
    highest_rank: NDArray[np.int_]
    order_signs: NDArray[np.int_]  # (n, n) 1 where row is worth more than column, -1 less, 0: they cannot be told apart
    seeds: int

    @property
    def share(self) -> FloatArray:
        """(n,) of the sum; NaN where a value is negative, since shares then mean nothing."""
        total = self.value.sum()
        return np.asarray(
            self.value / total if total > 0 and (self.value >= 0).all() else np.full_like(self.value, np.nan)
        )

    @property
    def order(self) -> list[str]:
        """The sites, the highest value first."""
        return [self.sites[place] for place in np.argsort(-self.value, kind="stable")]

    @property
    def alike(self) -> list[tuple[str, str]]:
        """The pairs that cannot be told apart, the higher first, in the order of the sites."""
        places = [self.sites.index(name) for name in self.order]
        return [(self.sites[a], self.sites[b]) for a, b in combinations(places, 2) if not self.order_signs[a, b]]

    @property
    def measured(self) -> bool:
        """Whether anything is known of how far the values could be off."""
        return bool(np.isfinite(self.low).any())

    @property
    def has_significant_pairs(self) -> bool:
        """Whether any two sites can be told apart."""
        return bool(self.order_signs.any())

    def times(self, factor: float) -> "Ranking":
        """The same in another unit, of which one is ``factor`` of this one's."""
        return replace(self, value=factor * self.value, low=factor * self.low, high=factor * self.high)

    @property
    def table(self) -> pd.DataFrame:
        """By site, the highest first: ``value, low, high, share, ranks, as good as``."""
        rows = {}
        for site in self.order:
            place = self.sites.index(site)
            first, last = int(self.highest_rank[place]), int(self.lowest_rank[place])
            like = [
                other for other in self.order if other != site and not self.order_signs[place, self.sites.index(other)]
            ]
            rows[site] = {
                "value": self.value[place],
                "low": self.low[place],
                "high": self.high[place],
                "share": self.share[place],
                "ranks": str(first) if first == last else f"{first} to {last}",
                "as good as": ", ".join(like) or "none",
            }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("site")


def ranking(sites: Sequence[str], values: FloatArray, level: float = LEVEL, seed: int = 0) -> Ranking:
    """The ranking by (s, n, D) values; D is 1 where nothing else than seeds is resampled.

    Draws that are NaN, as of single patients or of a site that never answered, tell no sites apart: each could have
    any rank.
    """
    resampled = resample(values, seed)  # (R, n)
    ends = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(resampled, ends, axis=0)
    widest = np.nanmax(np.ptp(values, axis=(0, 2)), initial=0.0)  # of the sites that anything is known of
    if widest <= ROUNDING * np.nanmax(np.abs(values), initial=0.0):
        low = high = np.full(len(sites), np.nan)
    differences = resampled[:, :, None] - resampled[:, None, :]
    below, above = np.quantile(differences, ends, axis=0)
    first = np.quantile(rankdata(-resampled, axis=-1, method="min"), ends[0], axis=0)  # of a tie each could be first,
    last = np.quantile(rankdata(-resampled, axis=-1, method="max"), ends[1], axis=0)  # or last
    return Ranking(
        sites=list(sites),
        value=values[..., 0].mean(axis=0),
        low=low,
        high=high,
        lowest_rank=np.ceil(np.nan_to_num(last, nan=len(sites)) - 1e-9).astype(int),
        highest_rank=np.floor(np.nan_to_num(first, nan=1) + 1e-9).astype(int),
        order_signs=np.where(below > 0, 1, np.where(above < 0, -1, 0)),
        seeds=len(values),
    )


def resample(values: FloatArray, seed: int = 0, least: int = DRAWS) -> FloatArray:
    """(R, n) means over seeds of (s, n, D) values, by other seeds, and draws as they come; R is ``least`` or D - 1.

    With one seed and D = 1 there is nothing to resample: each is what was observed.
    """
    s, _, count = values.shape
    number = max(least, count - 1)
    draws = np.zeros(number, dtype=int) if count == 1 else 1 + np.arange(number) % (count - 1)
    drawn = SeedDraws.of(s, number, np.random.default_rng(seed))
    means = [np.where(np.isfinite(one).all(axis=1), drawn.mean(one), np.nan) for one in values.T[draws].swapaxes(0, 1)]
    return np.stack(means, axis=1)


def count_rank_flips(rankings: Mapping[str, Ranking]) -> pd.DataFrame:
    """Pairs of sites that two estimators put in another order: ``first, second`` x ``flips, contradictions, pairs``.

    ``contradictions`` are those of them that both estimators tell apart, each by its own intervals.
    """
    rows = []
    for (first, one), (second, other) in combinations(rankings.items(), 2):
        pairs = list(combinations(range(len(one.sites)), 2))
        differ = [np.sign(one.value[a] - one.value[b]) * np.sign(other.value[a] - other.value[b]) < 0 for a, b in pairs]
        against = [one.order_signs[a, b] * other.order_signs[a, b] < 0 for a, b in pairs]
        rows.append((first, second, sum(differ), sum(against), len(pairs)))
    return pd.DataFrame(rows, columns=["first", "second", "flips", "contradictions", "pairs"])
