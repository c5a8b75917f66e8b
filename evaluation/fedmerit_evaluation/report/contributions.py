"""Shares of contribution by the methods' estimates, and how these agree with a ground truth (trained coalitions)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmerit.contract.semivalues import LEAVE_ONE_OUT, SHAPLEY, FloatArray
from fedmerit_evaluation.fairness.measurement import Estimates, Key, measure
from fedmerit_evaluation.fairness.measures import CORRELATIONS
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.ground_truth import ground_truths, value_tables
from fedmerit_evaluation.ground_truth.ground_truths import GroundTruth, Reference
from fedmerit_evaluation.report.phrases import resampling_units
from fedmerit_evaluation.results.runs import Run
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.inference import Estimate
from fedmerit_evaluation.statistics.ranks import Ranking
from fedmerit_evaluation.statistics.resampling import DRAWS

SAME = 1e-6  # shares that differ by less, relative to the largest, are the same


def contribution_shares(results: Results) -> dict[str, dict[str, Estimate]]:
    """By method and site: the share of the sum of all sites' contributions, fractions, mean over seeds.

    Contributions are means over rounds. Methods are left out that make no estimate or the same for all, or whose
    estimates sum to 0 or less in any seed. CIs are over seeds (Student's t); one seed has none.
    """
    table = results.rounds.share_intervals
    found: dict[str, dict[str, Estimate]] = {}
    methods, sites = (map(str, table.index.get_level_values(level)) for level in ("method", "of"))
    for method, site, (_, row) in zip(methods, sites, table.iterrows(), strict=True):
        ends = (float(row["low"]), float(row["high"]), float(row["p"])) if row["seeds"] > 1 else ()
        found.setdefault(method, {})[site] = Estimate(float(row["mean"]), *ends)
    return found


def count_share_seeds(results: Results) -> dict[str, int]:
    """By method, the number of seeds of its `contribution_shares`."""
    seeds = results.rounds.share_intervals["seeds"].groupby(level="method").max()
    return {str(method): int(number) for method, number in seeds.items()}


def methods_by_image_count(results: Results, quantity: str = "contribution") -> list[str]:
    """The methods whose quantity is a multiple of the sites' training images, in every round of `image_shares`."""
    same = image_shares(results, quantity)
    return [str(method) for method, rounds in same.groupby(level="method", observed=True) if rounds.all()]


def image_shares(results: Results, quantity: str) -> "pd.Series[bool]":
    """``(method, seed or fold, round)``: whether all positive numbers are the same multiple of the training images.

    Without rounds in which only one is positive (such as the one update that Krum takes).
    """
    rounds = results.rounds if results.folds is None else results.rounds.over_folds  # images differ by fold
    images, table = rounds.of("num_samples"), rounds.of(quantity)
    ratio = table.where(table > 0) / images.reindex(table.index)
    ratio = ratio[ratio.notna().sum(axis=1) != 1]
    return pd.Series(ratio.max(axis=1) - ratio.min(axis=1) <= SAME * ratio.max(axis=1))


ESTIMATE = "mean contribution"  # of a method, over rounds
MAX_EXACT_PERMUTATIONS = 7  # sites; all their permutations are tried
SAMPLED = 9999  # permutations of more sites
LOW_NOISE_CEILING = 0.7  # below, less than half of the values' variance is between sites
FEW_SITES = 10  # fewer points give unstable correlations
UNKNOWN: Mapping[str, Any] = {"mean": math.nan, "low": math.nan, "high": math.nan, "note": ""}  # not measured


@dataclass(frozen=True)
class Agreement:
    """One ground truth compared with the methods' estimates."""

    reference: str  # the ground truth: leave-one-out or Shapley
    values: pd.DataFrame  # seeds x sites, points of Dice
    estimates: Mapping[tuple[str, str], pd.DataFrame]  # by method and estimate: seeds x sites
    ranks: Mapping[str, Estimate]  # by method: Spearman's correlation of its `ESTIMATE` with the values
    p: Mapping[str, float]  # by method: of that correlation, as `permutation_p`
    values_table: Table
    methods_table: Table
    caveats: list[str]
    sampled: str  # for values from sampled permutations: their number, standard errors; else ""
    ranking: Ranking | None  # of the values; None: of sampled ones


def agreements(
    runs: Sequence[Run], results: Results, folder: Path, draws: int = DRAWS
) -> tuple[list[Agreement], list[str]]:
    """Agreement with every ground truth in a folder, and notes on what is missing or was prepared differently.

    Args:
        runs: with labels, as in ``results``.
        results: of all runs.
        folder: written by `fedmerit value leave-one-out` or `fedmerit value shapley`.
        draws: of the intervals.

    Raises:
        BadInput: the folder holds no coalition, they are of other sites, or no ground truth is complete.
    """
    ground = ground_truths.open_ground_truths(folder, runs[0].sites, sorted({run.seed for run in runs}))
    notes = [*ground.notes, *ground_truths.list_preparation_differences(folder, [run.site_digests for run in runs])]
    if not any(run.tested for run in runs):
        return [], ["the runs have no test Dice yet, so there is nothing to compare"]
    methods = {run.label: str(run.info["method"]) for run in runs}
    found = measure(results, methods, ground_truth=ground, draws=draws)
    estimates = _collect_estimates(found.estimates)
    return [_agreement(reference, ground, found.measured, estimates) for reference in ground.references], notes


def permutation_p(x: FloatArray, y: FloatArray, correlation: str) -> float:
    """Two-sided p-value of a correlation, mean over seeds, by permuting the sites of ``y`` in all seeds alike.

    The share of the permutations whose mean correlation is at least as far from 0; exact up to
    `MAX_EXACT_PERMUTATIONS` sites, else of `SAMPLED` random ones and the observed order.

    Args:
        x: (s, n), s seeds of n sites, and ``y`` alike.
        correlation: ``pearson`` or ``spearman``.

    Returns:
        In (0, 1]; NaN if the correlation is undefined in every seed.
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


def _collect_estimates(estimates: Estimates) -> dict[tuple[str, str], pd.DataFrame]:
    """By (method, estimate); the share of training images once, since it is the same for all methods."""
    collected: dict[tuple[str, str], pd.DataFrame] = {}
    for label, of_label in estimates.items():
        for name, frame in of_label.items():
            collected.setdefault(("any" if name == "sample share" else label, name), frame)
    return collected


def _agreement(
    reference: Reference, ground: GroundTruth, measured: pd.DataFrame, estimates: Mapping[tuple[str, str], pd.DataFrame]
) -> Agreement:
    trained = ground.trained
    coalitions, sites = ground_truths.coalition_utilities(trained), trained.sites
    valued = pd.DataFrame(
        {seed: 100 * reference.values(seed, coalitions[seed]) for seed in reference.parts}, index=sites
    ).T
    make_tables = {LEAVE_ONE_OUT: value_tables.leave_one_out_tables, SHAPLEY: value_tables.shapley_tables}[
        reference.name
    ]
    shown = value_tables.sampled_tables(sites, reference.estimates) if reference.estimates else make_tables(trained)
    table, caveats = _compared(reference.name, valued, measured, estimates, ground.noise_ceilings[reference.name])
    if reference.sampled:
        caveats.append(
            f"{reference.sampled}: values that differ by less than twice that are not significantly different. No CI "
            "of an agreement includes these errors."
        )
    totals = valued.sum(axis=1)
    if (totals <= 0).any():
        seeds = ", ".join(str(seed) for seed in totals.index[totals <= 0])
        caveats.append(f"The {reference.name} values sum to 0 or less (seed {seeds}): there are no shares of them.")
    ranks = {
        str(row["method"]): Estimate(row["mean"], row["low"], row["high"])
        for row in measured.to_dict("records")
        if (row["table"], row["estimate"], row["measure"]) == (f"{reference.name.lower()}-ranks", ESTIMATE, "spearman")
    }
    p = {
        str(row["Method"]): float(row["p, Spearman"])
        for row in table.frame.to_dict("records")
        if row["Contribution"] == ESTIMATE
    }
    resampled = ground.resampled.get(reference.name)
    order = None if resampled is None else resampled.ranking
    return Agreement(reference.name, valued, estimates, ranks, p, shown[0], table, caveats, reference.sampled, order)


def _compared(
    reference: str,
    valued: pd.DataFrame,
    measured: pd.DataFrame,
    estimates: Mapping[tuple[str, str], pd.DataFrame],
    noise_ceiling: Estimate,
) -> tuple[Table, list[str]]:
    """A row per method and estimate: correlations with CIs, noise ceiling, p-value, numbers of sites and seeds."""
    known = {tuple(row[name] for name in Key._fields): row for row in measured.to_dict("records")}
    rows, lows, highs, undefined = [], [], [], dict[str, list[str]]()
    sites = list(valued.columns)
    for (method, estimate), frame in estimates.items():
        label = method if method != "any" else next(one for _, one, name, _ in known if name == estimate)
        seeds = [seed for seed in frame.index if seed in valued.index]
        own = frame.reindex(index=seeds, columns=sites)  # NaN for a site that never answered
        x, y = valued.loc[seeds].to_numpy(dtype=np.float64), own.to_numpy(dtype=np.float64)
        row: dict[str, object] = {"Method": method, "Contribution": estimate, "Sites": len(sites), "Seeds": len(seeds)}
        low, high = dict[str, float](), dict[str, float]()  # the other columns have no CI
        for name, group in (("pearson", reference.lower()), ("spearman", f"{reference.lower()}-ranks")):
            heading, scale = name.title(), 0.01 if name == "pearson" else 1.0
            numbers = known.get((group, label, estimate, name), UNKNOWN)
            row[heading], low[heading], high[heading] = (scale * float(numbers[end]) for end in ("mean", "low", "high"))
            row[f"p, {heading}"] = permutation_p(x, y, name) if seeds else math.nan
            if name == "pearson":
                row["Noise ceiling"] = noise_ceiling.mean
                low["Noise ceiling"], high["Noise ceiling"] = noise_ceiling.low, noise_ceiling.high
            if numbers["note"] and math.isnan(float(numbers["mean"])):
                names = undefined.setdefault(str(numbers["note"]), [])
                names += [f"{method} ({estimate})"] if f"{method} ({estimate})" not in names else []
        rows.append(row)
        lows.append(low)
        highs.append(high)
    caption = (
        f"Agreement with {reference} values: correlation over sites, mean over seeds, in brackets the 95 % CI over "
        f"{resampling_units(len(valued))}; noise ceiling: the correlation of a perfect estimate, given the uncertainty "
        f"of the values{' over test patients (one seed)' if len(valued) == 1 else ''}; p-value by permuting the sites"
    )
    ends = {"low": pd.DataFrame(lows), "high": pd.DataFrame(highs)}
    table = Table(f"agreement-{reference.lower()}", caption, pd.DataFrame(rows), decimals=2, **ends)
    reasons = [f"The correlation with {reference} values is undefined for {', '.join(who)}: {why}."
                for why, who in undefined.items()]  # fmt: skip
    return table, reasons + _limits(reference, len(sites), noise_ceiling)


def _limits(reference: str, sites: int, noise_ceiling: Estimate) -> list[str]:
    caveats = []
    if noise_ceiling.mean < LOW_NOISE_CEILING:
        caveats.append(
            f"The {reference} values of these sites are hardly above their noise level over test patients and seeds: "
            f"the noise ceiling (correlation of a perfect estimate) is {noise_ceiling.mean:.2f} "
            f"[95 % CI {noise_ceiling.low:.2f}, {noise_ceiling.high:.2f}], too low to judge agreement."
        )
    if sites < FEW_SITES:
        caveats.append(
            f"Agreement with {reference} values rests on {sites} sites: one site can change each correlation, and no "
            f"p-value can be below {1 / math.factorial(sites):.2g} (Spearman: {2 / math.factorial(sites):.2g})."
        )
    return caveats
