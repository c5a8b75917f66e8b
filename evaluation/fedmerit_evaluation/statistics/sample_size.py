"""How wide the 95 % confidence interval of a hospital's gain will be, before anything is trained."""

from math import nan

from scipy.stats import chi2

from fedmerit_evaluation.statistics.resampling import Variance

# Variances of a gain [points² of Dice], twice those of a method's Dice that docs/studies/statistics.md calls usual
PATIENT, MODEL, REST = 2 * 3.0**2, 2 * 2.5**2, 2 * 2.5**2


def expected_width(patients: int, seeds: int, folds: int = 0) -> float:
    """Median in points of Dice, of the intervals of `CrossedEffects` with usual variances; NaN: there will be none.

    Of one seed it is of its model only. With folds it is Student's t over them.

    Args:
        patients: of the hospital, that are tested: in the one split, or in all folds together.
        seeds: of each training.
        folds: that are trained; 0: one split.
    """
    if min(patients, folds or patients) < 2:
        return nan
    if folds:
        tested = patients / folds
        of_fold = PATIENT / tested + MODEL / seeds + REST / (tested * seeds)
        return 2 * Variance(of_fold / folds, folds - 1).reach()
    of_patients = Variance((PATIENT + REST / seeds) / patients, patients - 1)
    if seeds == 1:
        return 2 * of_patients.reach()
    usual = float(chi2.median(seeds - 1)) / (seeds - 1)  # of a variance that so few seeds estimate
    of_seeds = Variance(usual * (MODEL + REST / patients) / seeds, seeds - 1)
    total = Variance.sum([of_seeds, of_patients])
    total = Variance(total.value - REST / (seeds * patients), total.freedom)
    return 2 * max(total.reach(), Variance(usual * MODEL / seeds, seeds - 1).reach())
