"""95 % confidence intervals of the statistics in a report, by `fedmerit_evaluation.statistics.bootstrap`.

Dice, gains, ranks and differences of methods: over cases and seeds. Contributions of sites: over seeds.
"""

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from fedmerit_evaluation.statistics.bootstrap import CASES, Clusters, FloatArray, SiteDice, bootstrap, nan_mean
from fedmerit_evaluation.statistics.inference import Estimate, holm, p_values

COLUMNS = ["mean", "std", "low", "high", "seeds", "p"]


class Key(NamedTuple):
    """A statistic of a method, at a site or compared with another method."""

    statistic: str  # dice, gain of a site; mean, worst, mean_gain, rank of a method; difference of two
    method: str
    of: str  # the site, or the other method; "": over all sites


def dice_intervals(cases: pd.Series, order: list[str], standalone: str, clusters: Clusters = CASES) -> pd.DataFrame:
    """Statistics of test Dice, fractions, by `Key`: ``mean, std`` over seeds, ``low, high`` of the CI, ``seeds, p``.

    ``p`` is that of being 0: of gains corrected over the sites (Holm), of differences by the number of pairs of
    methods, since the data choose the best and its neighbours (Bonferroni).

    ``difference`` is the mean Dice of a method minus that of the next in rank, and of the best minus every other's.
    ``rank`` is that of the mean over seeds, 1 the highest. Both are over the sites that all compared methods have in a
    seed: else a site that did not answer a final test would be compared with none.

    Args:
        cases: Dice of every case, ``(method, seed, site, case)``; there is at least one.
        order: the methods by rank of their means.
        standalone: the method of local training, which gains are over; it need not be there.
        clusters: of the cases.
    """
    found = bootstrap(cases, lambda dice: dict(_statistics(dice, order, standalone)), bounds=_bounds, clusters=clusters)
    table = _table(found)
    statistic = table.index.get_level_values("statistic")
    gains, differences = table["p"][statistic == "gain"], table["p"][statistic == "difference"]
    table.loc[gains.index, "p"] = gains.groupby(level="method").transform(holm)
    table.loc[differences.index, "p"] = (differences * len(order) * (len(order) - 1) / 2).clip(upper=1)
    table.loc[~statistic.isin(["gain", "difference", "mean_gain"]), "p"] = np.nan
    return table


def drop_small_sample_intervals(table: pd.DataFrame, few: Collection[str]) -> pd.DataFrame:
    """The statistics of `of_dice` without CIs that rest on too few cases of a site.

    Args:
        table: as `of_dice`.
        few: the sites with too few.
    """
    statistic, of = (table.index.get_level_values(name) for name in ("statistic", "of"))
    over_sites = ~statistic.isin(["dice", "gain"])
    gone = of.isin(few) | (over_sites & bool(few))
    return table.assign(**{end: table[end].mask(gone) for end in ("low", "high", "p")})


def contribution_intervals(known: pd.Series, bounds: tuple[float, float] = (-np.inf, np.inf)) -> pd.DataFrame:
    """Contributions by `Key`, columns as `dice_intervals`. CIs are over seeds; those of one seed have no width.

    ``p`` is that of being the mean over all sites, such as an equal share, corrected over the sites (Holm).

    Args:
        known: contributions, ``(method, seed, site)``.
        bounds: the range of a contribution, in its unit.
    """
    if known.empty:
        return NONE
    table = known.rename("value").reset_index().astype({"method": str}).assign(case="")
    rows = table.set_index(["method", "seed", "site", "case"])["value"]
    has = {(str(method), str(site)) for method, site in zip(table["method"], table["site"], strict=True)}

    def statistics(sampled: SiteDice) -> dict[Key, FloatArray]:
        found: dict[Key, FloatArray] = {}
        for method, site in sorted(has):
            own = sampled.of(method)
            found[Key("contribution", method, site)] = own[..., sampled.sites.index(site)]
            found[Key("above mean", method, site)] = own[..., sampled.sites.index(site)] - nan_mean(own, axis=-1)
        return found

    free = (-np.inf, np.inf)
    both = _table(bootstrap(rows, statistics, bounds=lambda key: bounds if key.statistic == "contribution" else free))
    above = select_sites(both, "above mean")["p"].groupby(level="method").transform(holm)
    own = both[both.index.get_level_values("statistic") == "contribution"]
    return own.assign(p=above.reindex(select_sites(both, "contribution").index).to_numpy())


