"""One hospital among the others: its own numbers, and of the others what tells nobody's.

Of fewer than `MANY_OTHERS` others that is one median, rounded so coarsely that it stands for no single number, and the
third in which the site's own number lies; of fewer than `MIN_OTHERS` nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedmerit_evaluation.figures.tables import MISSING
from fedmerit_evaluation.report.contributions import image_shares
from fedmerit_evaluation.report.shared_parts import ROUNDS
from fedmerit_evaluation.results.run_folders import Run
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.intervals import of_sites

MIN_OTHERS = 3  # sites; of fewer a median is a number of one, or of both
MANY_OTHERS = 8  # from here on quartiles are shown beside the median
GRAIN = 0.05  # what numbers of others are rounded to, where 0 to 1: 5 points of Dice, 5 percent of a whole
SHARES = ("weight", "contribution", "reputation")  # with one other site, its number is what is left of the whole


@dataclass(frozen=True)
class Own:
    """One site among the others of some runs."""

    name: str
    runs: Sequence[Run]
    results: Results  # of all sites, without shares of training images

    @property
    def others(self) -> int:
        """How many other sites there are."""
        return len(self.runs[0].sites) - 1

    def of(self, statistic: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """A statistic of Dice, fractions, by method: ``mean, low, high`` of the site, and all sites' means."""
        table = of_sites(self.results.dice.intervals, statistic)
        mine = table[table.index.get_level_values("of") == self.name].droplevel("of").dropna(subset="mean")
        order = dict.fromkeys(run.label for run in self.runs)
        mine = mine.reindex([method for method in order if method in mine.index])
        return mine[["mean", "low", "high"]], pd.DataFrame(table["mean"].unstack("of")).reindex(mine.index)


def rounded_others(table: pd.DataFrame, own: str) -> pd.DataFrame:
    """Rows x ``median``, and the quartiles of `MANY_OTHERS` or more, of the others' numbers from 0 to 1, by `GRAIN`.

    Without rows in which fewer than `MIN_OTHERS` are known.

    Args:
        table: rows x all sites.
        own: the site whose others these are.
    """
    others = table.drop(columns=own, errors="ignore")
    known = others.notna().sum(axis=1)
    shown = {
        "median": (0.5, MIN_OTHERS),
        "lower quartile": (0.25, MANY_OTHERS),
        "upper quartile": (0.75, MANY_OTHERS),
    }
    columns = {}
    for name, (share, fewest) in shown.items():
        numbers = pd.Series(others.astype(float).quantile(share, axis=1))
        columns[name] = (GRAIN * (numbers / GRAIN).round()).where(known >= fewest)
    return pd.DataFrame(columns, index=table.index).dropna(axis=0, how="all").dropna(axis=1, how="all")


def rank_bands(table: pd.DataFrame, own: str, *, lowest_first: bool = False) -> pd.Series:
    """By row, the third of all sites in which the own number ranks: ``upper third``; no words of too few others.

    Args:
        table: rows x all sites.
        own: the site.
        lowest_first: whether a lower number ranks higher.
    """
    ranks = table.rank(axis=1, ascending=lowest_first, method="average")
    count = table.notna().sum(axis=1)
    place = (ranks[own] - 0.5) / count
    words = np.select([place < 1 / 3, place < 2 / 3], ["upper third", "middle third"], "lower third")
    told = pd.Series(words, index=table.index, dtype=object)
    return told.where((count > MIN_OTHERS) & place.notna(), MISSING)


def redact_other_sites(results: Results, others: int) -> tuple[Results, list[str]]:
    """The results without what would tell other sites' numbers, and why each is left out.

    Beside a site's own number of images, weights and contributions that are shares of training images would tell how
    many there are at others. They are known by their proportions: all that are above 0 in a round are the same multiple
    of the sites' images. With one other site, what is not its own of a whole is the other's.

    Args:
        results: of all sites.
        others: how many other sites there are.
    """
    rows, said = results.rows, []
    dropped = pd.Series(False, rows.index)
    rounds = pd.MultiIndex.from_frame(rows[["method", "seed", "round"]].astype({"method": str}))
    of_rounds = rows["split"] == ""
    for quantity in ROUNDS:
        same = image_shares(results, quantity)
        found = [(str(method), seed, number) for method, seed, number in same.index[same]]
        dropped |= rounds.isin(found) & (rows["quantity"] == quantity) & of_rounds
    if dropped.any():
        said.append("those that are shares of training images would tell the numbers of images of other sites")
    if others == 1:
        dropped |= rows["quantity"].isin(SHARES) & of_rounds
        said.append("of two sites, what one does not have of the whole is the other's")
    return (Results(rows[~dropped]) if dropped.any() else results), said
