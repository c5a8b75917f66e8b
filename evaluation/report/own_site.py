"""One hospital among the others: its own numbers, and of the others what tells nobody's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from evaluation.report.parts import ROUNDS
from evaluation.results.intervals import of_sites
from evaluation.results.run_folders import Run
from evaluation.results.views import Results

FEWEST_OTHERS = 3  # sites; quantiles of fewer would be single sites' numbers
QUANTILES = {"min": 0.0, "lower quartile": 0.25, "median": 0.5, "upper quartile": 0.75, "max": 1.0}
SAME = 1e-6  # shares that differ by less, relative to the largest, are the same


@dataclass(frozen=True)
class Own:
    """One site among the others of some runs."""

    name: str
    runs: Sequence[Run]
    results: Results  # of all sites, without shares of training images

    def of(self, statistic: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """A statistic of Dice, fractions, by method: ``mean, low, high`` of the site, and the others' quantiles."""
        table = of_sites(self.results.dice.intervals, statistic)
        mine = table[table.index.get_level_values("of") == self.name].droplevel("of").dropna(subset="mean")
        mine = mine.reindex(
            [method for method in dict.fromkeys(run.label for run in self.runs) if method in mine.index]
        )
        others = table[table.index.get_level_values("of") != self.name]["mean"]
        return mine[["mean", "low", "high"]], quantiles(pd.DataFrame(others.unstack("of")))


def quantiles(others: pd.DataFrame) -> pd.DataFrame:
    """Rows x `QUANTILES` of the others' numbers; without rows in which fewer than `FEWEST_OTHERS` are known.

    Args:
        others: rows x other sites.
    """
    known = others[others.notna().sum(axis=1) >= FEWEST_OTHERS]
    if known.empty:
        return pd.DataFrame(math.nan, known.index, list(QUANTILES))
    return pd.DataFrame({name: known.quantile(share, axis=1) for name, share in QUANTILES.items()}, index=known.index)


def without_image_shares(results: Results) -> tuple[Results, bool]:
    """The results without weights and contributions that are shares of training images, and whether there were any.

    Beside a site's own number of images they would tell the others'. They are known by their proportions: all that are
    above 0 in a round are the same multiple of the sites' images.
    """
    images = results.rounds.of("num_samples")
    rows = results.rows
    dropped = pd.Series(False, rows.index)
    rounds = pd.MultiIndex.from_frame(rows[["method", "seed", "round"]].astype({"method": str}))
    for quantity in ROUNDS:
        table = results.rounds.of(quantity)
        ratio = table.where(table > 0) / images.reindex(table.index)
        same = ratio.max(axis=1) - ratio.min(axis=1) <= SAME * ratio.max(axis=1)
        found = [(str(method), seed, number) for method, seed, number in same.index[same]]
        dropped |= rounds.isin(found) & (rows["quantity"] == quantity) & (rows["split"] == "")
    return (Results(rows[~dropped]), True) if dropped.any() else (results, False)
