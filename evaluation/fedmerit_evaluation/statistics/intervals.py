"""95 % confidence intervals of the statistics in a report: of Dice over cases and seeds, of contributions over seeds.

Means and their differences have those of `CrossedEffects`; the lowest Dice and ranks, which are not linear in Dice,
those of `bootstrap`.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from fedmerit_evaluation.statistics.inference import Estimate, fold_overlap, holm
from fedmerit_evaluation.statistics.resampling import (
    CASES,
    Clusters,
    CrossedEffects,
    FloatArray,
    SiteDice,
    bootstrap,
    nan_mean,
)

ESTIMATE = ["mean", "low", "high", "p", "p_equivalent"]
COLUMNS = [*ESTIMATE, "std", "seeds"]


class Key(NamedTuple):
    """A statistic of a method, at a site or compared with another method."""

    statistic: str  # dice, gain of a site; mean, mean_gain, rank of a method; difference of two
    method: str
    of: str  # the site, or the other method; "": over all sites


def dice_intervals(cases: pd.Series, order: list[str], standalone: str, clusters: Clusters = CASES) -> pd.DataFrame:
    """Statistics of test Dice, fractions, by `Key`: ``mean, std`` over seeds, ``low, high`` of the CI, and `COLUMNS`.

    ``p`` is that of being 0, ``p_equivalent`` of being at or beyond ±`MARGIN`: of gains corrected over the sites
    (Holm), of differences by the number of pairs of methods, since the data choose the best (Bonferroni).

    ``difference`` is the mean Dice of the best method minus every other's.
    ``rank`` is that of the mean over seeds, 1 the highest. Both are over the sites that all compared methods have in a
    seed: else a site that did not answer a final test would be compared with none.

    Args:
        cases: Dice of every case, ``(method, seed, site, case)``; there is at least one.
        order: the methods by rank of their means.
        standalone: the method of local training, which gains are over; it need not be there.
    """
    found = dict(_linear(CrossedEffects.of(cases, clusters), order, standalone))
    found |= bootstrap(
        cases,
        lambda dice: dict(_nonlinear(dice, order)),
        bounds=lambda key: (1, np.inf) if key.statistic == "rank" else (0, 1),
        clusters=clusters,
    )
    table = _table(found)
    statistic = table.index.get_level_values("statistic")
    for p in ("p", "p_equivalent"):
        gains, differences = table[p][statistic == "gain"], table[p][statistic == "difference"]
        table.loc[gains.index, p] = gains.groupby(level="method").transform(holm)
        table.loc[differences.index, p] = (differences * len(order) * (len(order) - 1) / 2).clip(upper=1)
        table.loc[~statistic.isin(["gain", "difference", "mean_gain"]), p] = np.nan
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
    return table.assign(**{end: table[end].mask(gone) for end in ESTIMATE[1:]})


def contribution_intervals(
    known: pd.Series, bounds: tuple[float, float] = (-np.inf, np.inf), folds: int = 0
) -> pd.DataFrame:
    """Contributions by `Key`, columns as `dice_intervals`. CIs are over seeds; those of one seed have no width.

    ``p`` is that of being the mean over all sites, such as an equal share, corrected over the sites (Holm).

    Args:
        known: contributions, ``(method, seed, site)``.
        bounds: the range of a contribution, in its unit.
        folds: if the seeds are folds, how many.
    """
    if known.empty:
        return NONE
    above = known - known.groupby(level=["method", "seed"]).transform("mean")
    table = _table(dict(_of_sites("contribution", known, folds, bounds)) | dict(_of_sites("above mean", above, folds)))
    own = table[table.index.get_level_values("statistic") == "contribution"]
    p = select_sites(table, "above mean")["p"].groupby(level="method").transform(holm)
    return own.assign(p=p.reindex(select_sites(table, "contribution").index).to_numpy())


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
    return {str(name): Estimate(*map(float, row[ESTIMATE])) for name, row in table.iterrows()}


def _of_sites(
    statistic: str, known: pd.Series, folds: int, bounds: tuple[float, float] = (-np.inf, np.inf)
) -> Iterator[tuple[Key, dict[str, float]]]:
    """Of ``(method, seed, site)`` numbers, those of every site over seeds."""
    effects = CrossedEffects.of(known.to_frame("dice").assign(case="").set_index("case", append=True)["dice"])
    effects = replace(effects, overlap=fold_overlap(folds))
    names = [known.index.get_level_values(name).astype(str) for name in ("method", "site")]
    for method, site in dict.fromkeys(zip(*names, strict=True)):
        yield Key(statistic, method, site), effects.interval(method, site=site, bounds=bounds)


def _linear(effects: CrossedEffects, order: list[str], standalone: str) -> Iterator[tuple[Key, dict[str, float]]]:
    """Mean Dice, gains and differences, with their intervals."""
    for method in order:
        compared = standalone in effects.methods and method != standalone
        yield Key("mean", method, ""), effects.interval(method, bounds=(0, 1))
        if compared:
            yield Key("mean_gain", method, ""), effects.interval(method, standalone, bounds=(-1, 1))
        for site in effects.sites:
            yield Key("dice", method, site), effects.interval(method, site=site, bounds=(0, 1))
            if compared:
                yield Key("gain", method, site), effects.interval(method, standalone, site, bounds=(-1, 1))
    for other in order[1:]:
        yield Key("difference", order[0], other), effects.interval(order[0], other, bounds=(-1, 1))


def _nonlinear(dice: SiteDice, order: list[str]) -> Iterator[tuple[Key, FloatArray]]:
    """The ranks (..., s) of (..., s, methods, n) Dice."""
    same = _over_same_sites(np.stack([dice.of(method) for method in order], axis=-2))
    overall = np.stack([dice.over_seeds(same[..., place]) for place in range(len(order))], axis=-1)
    known = np.isfinite(overall)
    ranks = rankdata(np.where(known, -overall, np.inf), axis=-1, method="min")
    for place, method in enumerate(order):
        rank = np.where(known[..., place], ranks[..., place], np.nan)
        yield Key("rank", method, ""), np.broadcast_to(rank[..., None], same.shape[:-1])


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
    return pd.DataFrame(list(found.values()), index=index, columns=COLUMNS).sort_index(level=0, sort_remaining=False)


NONE = _table({})  # without statistics
