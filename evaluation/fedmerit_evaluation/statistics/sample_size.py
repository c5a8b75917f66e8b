"""What a design will be able to show, before anything is trained: widths of intervals, detectable differences.

The difference of two sites' values has the variance σ_s²/S + σ_p²/P + σ_r²/(R S), over S seeds, P test patients a site
and R rounds. Its minimum detectable difference (MDD), at a level of 5 %, two-sided, with a power of 80 %, is the root
of k_S² σ_s²/S + k² (σ_p²/P + σ_r²/(R S)), k = z_.975 + z_.8 = 2.8. The variance over seeds is estimated from the seeds
themselves, so that part goes by Student's t (noncentral, for the power), as the confidence intervals of values do: k_S
is 16.3 with two seeds, 5.7 with three and 3.8 with five; so does the part over patients, by those of a site. This holds
for one pair of sites. With more, a difference has to be significant among all pairs (Holm; here by Bonferroni, which
needs a little more): by `significance_factor` more than its interval reaches.
With fewer patients than `fedmerit_evaluation.statistics.inference.MIN_CASES` nothing is significant. Assumed: normal
differences, independent seeds and patients. Simulated: differences of that size are found in 80 to 91 %.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2, nct, norm, t

from fedmerit_evaluation.statistics.inference import SIGNIFICANCE_LEVEL, degrees_of_freedom, fold_overlap
from fedmerit_evaluation.statistics.resampling import Variance

POWER = 0.8
# Variances of a gain [points² of Dice], twice those of a method's Dice that docs/studies/statistics.md calls usual
PATIENT, MODEL, REST = 2 * 3.0**2, 2 * 2.5**2, 2 * 2.5**2


def expected_width(patients: int, seeds: int, folds: int = 0) -> float:
    """Return the median width of the 95 % interval of a hospital's gain over local training [points of Dice].

    It is that of `fedmerit_evaluation.statistics.resampling.CrossedEffects.interval` with usual variances. With one
    seed it covers only this seed's model. With folds it is Student's t over them, with `fold_overlap`. NaN: there will
    be no interval.

    Args:
        patients: of the hospital, that are tested: in the one split, or in all folds together.
        seeds: of each training.
        folds: that are trained; 0: one split.
    """
    if min(patients, folds or patients) < 2:
        return math.nan
    if folds:
        tested = patients / folds
        of_fold = PATIENT / tested + MODEL / seeds + REST / (tested * seeds)
        return 2 * fold_overlap(folds) * Variance(of_fold / folds, folds - 1).reach()
    of_patients = Variance((PATIENT + REST / seeds) / patients, patients - 1)
    if seeds == 1:
        return 2 * of_patients.reach()
    usual = float(chi2.median(seeds - 1)) / (seeds - 1)  # of a variance that so few seeds estimate
    of_seeds = Variance(usual * (MODEL + REST / patients) / seeds, seeds - 1)
    total = Variance.sum([of_seeds, of_patients])
    total = Variance(total.value - REST / (seeds * patients), total.freedom)
    return 2 * max(total.reach(), Variance(usual * MODEL / seeds, seeds - 1).reach())


def significance_factor(sites: int, seeds: int) -> float:
    """Return how many times half of its interval a difference of two ``sites`` has to be, to be significant."""
    pairs = sites * (sites - 1) // 2
    of_all, of_one = t.ppf(1 - SIGNIFICANCE_LEVEL / 2 / np.array([pairs, 1]), degrees_of_freedom(seeds))
    return float(of_all / of_one)


def detectable_standard_errors(seeds: float = math.inf, factor: float = 1.0) -> float:
    """Return k, the MDD in standard errors, if these are estimated from that many seeds; NaN with one seed.

    It is that of a difference of ``factor`` times half of its two-sided 95 % interval, with `POWER`; with infinitely
    many seeds the standard error is known.
    """
    level = 1 - SIGNIFICANCE_LEVEL / 2
    if math.isinf(seeds):
        return float(factor * norm.ppf(level) + norm.ppf(POWER))
    if seeds < 2:
        return math.nan
    return _shift(factor * float(t.ppf(level, seeds - 1)), seeds - 1)


def detectable_difference(error: float, freedom: float, level: float = SIGNIFICANCE_LEVEL) -> float:
    """Return the true difference that a two-sided t-test finds with `POWER`, in the unit of its standard error.

    The estimated standard error is taken for the true one. NaN: there is no test, or no error was measured.

    Args:
        error: standard error of the test.
        freedom: its degrees of freedom.
        level: that it is made at, 0 to 1.
    """
    if math.isnan(error + freedom + level) or not error:
        return math.nan
    return error * _shift(float(t.ppf(1 - level / 2, freedom)), freedom)


def _shift(critical: float, freedom: float) -> float:
    """Return the mean, in standard errors, with which Student's t is above a value with `POWER`."""
    return float(brentq(lambda shift: nct.sf(critical, freedom, shift) - POWER, 0, 3 * critical))


def minimum_detectable_difference(
    seeds: int, of_seeds: float, patients: float, of_patients: float, of_rounds: float = 0.0, sites: int = 2
) -> float:
    """Return the MDD of two of the ``sites`` from the variances of their difference, in the unit of their roots.

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
