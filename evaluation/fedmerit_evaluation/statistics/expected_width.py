"""How wide the 95 % confidence interval of a hospital's gain will be, before anything is trained."""

from math import nan, sqrt

from scipy.stats import t

# Variances of a gain [points² of Dice], twice those of a method's Dice that docs/studies/statistics.md calls usual
PATIENT, MODEL, REST = 2 * 3.0**2, 2 * 2.5**2, 2 * 2.5**2


def expected_width(patients: int, seeds: int, folds: int = 0) -> float:
    """In points of Dice, of the intervals that `bootstrap` gives with usual variances; NaN: there will be none.

    With one split those over patients and over seeds add up, as their draws do; of one seed it is of its model only.
    With folds it is Student's t over them.

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
        return 2 * _quantile(folds) * sqrt(of_fold / folds)
    of_patients = _quantile(patients) ** 2 * (PATIENT + REST / seeds) / patients
    of_seeds = _quantile(seeds) ** 2 * (MODEL + REST / patients) / seeds if seeds > 1 else 0.0
    return 2 * sqrt(of_patients + of_seeds)


def _quantile(number: int) -> float:
    return float(t.ppf(0.975, number - 1))
