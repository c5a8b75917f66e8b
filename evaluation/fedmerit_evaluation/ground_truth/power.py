"""Minimum detectable difference (MDD) between the values of two sites, by numbers of patients, seeds and rounds.

The difference of two sites' values has the variance σ_s²/S + σ_p²/P + σ_r²/(R S), over S seeds, P test patients a site
and R rounds. Its MDD, at a level of 5 %, two-sided, with a power of 80 %, is the root of
k_S² σ_s²/S + k² (σ_p²/P + σ_r²/(R S)), k = z_.975 + z_.8 = 2.8. The variance over seeds is estimated from the seeds
themselves, so that part goes by Student's t (noncentral, for the power), as the CIs of values do: k_S is 16.3 with two
seeds, 5.7 with three and 3.8 with five; so does that over patients, by those of a site. This is of one pair of sites.
With more, a difference has to be significant among all pairs (Holm; here by Bonferroni, which needs a little more): by
`significance_factor` more than its CI reaches. With fewer patients than `MIN_CASES` nothing is significant. Assumed:
normal differences, independent seeds and patients. Simulated: differences of that size are found in 80 to 91 %.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.stats import nct, norm, t

from fedmerit.errors import BadInput
from fedmerit.schema.results import read_results
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.ground_truth.ground_truths import EXACT, LEAVE_ONE_OUT, SHAPLEY
from fedmerit_evaluation.ground_truth.reliability import POINTS, Resampled, pairs, resample, semivalue_function
from fedmerit_evaluation.results.dice import name_patients
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.inference import MIN_CASES, SIGNIFICANCE_LEVEL, degrees_of_freedom, fold_overlap

POWER = 0.8


@dataclass(frozen=True)
class Variances:
    """Variances of the difference of two sites' values, mean over pairs, squared fractions of Dice."""

    seed: float  # of one seed
    patient: float  # of one test patient a site
    round: float = 0.0  # of one round, if values are estimated in a run
    patients: float = 1.0  # per site in the pilot, harmonic mean
    sites: int = 2  # that are compared
    reference: str = field(default="", compare=False)  # leave-one-out or Shapley values of the pilot

    @property
    def mean_patient_variance(self) -> float:
        """Of the pilot's patients."""
        return self.patient / self.patients

    def with_overrides(self, **stated: float | int) -> "Variances":
        """With some of them replaced."""
        numbers: dict[str, Any] = stated
        return replace(self, **numbers)


def significance_factor(sites: int, seeds: int) -> float:
    """How many times half of its CI a difference of two ``sites`` has to be, to be significant among all pairs."""
    pairs = sites * (sites - 1) // 2
    of_all, of_one = t.ppf(1 - SIGNIFICANCE_LEVEL / 2 / np.array([pairs, 1]), degrees_of_freedom(seeds))
    return float(of_all / of_one)


def detectable_standard_errors(seeds: float = math.inf, factor: float = 1.0) -> float:
    """k: the MDD in standard errors, if these are estimated from that many seeds; NaN with one seed.

    For a difference of ``factor`` times half of its two-sided 95 % CI, with `POWER`; with infinitely many seeds the
    standard error is known.
    """
    level = 1 - SIGNIFICANCE_LEVEL / 2
    if math.isinf(seeds):
        return float(factor * norm.ppf(level) + norm.ppf(POWER))
    if seeds < 2:
        return math.nan
    critical = factor * float(t.ppf(level, seeds - 1))
    return float(brentq(lambda shift: nct.sf(critical, seeds - 1, shift) - POWER, 0, 3 * critical))


def minimum_detectable_difference(
    seeds: int, of_seeds: float, patients: float, of_patients: float, of_rounds: float = 0.0, sites: int = 2
) -> float:
    """MDD of two of the ``sites`` from the variances of their difference, in the unit of their roots.

    Args:
        seeds: number of them.
        of_seeds: variance of the mean over seeds.
        patients: number at each of the two.
        of_patients: variance of the mean over patients.
        of_rounds: further variance.
        sites: that are compared.
    """
    factor = significance_factor(sites, seeds)
    over_seeds = detectable_standard_errors(seeds, factor) ** 2 * of_seeds if of_seeds else 0.0
    over_patients = detectable_standard_errors(patients, factor) ** 2 * of_patients
    return math.sqrt(over_seeds + over_patients + detectable_standard_errors(factor=factor) ** 2 * of_rounds)


def estimate_variances(one: Resampled, patients: float = 1.0) -> Variances:
    """Variances of resampled values, tested on ``patients`` per site; that of seeds is 0 of one seed or of folds."""
    first, second = pairs(len(one.sites))
    values, moved = (every[:, first] - every[:, second] for every in (one.values[..., 0], one.patients))  # (s, pairs)
    of_patients = float((moved.mean(axis=0) ** 2).sum(axis=-1).mean())
    of_seeds = float(values.var(axis=0, ddof=1).mean()) if len(one.seeds) > 1 and not one.folds else 0.0
    return Variances(of_seeds, of_patients * patients, patients=patients, sites=len(one.sites))


