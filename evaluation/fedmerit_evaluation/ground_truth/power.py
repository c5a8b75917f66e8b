"""Which difference of worth can be told: by how many patients, seeds and rounds, before they are spent.

The difference of two sites' values has the variance σ_s²/S + σ_p²/P + σ_r²/(R S), over S seeds, P test patients a site
and R rounds. The smallest difference that is told at 5 %, two-sided, in 4 of 5 studies is the root of
k_S² σ_s²/S + k² (σ_p²/P + σ_r²/(R S)), k = z_.975 + z_.8 = 2.8. What seeds make of it has to be told by these seeds,
by Student's t, as the intervals of values are: k_S is 16.3 of two seeds, 5.7 of three and 3.8 of five.
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
from fedmerit_evaluation.results.views import Results

LEVEL, POWER = 0.05, 0.8


@dataclass(frozen=True)
class Variances:
    """Of the difference of two sites' values, mean over pairs, squared fractions of Dice."""

    seed: float  # of one seed
    patient: float  # of one test patient a site
    round: float = 0.0  # of one round, where values are told in a run
    patients: float = 1.0  # a site in the pilot, their harmonic mean
    reference: str = field(default="", compare=False)  # which values of the pilot they are of

    @property
    def mean_patient_variance(self) -> float:
        """Of the pilot's patients."""
        return self.patient / self.patients

    def with_overrides(self, **stated: float) -> "Variances":
        """With some of them stated."""
        numbers: dict[str, Any] = stated
        return replace(self, **numbers)


def detectable_standard_errors(seeds: float = math.inf) -> float:
    """k: of how many standard errors a difference is told that so many seeds tell the size of; NaN of one alone.

    By a test of `LEVEL`, with `POWER`; of infinitely many seeds, the standard error is known.
    """
    if math.isinf(seeds):
        return float(norm.ppf(1 - LEVEL / 2) + norm.ppf(POWER))
    if seeds < 2:
        return math.nan
    critical = float(t.ppf(1 - LEVEL / 2, seeds - 1))
    return float(brentq(lambda away: nct.sf(critical, seeds - 1, away) - POWER, 0, 2 * critical))


def minimum_detectable_difference(seeds: int, of_seeds: float, others: float) -> float:
    """That is told, in the unit of the roots of its variances: of the mean over so many ``seeds``, and ``others``."""
    told = detectable_standard_errors(seeds) ** 2 * of_seeds if of_seeds else 0.0
    return math.sqrt(told + detectable_standard_errors() ** 2 * others)


def estimate_variances(one: Resampled, patients: float = 1.0) -> Variances:
    """Of resampled values; ``patients`` a site they were tested on. That of seeds is 0 where there is one alone."""
    first, second = pairs(len(one.sites))
    differences = one.values[:, first] - one.values[:, second]  # (s, pairs, D)
    of_patients = float(differences[..., 1:].mean(axis=0).var(axis=-1, ddof=1).mean())
    of_seeds = float(differences[..., 0].var(axis=0, ddof=1).mean()) if len(one.seeds) > 1 else 0.0
    return Variances(of_seeds, of_patients * patients, patients=patients)


def pilot_variances(folder: Path) -> Variances:
    """Of Shapley values where a folder of trained coalitions has them for two seeds, else of leave-one-out values.

    Raises:
        BadInput: it has neither, or one seed alone, so that nothing is known of others.
    """
    results = Results(read_results(folder))
    found = dict[str, Resampled]()
    with suppress(BadInput):  # it takes more coalitions than leave-one-out
        found[SHAPLEY] = resample(results, semivalue_function(EXACT[SHAPLEY]))
    if SHAPLEY not in found or len(found[SHAPLEY].seeds) < 2:
        found[LEAVE_ONE_OUT] = resample(results, semivalue_function(EXACT[LEAVE_ONE_OUT]))
    reference, one = max(found.items(), key=lambda item: len(item[1].seeds))
    if len(one.seeds) < 2:
        raise BadInput(f"--pilot {folder}: has one seed alone; train a second, or state --seed-sd and --patient-sd")
    if one.single:
        raise BadInput(
            f"--pilot {folder}: has one test patient a site, and nothing is known of others; test on more of them, or "
            "state --seed-sd and --patient-sd in its place"
        )
    tested = results.rows[(results.rows["coalition"] != "") & (results.rows["quantity"] == "dice")]
    # the variance of a mean over sites goes by the mean of 1 / patients: many at one site say little of the others
    of_pilot = estimate_variances(one, harmonic_mean(tested.groupby("site")["case"].nunique().tolist()))
    return replace(of_pilot, reference=reference)


def power_table(variances: Variances, patients: Sequence[int], seeds: Sequence[int], rounds: int) -> Table:
    """The smallest difference of worth that can be told, by patients a site (rows) and seeds (columns)."""
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
    frame = pd.DataFrame({"Test patients a site": [str(many) for many in patients], **columns})
    sd = {name: POINTS * np.sqrt(getattr(variances, name)) for name in ("seed", "patient", "round")}
    told = f"{sd['seed']:.2g} over seeds, {sd['patient']:.2g} over patients"
    told += f", {sd['round']:.2g} over each of {rounds} rounds" if variances.round else ""
    caption = (
        "Smallest difference of worth between two sites that is told (5 %, two-sided, power 80 %); standard deviations "
        f"of a difference [points]: {told}{f'; of {variances.reference} values' if variances.reference else ''}"
    )
    if variances.seed and min(seeds) < 2:
        caption += "; by one seed nothing is told of others"
    return Table("power", caption, frame, decimals=1)


def reliability_table(of: Mapping[str, Resampled]) -> Table:
    """How good each truth is, by its name: agreement of its halves, reliability, ceiling, smallest difference told."""
    rows = []
    for name, one in of.items():
        variances = estimate_variances(one)
        rows.append(
            {
                "Truth": name,
                "Seeds": len(one.seeds),
                "Halves of seeds agree": one.between_seeds,
                "Halves of patients agree": one.patient_half_correlation,
                "Reliability": one.reliability,
                "Ceiling": one.noise_ceiling,
                "Mean standard error [points]": POINTS * float(one.standard_errors.mean()),
                "Smallest difference told [points]": POINTS
                * minimum_detectable_difference(
                    len(one.seeds), variances.seed / len(one.seeds), variances.mean_patient_variance
                ),
            }
        )
    caption = (
        "How good the truth is: Pearson correlation of its halves, stepped up to the whole; the ceiling is the most "
        "that a perfect estimator would agree with it, over the same sites"
    )
    if any(len(one.seeds) < 2 for one in of.values()):
        caption += "; of one seed alone, nothing here knows of others: all is better than it will be"
    return Table("reliability", caption, pd.DataFrame(rows), decimals=2)