def select_sites(intervals: pd.DataFrame, statistic: str) -> pd.DataFrame:
    """The rows of one statistic, ``(method, of)`` x numbers; empty if it is not known."""
    return pd.DataFrame(intervals[intervals.index.get_level_values("statistic") == statistic].droplevel("statistic"))


def select_methods(intervals: pd.DataFrame, statistic: str) -> pd.DataFrame:
    """The rows of one statistic of methods, ``method`` x numbers; empty if it is not known."""
    return select_sites(intervals, statistic).droplevel("of")


def sort_by_mean(table: pd.DataFrame) -> list[str]:
    """The names in the index, the highest mean first, without unknown means."""
    return [str(name) for name in table["mean"].dropna().sort_values(ascending=False, kind="stable").index]


def estimates(table: pd.DataFrame) -> dict[str, Estimate]:
    """By the one name of the index, the numbers of a row."""
    return {
        str(name): Estimate(float(row["mean"]), float(row["low"]), float(row["high"]), float(row["p"]))
        for name, row in table.iterrows()
    }


def group_ties(order: list[str], tied: list[bool]) -> Iterator[tuple[int, list[str]]]:
    """Adjacent ranks without significant difference: (rank of the first, 1 the highest; their names).

    Args:
        order: names by rank.
        tied: for each but the last, whether it is not significantly different from the next.
    """
    start = 0
    for place in range(1, len(order) + 1):
        if place == len(order) or not tied[place - 1]:
            if place - start > 1:
                yield start + 1, order[start:place]
            start = place


def _statistics(dice: SiteDice, order: list[str], standalone: str) -> Iterator[tuple[Key, FloatArray]]:
    """Every statistic (..., s) of (..., s, methods, n) Dice."""
    means = {method: _over_sites(dice.of(method), "mean") for method in order}
    for method in order:
        own = dice.of(method)
        yield Key("mean", method, ""), means[method]
        yield Key("worst", method, ""), _over_sites(own, "worst")
        for place, site in enumerate(dice.sites):
            yield Key("dice", method, site), own[..., place]
        if standalone in dice.methods and method != standalone:
            gain = own - dice.of(standalone)
            yield Key("mean_gain", method, ""), _over_sites(gain, "mean")
            for place, site in enumerate(dice.sites):
                yield Key("gain", method, site), gain[..., place]
    same = _over_same_sites(np.stack([dice.of(method) for method in order], axis=-2))
    overall = np.stack([dice.over_seeds(same[..., place]) for place in range(len(order))], axis=-1)
    known = np.isfinite(overall)
    ranks = rankdata(np.where(known, -overall, np.inf), axis=-1, method="min")
    for place, method in enumerate(order):
        rank = np.where(known[..., place], ranks[..., place], np.nan)
        yield Key("rank", method, ""), np.broadcast_to(rank[..., None], means[method].shape)
    for one, other in dict.fromkeys([*pairwise(order), *((order[0], method) for method in order[1:])]):
        yield Key("difference", one, other), _over_sites(dice.of(one) - dice.of(other), "mean")


def _bounds(key: Key) -> tuple[float, float]:
    """The range of a statistic of Dice; a rank has no upper bound."""
    return {"rank": (1, np.inf), "dice": (0, 1), "mean": (0, 1), "worst": (0, 1)}.get(key.statistic, (-1, 1))


def _over_sites(dice: FloatArray, what: str) -> FloatArray:
    """Mean or lowest of the sites that have a Dice, as `fedmerit_evaluation.results.dice.over_sites`."""
    if what == "mean":
        return nan_mean(dice, axis=-1)
    lowest = np.where(np.isfinite(dice), dice, np.inf).min(axis=-1)
    return np.where(np.isfinite(lowest), lowest, np.nan)


def _over_same_sites(dice: FloatArray) -> FloatArray:
    """(..., methods) means over sites of (..., methods, n), of the sites that all methods there have."""
    known = np.isfinite(dice)
    same = (known | ~known.any(axis=-1, keepdims=True)).all(axis=-2, keepdims=True)
    return nan_mean(np.where(same, dice, np.nan), axis=-1)


def _table(found: dict[Key, dict[str, float]]) -> pd.DataFrame:
    index = (
        pd.MultiIndex.from_tuples(list(found), names=Key._fields)
        if found
        else pd.MultiIndex.from_arrays([[], [], []], names=Key._fields)
    )
    columns = [*COLUMNS, "over"]
    table = pd.DataFrame(list(found.values()), index=index, columns=columns).sort_index(level=0, sort_remaining=False)
    return table.assign(p=p_values(table["mean"], table["low"], table["high"], table["over"]))[COLUMNS]


NONE = _table({})  # without statistics