def pilot_variances(folder: Path) -> Variances:
    """Variances of Shapley values if a folder of trained coalitions has two seeds, else of leave-one-out values.

    Raises:
        BadInput: it has neither, or only one seed, or a site with one test patient.
    """
    results = Results(read_results(folder))
    found = dict[str, Resampled]()
    with suppress(BadInput):  # it takes more coalitions than leave-one-out
        found[SHAPLEY] = resample(results, semivalue_function(EXACT[SHAPLEY]), by_fold=False)
    if SHAPLEY not in found or len(found[SHAPLEY].seeds) < 2:
        found[LEAVE_ONE_OUT] = resample(results, semivalue_function(EXACT[LEAVE_ONE_OUT]), by_fold=False)
    reference, one = max(found.items(), key=lambda item: len(item[1].seeds))
    if one.values.shape[1] != len(one.sites):
        raise BadInput(f"--pilot {folder}: has values of other sites than took part; train its coalitions again")
    if len(one.seeds) < 2:
        raise BadInput(f"--pilot {folder}: has only one seed; train a second, or give --seed-sd and --patient-sd")
    if np.isnan(one.patients).any():
        raise BadInput(
            f"--pilot {folder}: has a site with only one test patient; test on more of them, or give --seed-sd and "
            "--patient-sd instead"
        )
    tested = results.rows[(results.rows["coalition"] != "") & (results.rows["quantity"] == "dice")]
    # the variance of a mean over sites goes by the mean of 1 / patients, hence the harmonic mean
    of_pilot = estimate_variances(one, harmonic_mean(name_patients(tested).groupby(tested["site"]).nunique().tolist()))
    return replace(of_pilot, reference=reference)


def power_table(variances: Variances, patients: Sequence[int], seeds: Sequence[int], rounds: int) -> Table:
    """Minimum detectable difference of two values, by patients per site (rows) and seeds (columns)."""
    of_rounds = variances.round / rounds
    columns: Mapping[str, list[float]] = {
        f"{number} seed{'s' * (number > 1)} [points]": [
            POINTS
            * minimum_detectable_difference(
                number, variances.seed / number, many, variances.patient / many, of_rounds / number, variances.sites
            )
            if many >= MIN_CASES
            else math.nan
            for many in patients
        ]
        for number in seeds
    }
    frame = pd.DataFrame({"Test patients per site": [str(many) for many in patients], **columns})
    sd = {name: POINTS * np.sqrt(getattr(variances, name)) for name in ("seed", "patient", "round")}
    spread = f"{sd['seed']:.2g} over seeds, {sd['patient']:.2g} over patients"
    spread += f", {sd['round']:.2g} over each of {rounds} rounds" if variances.round else ""
    caption = (
        f"Minimum detectable difference (MDD) between the values of two of {variances.sites} sites (5 % over all "
        f"pairs, two-sided, power 80 %; none with fewer than {MIN_CASES} patients); standard deviations of a "
        f"difference [points]: {spread}"
    )
    caption += f"; of {variances.reference} values" if variances.reference else ""
    if variances.seed and min(seeds) < 2:
        caption += "; with one seed the variation over seeds is unknown"
    return Table("power", caption, frame, decimals=1)


def _detectable(one: Resampled, variances: Variances) -> float:
    """MDD of two sites' values; NaN if the sample is insufficient. Folds have the seeds in them."""
    if one.sample.insufficient_data:
        return math.nan
    seeds = one.folds or len(one.seeds)
    return fold_overlap(one.folds) * minimum_detectable_difference(
        seeds, variances.seed / seeds, one.folds or one.fewest, variances.mean_patient_variance, sites=len(one.sites)
    )


def reliability_table(of: Mapping[str, Resampled]) -> Table:
    """Reliability of each ground truth, noise ceiling, mean standard error, MDD."""
    rows = []
    for name, one in of.items():
        variances = estimate_variances(one)
        rows.append(
            {
                "Ground truth": name,
                "Seeds": len(one.seeds),
                "Reliability": one.reliability,
                "Noise ceiling": one.noise_ceiling.mean,
                "Mean standard error [points]": POINTS * float(one.standard_errors.mean()),
                "MDD [points]": POINTS * _detectable(one, variances),
            }
        )
    caption = (
        "Reliability of the ground truth: share of the variance over sites that is not noise; noise ceiling, its root: "
        "expected correlation of a perfect estimator, over the same sites [95 % CI]; MDD: minimum detectable "
        "difference of two sites among all"
    )
    if any(len(one.seeds) < 2 and not one.folds for one in of.values()):
        caption += "; with one seed the variation over seeds is unknown, so all numbers are too optimistic"
    frame = pd.DataFrame(rows)
    low, high = (
        pd.DataFrame({"Noise ceiling": [getattr(one.noise_ceiling, end) for one in of.values()]})
        for end in ("low", "high")
    )
    return Table("reliability", caption, frame, decimals=2, low=low, high=high)
