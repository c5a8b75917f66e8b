"""What share of the whole each site contributed, and which estimates are but shares of training images."""

import pandas as pd

from evaluation.report.judgements import Measured
from evaluation.results.views import Results

SAME = 1e-6  # shares that differ by less, relative to the largest, are the same


def contribution_shares(results: Results) -> dict[str, dict[str, Measured]]:
    """By method and site: the share of the sum of all sites' contributions, fractions, mean over seeds.

    Contributions are means over rounds. Methods that make no estimate, the same for all, or one whose sum is 0 or less
    in any seed, are left out: shares of such mean nothing. Intervals are over seeds; of one seed there is none.
    """
    table = results.rounds.share_intervals
    found: dict[str, dict[str, Measured]] = {}
    methods, sites = (map(str, table.index.get_level_values(level)) for level in ("method", "of"))
    for method, site, (_, row) in zip(methods, sites, table.iterrows(), strict=True):
        ends = (float(row["low"]), float(row["high"])) if row["seeds"] > 1 else ()
        found.setdefault(method, {})[site] = Measured(float(row["mean"]), *ends)
    return found


def seeds_of_shares(results: Results) -> dict[str, int]:
    """By method, how many seeds its `contribution_shares` rest on."""
    seeds = results.rounds.share_intervals["seeds"].groupby(level="method").max()
    return {str(method): int(number) for method, number in seeds.items()}


def of_training_images(results: Results, quantity: str = "contribution") -> list[str]:
    """The methods of whom a quantity is a multiple of the sites' training images, in every round of `image_shares`."""
    same = image_shares(results, quantity)
    return [str(method) for method, rounds in same.groupby(level="method", observed=True) if rounds.all()]


def image_shares(results: Results, quantity: str) -> "pd.Series[bool]":
    """``(method, seed, round)``: whether all that are above 0 are the same multiple of the sites' training images.

    Without rounds in which a single one is, as of one update that Krum takes: that is a multiple of anything.
    """
    images, table = results.rounds.of("num_samples"), results.rounds.of(quantity)
    ratio = table.where(table > 0) / images.reindex(table.index)
    ratio = ratio[ratio.notna().sum(axis=1) != 1]
    return pd.Series(ratio.max(axis=1) - ratio.min(axis=1) <= SAME * ratio.max(axis=1))
