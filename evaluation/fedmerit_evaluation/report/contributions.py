"""What share of the whole each site contributed, and which estimates are but shares of training images.

How what methods say of contributions agrees with a ground truth: trained coalitions of the same sites.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmerit_evaluation.fairness.measurement import measure
from fedmerit_evaluation.fairness.measures import CORRELATIONS
from fedmerit_evaluation.fairness.pairs import Estimates, Key
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.ground_truth import value_tables
from fedmerit_evaluation.ground_truth.ground_truths import (
    LEAVE_ONE_OUT,
    SHAPLEY,
    GroundTruth,
    Reference,
    coalition_utilities,
    list_preparation_differences,
    open_ground_truths,
)
from fedmerit_evaluation.ground_truth.semivalues import FloatArray
from fedmerit_evaluation.report.phrases import resampling_units
from fedmerit_evaluation.results.run_folders import Run
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.bootstrap import DEFAULT_RESAMPLING, Resampling
from fedmerit_evaluation.statistics.inference import Estimate

SAME = 1e-6  # shares that differ by less, relative to the largest, are the same


def contribution_shares(results: Results) -> dict[str, dict[str, Estimate]]:
    """By method and site: the share of the sum of all sites' contributions, fractions, mean over seeds.

    Contributions are means over rounds. Methods that make no estimate, the same for all, or one whose sum is 0 or less
    in any seed, are left out: shares of such mean nothing. Intervals are over seeds; of one seed there is none.
    """
    table = results.rounds.share_intervals
    found: dict[str, dict[str, Estimate]] = {}
    methods, sites = (map(str, table.index.get_level_values(level)) for level in ("method", "of"))
    for method, site, (_, row) in zip(methods, sites, table.iterrows(), strict=True):
        ends = (float(row["low"]), float(row["high"])) if row["seeds"] > 1 else ()
        found.setdefault(method, {})[site] = Estimate(float(row["mean"]), *ends)
    return found


def count_share_seeds(results: Results) -> dict[str, int]:
    """By method, how many seeds its `contribution_shares` rest on."""
    seeds = results.rounds.share_intervals["seeds"].groupby(level="method").max()
    return {str(method): int(number) for method, number in seeds.items()}


def methods_by_image_count(results: Results, quantity: str = "contribution") -> list[str]:
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


ESTIMATE = "mean contribution"  # of a method, over rounds
MAX_EXACT_PERMUTATIONS = 7  # sites whose permutations are all tried
SAMPLED = 9999  # permutations of more sites
LOW_NOISE_CEILING = 0.7  # below, less than half of the variance of the values is the sites' own
FEW_SITES = 10  # fewer points make any correlation shaky
UNKNOWN: Mapping[str, Any] = {"mean": math.nan, "low": math.nan, "high": math.nan, "note": ""}  # not measured


@dataclass(frozen=True)
class Agreement:
    """One ground truth beside what the methods say."""

    truth: str  # leave-one-out or Shapley
    values: pd.DataFrame  # seeds x sites, points of Dice
    said: Mapping[tuple[str, str], pd.DataFrame]  # by method and estimate: seeds x sites
    ranks: Mapping[str, Estimate]  # by method: Spearman's correlation of its `ESTIMATE` with the values
    p: Mapping[str, float]  # by method: of that correlation, as `permutation_p`
    of_values: Table
    of_methods: Table
    caveats: list[str]
    sampled: str  # of values that are estimates: from what, and their standard errors


def agreements(
    runs: Sequence[Run], results: Results, folder: Path, resampling: Resampling = DEFAULT_RESAMPLING
) -> tuple[list[Agreement], list[str]]:
    """Agreement with every ground truth that a folder holds, and notes on what it lacks or was prepared otherwise.

    Args:
        runs: with labels, as in ``results``.
        results: of all runs.
        folder: what `fedmerit value leave-one-out` or `fedmerit value shapley` wrote.
        resampling: of the intervals.

    Raises:
        BadInput: the folder holds no coalition, they are of other sites, or none of the truths is complete.
    """
    ground = open_ground_truths(folder, runs[0].sites, sorted({run.seed for run in runs}))
    notes = [*ground.notes, *list_preparation_differences(folder, [run.site_digests for run in runs])]
    if not any(run.tested for run in runs):
        return [], ["the runs have no test Dice yet, so nothing is compared with the ground truth"]
    methods = {run.label: str(run.info["method"]) for run in runs}
    found = measure(results, methods, truth=ground, resampling=resampling)
    said = _method_values(found.estimates)
    return [_agreement(truth, ground, found.measured, said) for truth in ground.truths], notes


def permutation_p(x: FloatArray, y: FloatArray, correlation: str) -> float:
    """Two-sided p of a correlation, mean over seeds, by permuting the sites of ``y`` alike in all seeds.

    The share of the permutations whose correlation is as far from 0 or farther, exact up to `MAX_EXACT_PERMUTATIONS`
    sites.

    Args:
        x: (s, n), s seeds of n sites, and ``y`` alike.
        correlation: ``pearson`` or ``spearman``.

    Returns:
        In (0, 1]; NaN where the correlation is undefined in every seed.
    """
    of = CORRELATIONS[correlation].of
    n = x.shape[-1]
    known = np.isfinite(of(x, y))
    if not known.any():
        return math.nan
    x, y = x[known], y[known]
    if n <= MAX_EXACT_PERMUTATIONS:
        orders = np.array(list(permutations(range(n))))  # the first changes nothing
    else:
        random = np.random.default_rng(0)
        orders = np.stack([np.arange(n), *(random.permutation(n) for _ in range(SAMPLED))])
    means = np.abs(of(x[:, None, :], y[:, orders]).mean(axis=0))
    return float((means >= means[0] - 1e-9 * max(means[0], 1.0)).mean())


def _method_values(estimates: Estimates) -> dict[tuple[str, str], pd.DataFrame]:
    """What methods say, by (method, estimate); the share of training images once, as it is the same for all."""
    said: dict[tuple[str, str], pd.DataFrame] = {}
    for label, of_label in estimates.items():
        for name, frame in of_label.items():
            said.setdefault(("any" if name == "sample share" else label, name), frame)
    return said


def _agreement(
    truth: Reference, ground: GroundTruth, measured: pd.DataFrame, said: Mapping[tuple[str, str], pd.DataFrame]
) -> Agreement:
    trained = ground.trained
    coalitions, sites = coalition_utilities(trained), trained.sites
    valued = pd.DataFrame({seed: 100 * truth.values(seed, coalitions[seed]) for seed in truth.parts}, index=sites).T
    of_values = {LEAVE_ONE_OUT: value_tables.leave_one_out_tables, SHAPLEY: value_tables.shapley_tables}[truth.name]
    shown = value_tables.sampled_tables(sites, truth.estimates) if truth.estimates else of_values(trained)
    table, caveats = _compared(truth.name, valued, measured, said, ground.noise_ceilings[truth.name])
    if truth.sampled:
        caveats.append(
            f"{truth.sampled}: sites whose values differ by less than twice that are not distinguishable, and no "
            "interval of an agreement holds these errors."
        )
    totals = valued.sum(axis=1)
    if (totals <= 0).any():
        seeds = ", ".join(str(seed) for seed in totals.index[totals <= 0])
        caveats.append(f"The {truth.name} values sum to 0 or less (seed {seeds}): shares of them mean nothing there.")
    ranks = {
        str(row["method"]): Estimate(row["mean"], row["low"], row["high"])
        for row in measured.to_dict("records")
        if (row["table"], row["estimate"], row["measure"]) == (f"{truth.name.lower()}-ranks", ESTIMATE, "spearman")
    }
    p = {
        str(row["Method"]): float(row["p, Spearman"])
        for row in table.frame.to_dict("records")
        if row["Contribution"] == ESTIMATE
    }
    return Agreement(truth.name, valued, said, ranks, p, shown[0], table, caveats, truth.sampled)


def _compared(
    truth: str,
    valued: pd.DataFrame,
    measured: pd.DataFrame,
    said: Mapping[tuple[str, str], pd.DataFrame],
    noise_ceiling: float,
) -> tuple[Table, list[str]]:
    """A row per method and estimate: correlations with their intervals, beside their ceiling, p and n."""
    known = {tuple(row[name] for name in Key._fields): row for row in measured.to_dict("records")}
    rows, lows, highs, undefined = [], [], [], dict[str, list[str]]()
    sites = list(valued.columns)
    for (method, estimate), frame in said.items():
        label = method if method != "any" else next(one for _, one, name, _ in known if name == estimate)
        seeds = [seed for seed in frame.index if seed in valued.index]
        own = frame.reindex(index=seeds, columns=sites)  # of a site that never answered there is nothing
        x, y = valued.loc[seeds].to_numpy(dtype=np.float64), own.to_numpy(dtype=np.float64)
        row: dict[str, object] = {"Method": method, "Contribution": estimate, "Sites": len(sites), "Seeds": len(seeds)}
        low, high = dict[str, float](), dict[str, float]()  # the other columns have no interval
        for name, group in (("pearson", truth.lower()), ("spearman", f"{truth.lower()}-ranks")):
            heading, scale = name.title(), 0.01 if name == "pearson" else 1.0
            numbers = known.get((group, label, estimate, name), UNKNOWN)
            row[heading], low[heading], high[heading] = (scale * float(numbers[end]) for end in ("mean", "low", "high"))
            row[f"p, {heading}"] = permutation_p(x, y, name) if seeds else math.nan
            if name == "pearson":
                row["Ceiling"] = noise_ceiling
            if numbers["note"] and math.isnan(float(numbers["mean"])):
                told = undefined.setdefault(str(numbers["note"]), [])
                told += [f"{method} ({estimate})"] if f"{method} ({estimate})" not in told else []
        rows.append(row)
        lows.append(low)
        highs.append(high)
    alone = " over test patients, of this one seed," if len(valued) == 1 else ""
    caption = (
        f"Agreement with {truth} values: correlation over sites, mean over seeds, with its 95 % interval over "
        f"{resampling_units(len(valued))}; the ceiling is what a perfect estimate would reach with values as uncertain"
        f"{alone} as these; p by permuting the sites"
    )
    frame = pd.DataFrame(rows)
    low_frame, high_frame = (pd.DataFrame(ends, columns=frame.columns) for ends in (lows, highs))
    table = Table(f"agreement-{truth.lower()}", caption, frame, decimals=2, low=low_frame, high=high_frame)
    told_why = [f"The correlation with {truth} values is undefined for {', '.join(who)}: {why}."
                for why, who in undefined.items()]  # fmt: skip
    return table, told_why + _limits(truth, len(sites), noise_ceiling)


def _limits(truth: str, sites: int, noise_ceiling: float) -> list[str]:
    """What such correlations cannot show."""
    caveats = []
    if noise_ceiling < LOW_NOISE_CEILING:
        caveats.append(
            f"The {truth} values of these sites hardly stand out of their own uncertainty over test patients and "
            f"seeds: a perfect estimate would correlate with them by {noise_ceiling:.2f}, so that no agreement can be "
            f"judged."
        )
    if sites < FEW_SITES:
        caveats.append(
            f"Agreement with {truth} values rests on {sites} sites, as many points in each correlation: one site "
            f"can turn it, and no p can fall below {1 / math.factorial(sites):.2g}."
        )
    return caveats
