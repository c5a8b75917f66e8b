"""95 % confidence intervals of the statistics in a report: of Dice over cases and seeds, of contributions over seeds.

Means and their differences have those of `CrossedEffects`; ranks, which are not linear in Dice, those of `bootstrap`.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import combinations
from math import nan
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from fedmerit_evaluation.statistics.inference import MIN_FOLDS, Estimate, fold_overlap
from fedmerit_evaluation.statistics.resampling import (
    CASES,
    UNBOUNDED,
    Clusters,
    CrossedEffects,
    FloatArray,
    SiteDice,
    bootstrap,
    nan_mean,
)

ESTIMATE = ["mean", "low", "high", "p", "error", "freedom"]
COLUMNS = [*ESTIMATE, "std", "seeds"]


class Key(NamedTuple):
    """A statistic of a method, at a site or compared with another method."""

    statistic: str  # dice, gain of a site; mean, mean_gain, rank of a method; difference of two methods
    method: str
    of: str  # the site, or the other method; "": over all sites


def dice_intervals(cases: pd.Series, order: list[str], standalone: str, clusters: Clusters = CASES) -> pd.DataFrame:
    """Return statistics of test Dice [fraction] by `Key`, with columns `COLUMNS`.

    ``mean`` and ``std`` are over seeds, ``low`` and ``high`` the ends of the interval of the mean. ``p`` is that of the
    statistic being 0, of a test with the standard ``error`` and the degrees of ``freedom``; it is not corrected for
    other comparisons. ``difference`` is the mean Dice of a method minus that of every method below it; ``rank`` that of
    the mean over seeds, 1 the highest. Both are over the sites that all compared methods have in a seed: else a site
    that did not answer a final test would be compared with none.

    Args:
        cases: Dice of every case, ``(method, seed, site, case)``; there is at least one.
        order: the methods by rank of their means.
        standalone: the method of local training, which gains are over; it may be missing.
        clusters: the patients, or the folds, of the cases.
    """
    effects = CrossedEffects.from_cases(cases, clusters)
    statistics = dict(_linear_statistics(effects, order, standalone))
    statistics |= bootstrap(
        effects, lambda dice: _ranks(dice, order), bounds=lambda key: (1, np.inf) if key.statistic == "rank" else (0, 1)
    )
    table = _table(statistics)
    compared = table.index.get_level_values("statistic").isin(["gain", "difference", "mean_gain"])
    table.loc[~compared, ["p", "error", "freedom"]] = np.nan
    return table


def drop_small_sample_intervals(table: pd.DataFrame, few: Collection[str]) -> pd.DataFrame:
    """Return the table of `dice_intervals` without the intervals that rest on the cases of the sites in ``few``."""
    statistic, of = (table.index.get_level_values(name) for name in ("statistic", "of"))
    over_sites = ~statistic.isin(["dice", "gain"])
    gone = of.isin(few) | (over_sites & bool(few))
    return table.assign(**{end: table[end].mask(gone) for end in ESTIMATE[1:]})


def contribution_intervals(
    contributions: pd.Series, bounds: tuple[float, float] = UNBOUNDED, folds: int = 0
) -> pd.DataFrame:
    """Return contributions by `Key`, columns as `dice_intervals`, with intervals over seeds; one seed has no width.

    Fewer than `MIN_FOLDS` folds have no interval: of two, the factor `fold_overlap` would be infinite.

    ``p`` is that of being the mean over all sites, such as an equal share; it is not corrected for other comparisons.

    Args:
        contributions: by ``(method, seed, site)``.
        bounds: the range of a contribution, in its unit.
        folds: if the seeds are folds, how many.
    """
    if contributions.empty:
        return NONE
    above = contributions - contributions.groupby(level=["method", "seed"]).transform("mean")
    table = _table(
        dict(_site_statistics("contribution", contributions, folds, bounds))
        | dict(_site_statistics("above mean", above, folds))
    )
    rows = table[table.index.get_level_values("statistic") == "contribution"]
    tests = select_sites(table, "above mean").reindex(select_sites(table, "contribution").index)
    rows = rows.assign(**{name: tests[name].to_numpy() for name in ("p", "error", "freedom")})
    return rows.assign(**dict.fromkeys(ESTIMATE[1:], nan)) if 0 < folds < MIN_FOLDS else rows


def select_sites(intervals: pd.DataFrame, statistic: str) -> pd.DataFrame:
    """Return the rows of one statistic, ``(method, of)`` x numbers; empty if it is missing."""
    return pd.DataFrame(intervals[intervals.index.get_level_values("statistic") == statistic].droplevel("statistic"))


def select_methods(intervals: pd.DataFrame, statistic: str) -> pd.DataFrame:
    """Return the rows of one statistic of methods, ``method`` x numbers; empty if it is missing."""
    return select_sites(intervals, statistic).droplevel("of")


def sort_by_mean(table: pd.DataFrame) -> list[str]:
    """Return the names in the index, the highest mean first, without unknown means."""
    return [str(name) for name in table["mean"].dropna().sort_values(ascending=False, kind="stable").index]


def estimates(table: pd.DataFrame) -> dict[str, Estimate]:
    """Return the estimate in each row, by the one name of the index."""
    return {str(name): Estimate(*map(float, row[ESTIMATE])) for name, row in table.iterrows()}


def _site_statistics(
    statistic: str, numbers: pd.Series, folds: int, bounds: tuple[float, float] = UNBOUNDED
) -> Iterator[tuple[Key, dict[str, float]]]:
    """Yield the statistic of every site over seeds, from ``(method, seed, site)`` numbers."""
    effects = CrossedEffects.from_cases(numbers.to_frame("dice").assign(case="").set_index("case", append=True)["dice"])
    effects = replace(effects, overlap=fold_overlap(folds))
    names = [numbers.index.get_level_values(name).astype(str) for name in ("method", "site")]
    for method, site in dict.fromkeys(zip(*names, strict=True)):
        yield Key(statistic, method, site), effects.interval(method, site=site, bounds=bounds)


def _linear_statistics(
    effects: CrossedEffects, order: list[str], standalone: str
) -> Iterator[tuple[Key, dict[str, float]]]:
    """Yield mean Dice, gains and differences, with their intervals."""
    for method in order:
        compared = standalone in effects.methods and method != standalone
        yield Key("mean", method, ""), effects.interval(method, bounds=(0, 1))
        if compared:
            yield Key("mean_gain", method, ""), effects.interval(method, standalone, bounds=(-1, 1))
        for site in effects.sites:
            yield Key("dice", method, site), effects.interval(method, site=site, bounds=(0, 1))
            if compared:
                yield Key("gain", method, site), effects.interval(method, standalone, site, bounds=(-1, 1))
    for method, other in combinations(order, 2):
        yield Key("difference", method, other), effects.interval(method, other, bounds=(-1, 1))


def _ranks(dice: SiteDice, order: list[str]) -> dict[Key, FloatArray]:
    """Return the ranks (..., s) of the methods' mean Dice, over the sites that all methods of a seed have."""
    by_method = np.stack([dice.of(method) for method in order], axis=-2)  # (..., s, methods, n)
    known = np.isfinite(by_method)
    shared = (known | ~known.any(axis=-1, keepdims=True)).all(axis=-2, keepdims=True)
    means = nan_mean(np.where(shared, by_method, np.nan), axis=-1)
    overall = np.stack([dice.over_seeds(means[..., place]) for place in range(len(order))], axis=-1)
    known = np.isfinite(overall)
    ranks = np.where(known, rankdata(np.where(known, -overall, np.inf), axis=-1, method="min"), np.nan)
    return {
        Key("rank", method, ""): np.broadcast_to(ranks[..., place, None], means.shape[:-1])
        for place, method in enumerate(order)
    }


def _table(statistics: dict[Key, dict[str, float]]) -> pd.DataFrame:
    """Return statistics in the rows of a table."""
    index = (
        pd.MultiIndex.from_tuples(list(statistics), names=Key._fields)
        if statistics
        else pd.MultiIndex.from_arrays([[], [], []], names=Key._fields)
    )
    return pd.DataFrame(list(statistics.values()), index=index, columns=COLUMNS).sort_index(
        level=0, sort_remaining=False
    )


NONE = _table({})  # without statistics
