"""How the methods' estimates of contributions agree with a ground truth: the values of trained coalitions."""

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
from fedmerit_evaluation.report.limits import Limit
from fedmerit_evaluation.report.words import resampling_units
from fedmerit_evaluation.results.runs import Run
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.inference import Estimate
from fedmerit_evaluation.statistics.ranks import Ranking
from fedmerit_evaluation.statistics.resampling import DRAWS

ESTIMATE = "mean contribution"  # of a method, over rounds
MAX_EXACT_PERMUTATIONS = 7  # sites; all their permutations are tried
SAMPLED = 9999  # permutations of more sites
LOW_NOISE_CEILING = 0.7  # below, less than half of the values' variance is between sites
FEW_SITES = 10  # fewer points give unstable correlations
UNKNOWN: Mapping[str, Any] = {"mean": math.nan, "low": math.nan, "high": math.nan, "note": ""}  # not measured


@dataclass(frozen=True)
class Agreement:
    """A ground truth compared with the methods' estimates."""

    reference: str  # the ground truth: leave-one-out or Shapley
    values: pd.DataFrame  # seeds x sites, in points of Dice
    estimates: Mapping[tuple[str, str], pd.DataFrame]  # by method and name of the estimate: seeds x sites
    ranks: Mapping[str, Estimate]  # by method: Spearman's correlation of its `ESTIMATE` with the values
    p: Mapping[str, float]  # by method: the p-value of that correlation, by `permutation_p`
    values_table: Table
    methods_table: Table
    limits: Sequence[Limit]
    sampled: str  # for values from sampled permutations: their number and standard errors; else ""
    ranking: Ranking | None  # the sites ranked by value; None for sampled values, whose error no interval includes

    @property
    def mean_values(self) -> dict[str, float]:
        """The known values by site, mean over seeds, as fractions of Dice."""
        return {str(site): float(value) / 100 for site, value in self.values.mean().dropna().items()}


def compare_with_ground_truth(
    runs: Sequence[Run], results: Results, folder: Path, draws: int = DRAWS
) -> tuple[list[Agreement], list[Limit]]:
    """Return the agreement with every ground truth in a folder, and limits of these ground truths.

    Args:
        runs: runs with labels, as in the results.
        results: the results of all runs.
        folder: a folder that `fedmerit value leave-one-out` or `fedmerit value shapley` wrote.
        draws: the number of draws for intervals.

    Raises:
        BadInput: the folder holds no coalition, they are of other sites, or no ground truth is complete.
    """
    ground = ground_truths.open_ground_truths(folder, runs[0].sites, sorted({run.seed for run in runs}))
    differences = ground_truths.list_preparation_differences(folder, [run.site_digests for run in runs])
    limits = [Limit("ground_truth", values={"note": note}) for note in ground.notes]
    limits += [Limit("preparation", values={"note": note}) for note in differences]
    if not any(run.tested for run in runs):
        note = "the runs have no test Dice yet, so there is nothing to compare"
        return [], [Limit("ground_truth", values={"note": note})]
    methods = {run.label: run.counts_images for run in runs}
    measured = measure(results, methods, ground_truth=ground, draws=draws)
    estimates = _collect_estimates(measured.estimates)
    return [_agreement(reference, ground, measured.measured, estimates) for reference in ground.references], limits


def permutation_p(x: FloatArray, y: FloatArray, correlation: str) -> float:
    """Return the two-sided p-value of a correlation, mean over seeds, by permuting the sites in all seeds alike.

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
    """Return estimates by method and name; the share of training images once, since it is the same for all methods."""
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
    table, limits = _compared(reference.name, valued, measured, estimates, ground.noise_ceilings[reference.name])
    if reference.sampled:
        limits.append(Limit("sampled", values={"sampled": reference.sampled}))
    totals = valued.sum(axis=1)
    if (totals <= 0).any():
        seeds = list(totals.index[totals <= 0])
        limits.append(Limit("values_sum", values={"reference": reference.name, "seeds": seeds}))
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
    return Agreement(reference.name, valued, estimates, ranks, p, shown[0], table, limits, reference.sampled, order)


def _compared(
    reference: str,
    valued: pd.DataFrame,
    measured: pd.DataFrame,
    estimates: Mapping[tuple[str, str], pd.DataFrame],
    noise_ceiling: Estimate,
) -> tuple[Table, list[Limit]]:
    """Return a row per method and estimate: correlations with CIs, noise ceiling, p-value, numbers of sites."""
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
    limits = [
        Limit("undefined", values={"reference": reference, "estimates": names, "why": why})
        for why, names in undefined.items()
    ]
    interval = {"mean": noise_ceiling.mean, "low": noise_ceiling.low, "high": noise_ceiling.high}
    if noise_ceiling.mean < LOW_NOISE_CEILING:
        limits.append(Limit("low_noise_ceiling", values={"reference": reference, **interval}))
    if len(sites) < FEW_SITES:
        smallest = {"reference": reference, "sites": len(sites), "p": 1 / math.factorial(len(sites))}
        limits.append(Limit("few_sites", values=smallest))
    return table, limits
