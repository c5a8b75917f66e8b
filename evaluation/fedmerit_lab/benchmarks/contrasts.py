"""Methods held against one baseline over folds: the mean hospital's and the worst hospital's test Dice.

The outcomes of a registered comparison. A fold's outcome is the mean, or the least, over hospitals of the mean Dice of
their test patients in that fold, mean over labels and seeds; a method's is the mean over folds. Differences from the
baseline have Student's interval over folds with `fold_overlap`, as folds share training patients. All outcomes and
methods of a study are one family (Holm 1979).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites
from fedmerit.trust import allowed_place
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.results.runs import Run
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.inference import MIN_FOLDS, SIGNIFICANCE_LEVEL, Estimate, fold_overlap, holm
from fedmerit_evaluation.statistics.resampling import FloatArray, Variance
from fedmerit_evaluation.statistics.sample_size import detectable_difference

MEAN, WORST = OUTCOMES = ("mean of hospitals", "worst hospital")


@dataclass(frozen=True)
class Contrast:
    """A method's outcome, and its difference from the baseline's [fraction]."""

    outcome: str  # one of `OUTCOMES`
    method: str
    dice: float
    difference: Estimate  # p is corrected for the family
    detectable: float  # difference that four of five such studies find


def outcomes_by_fold(results: Results) -> dict[str, pd.DataFrame]:
    """Return each of `OUTCOMES` [fraction] by its name, methods x folds; NaN: a hospital has no test Dice there.

    Raises:
        BadInput: the runs are not of `MIN_FOLDS` folds or more.
    """
    rows = results.dice.rows
    keys = ["method", "fold", "site", "seed", "case"]
    by_case = rows.groupby(keys, observed=True)["value"].mean()
    by_seed = by_case.groupby(level=keys[:4], observed=True).mean()
    by_site = pd.DataFrame(by_seed.groupby(level=keys[:3], observed=True).mean().unstack("site"))
    folds = set(by_site.index.get_level_values("fold")) - {""}
    if len(folds) < MIN_FOLDS:
        raise BadInput(f"the runs are of {len(folds)} fold(s); a comparison over folds needs {MIN_FOLDS} or more")
    parts = {MEAN: by_site.mean(axis=1, skipna=False), WORST: by_site.min(axis=1, skipna=False)}
    return {name: pd.DataFrame(part.unstack("fold")) for name, part in parts.items()}


def contrast(by_fold: dict[str, pd.DataFrame], baseline: str, prepared: int = 0) -> list[Contrast]:
    """Return every method's contrast with the ``baseline``, outcome by outcome, in the order of methods.

    Args:
        by_fold: methods x folds of each outcome, of `outcomes_by_fold`.
        baseline: one of the methods.
        prepared: folds that the patients are divided into; 0: as many as were tested.

    Raises:
        BadInput: the baseline is missing, or lacks a fold.
    """
    if baseline not in by_fold[MEAN].index or by_fold[MEAN].loc[baseline].isna().any():
        raise BadInput(f"--baseline {baseline}: has no test Dice of every fold")
    found = []
    for outcome, table in by_fold.items():
        complete = table.dropna()
        for method in complete.index.drop(baseline):
            difference = estimate_over_folds((complete.loc[method] - complete.loc[baseline]).to_numpy(), prepared)
            found.append(Contrast(outcome, str(method), float(complete.loc[method].mean()), difference, np.nan))
    corrected = holm([one.difference.p for one in found])
    level = SIGNIFICANCE_LEVEL / max(len(found), 1)
    return [
        replace(
            one,
            difference=replace(one.difference, p=p),
            detectable=detectable_difference(one.difference.error, one.difference.freedom, level),
        )
        for one, p in zip(found, corrected.tolist(), strict=True)
    ]


def estimate_over_folds(differences: FloatArray, prepared: int = 0) -> Estimate:
    """Return the mean of (F,) differences by fold, with interval and p by Student's t and `fold_overlap`."""
    folds, mean = len(differences), float(differences.mean())
    factor = fold_overlap(folds, prepared)
    variance = Variance(float(differences.var(ddof=1)) / folds * factor**2, folds - 1)
    reach, error = variance.reach(), float(np.sqrt(variance.value))
    return Estimate(mean, mean - reach, mean + reach, variance.p(abs(mean)), error, variance.freedom)


def prepared_folds(runs: Sequence[Run]) -> int:
    """Return the number of folds that the sites of runs were prepared with; 0 if they are elsewhere."""
    places = {allowed_place(run.info.get("sites_folder")) for run in runs}
    found = {open_sites(place)[0].folds for place in places if place is not None and place.is_dir()}
    return found.pop() if len(found) == 1 else 0


def _folds(tested: int, prepared: int) -> str:
    return f"{tested} folds" if prepared in (0, tested) else f"{tested} of {prepared} folds"


def contrast_tables(results: Results, baseline: str, prepared: int = 0) -> list[Table]:
    """Return a table of contrasts for each outcome: Dice and differences in points, with the baseline in its caption.

    Raises:
        BadInput: of `outcomes_by_fold` and `contrast`.
    """
    by_fold = outcomes_by_fold(results)
    tables = []
    found = contrast(by_fold, baseline, prepared)
    for outcome, table in by_fold.items():
        rows = [one for one in found if one.outcome == outcome]
        frame = pd.DataFrame(
            {
                "Method": [one.method for one in rows],
                "Dice [%]": [100 * one.dice for one in rows],
                f"less {baseline} [points]": [100 * one.difference.mean for one in rows],
                "95 % CI, lower": [100 * one.difference.low for one in rows],
                "upper": [100 * one.difference.high for one in rows],
                "p": [f"{one.difference.p:.2g}" for one in rows],
                "detectable [points]": [100 * one.detectable for one in rows],
            }
        )
        caption = (
            f"Test Dice of the {outcome}, {_folds(table.shape[1], prepared)}; "
            f"{baseline}: {100 * table.loc[baseline].mean():.1f}. "
            f"CI: over folds, with their shared training patients; p: corrected for {len(found)} comparisons (Holm); "
            "detectable: the difference that four of five such studies find"
        )
        tables.append(Table(f"contrasts-{outcome.split()[0]}", caption, frame, decimals=1))
    return tables
