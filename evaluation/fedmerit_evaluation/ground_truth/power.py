"""Minimum detectable difference (MDD) between the values of two sites, by numbers of patients, seeds and rounds.

The difference of two sites' values has the variance σ_s²/S + σ_p²/P + σ_r²/(R S), over S seeds, P test patients a site
and R rounds. Its MDD, at a level of 5 %, two-sided, with a power of 80 %, is the root of
k_S² σ_s²/S + k² (σ_p²/P + σ_r²/(R S)), k = z_.975 + z_.8 = 2.8. The variance over seeds is estimated from the seeds
themselves, so that part goes by Student's t (noncentral, for the power), as the CIs of values do: k_S is 16.3 with two
seeds, 5.7 with three and 3.8 with five. Assumed: normal differences, independent seeds and patients.
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
from fedmerit.records.results import read_results
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.ground_truth.ground_truths import EXACT, LEAVE_ONE_OUT, SHAPLEY
from fedmerit_evaluation.ground_truth.reliability import POINTS, Resampled, pairs, resample, semivalue_function
from fedmerit_evaluation.results.dice import name_patients
from fedmerit_evaluation.results.views import Results

LEVEL, POWER = 0.05, 0.8


@dataclass(frozen=True)
class Variances:
    """Variances of the difference of two sites' values, mean over pairs, squared fractions of Dice."""

    seed: float  # of one seed
    patient: float  # of one test patient a site
    round: float = 0.0  # of one round, if values are estimated in a run
    patients: float = 1.0  # per site in the pilot, harmonic mean
    reference: str = field(default="", compare=False)  # leave-one-out or Shapley values of the pilot

    @property
    def mean_patient_variance(self) -> float:
        """Of the pilot's patients."""
        return self.patient / self.patients

    def with_overrides(self, **stated: float) -> "Variances":
        """With some of them replaced."""
        numbers: dict[str, Any] = stated
        return replace(self, **numbers)


def detectable_standard_errors(seeds: float = math.inf) -> float:
    """k: the MDD in standard errors, if these are estimated from that many seeds; NaN with one seed.

    For a two-sided test at `LEVEL` with `POWER`; with infinitely many seeds the standard error is known.
    """
    if math.isinf(seeds):
        return float(norm.ppf(1 - LEVEL / 2) + norm.ppf(POWER))
    if seeds < 2:
        return math.nan
    critical = float(t.ppf(1 - LEVEL / 2, seeds - 1))
    return float(brentq(lambda shift: nct.sf(critical, seeds - 1, shift) - POWER, 0, 2 * critical))


def minimum_detectable_difference(seeds: int, of_seeds: float, others: float) -> float:
    """MDD of a mean with the variance ``of_seeds`` over ``seeds``, and ``others``; in the unit of their roots."""
    over_seeds = detectable_standard_errors(seeds) ** 2 * of_seeds if of_seeds else 0.0
    return math.sqrt(over_seeds + detectable_standard_errors() ** 2 * others)


def estimate_variances(one: Resampled, patients: float = 1.0) -> Variances:
    """Variances of resampled values, tested on ``patients`` per site; that of seeds is 0 of one seed or of folds."""
    first, second = pairs(len(one.sites))
    values, moved = (every[:, first] - every[:, second] for every in (one.values[..., 0], one.patients))  # (s, pairs)
    of_patients = float((moved.mean(axis=0) ** 2).sum(axis=-1).mean())
    of_seeds = float(values.var(axis=0, ddof=1).mean()) if len(one.seeds) > 1 and not one.folds else 0.0
    return Variances(of_seeds, of_patients * patients, patients=patients)


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
                number, variances.seed / number, variances.patient / many + of_rounds / number
            )
            for many in patients
        ]
        for number in seeds
    }
    frame = pd.DataFrame({"Test patients per site": [str(many) for many in patients], **columns})
    sd = {name: POINTS * np.sqrt(getattr(variances, name)) for name in ("seed", "patient", "round")}
    spread = f"{sd['seed']:.2g} over seeds, {sd['patient']:.2g} over patients"
    spread += f", {sd['round']:.2g} over each of {rounds} rounds" if variances.round else ""
    caption = (
        "Minimum detectable difference (MDD) between the values of two sites (5 %, two-sided, power 80 %); standard "
        f"deviations of a difference [points]: {spread}"
    )
    caption += f"; of {variances.reference} values" if variances.reference else ""
    if variances.seed and min(seeds) < 2:
        caption += "; with one seed the variation over seeds is unknown"
    return Table("power", caption, frame, decimals=1)


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
                "MDD [points]": POINTS
                * minimum_detectable_difference(
                    len(one.seeds), variances.seed / len(one.seeds), variances.mean_patient_variance
                ),
            }
        )
    caption = (
        "Reliability of the ground truth: share of the variance over sites that is not noise; noise ceiling, its root: "
        "expected correlation of a perfect estimator, over the same sites [95 % CI]; MDD: minimum detectable difference"
    )
    if any(len(one.seeds) < 2 and not one.folds for one in of.values()):
        caption += "; with one seed the variation over seeds is unknown, so all numbers are too optimistic"
    frame = pd.DataFrame(rows)
    low, high = (
        pd.DataFrame({"Noise ceiling": [getattr(one.noise_ceiling, end) for one in of.values()]})
        for end in ("low", "high")
    )
    return Table("reliability", caption, frame, decimals=2, low=low, high=high)
