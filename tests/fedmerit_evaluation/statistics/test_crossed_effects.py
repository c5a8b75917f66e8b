"""Intervals of means with seeds and patients as crossed random effects: values, and coverage of the true mean."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t, ttest_1samp
from simulated_studies import STABLE, USUAL, coverage
from statsmodels.regression.mixed_linear_model import MixedLM

from fedmerit_evaluation.statistics.resampling import CrossedEffects


def effects(values):
    """Of Dice by (method, seed, site), a list each or a mapping by patient."""
    rows = {
        (*key, str(case)): dice
        for key, those in values.items()
        for case, dice in (those if isinstance(those, dict) else dict(enumerate(those))).items()
    }
    return CrossedEffects.from_cases(pd.Series(rows, dtype=float).rename_axis(["method", "seed", "site", "case"]))


def ends(found):
    return found["low"], found["high"]


def test_interval_of_one_seed_equals_students_t_over_patients():
    dice = np.random.default_rng(0).uniform(0.3, 0.9, 7)
    found = effects({("a", 0, "A"): dice}).interval("a")
    assert ends(found) == pytest.approx(tuple(ttest_1samp(dice, 0).confidence_interval()))
    assert found["p"] == pytest.approx(ttest_1samp(dice, 0).pvalue)
    assert math.isnan(found["std"])


def test_interval_of_one_patient_equals_students_t_over_seeds():
    found = effects({("a", seed, "A"): [dice] for seed, dice in enumerate((0.5, 0.6, 0.8))}).interval("a")
    assert ends(found) == pytest.approx(tuple(ttest_1samp([0.5, 0.6, 0.8], 0).confidence_interval()))
    assert (found["std"], found["seeds"]) == (pytest.approx(np.std([0.5, 0.6, 0.8], ddof=1)), 3)


def test_interval_balanced_design_equals_mean_squares():
    """Balanced: (MS seeds + MS patients - MS rest) / (seeds x patients), by Searle et al. 1992."""
    x = np.random.default_rng(3).normal([[0.4], [0.6], [0.5]], 0.02, (3, 5)) + np.linspace(0, 0.2, 5)
    s, n = x.shape
    rest = x - x.mean(axis=0) - x.mean(axis=1, keepdims=True) + x.mean()
    seeds, patients = n * x.mean(axis=1).var(ddof=1), s * x.mean(axis=0).var(ddof=1)
    square = (seeds + patients - (rest**2).sum() / ((s - 1) * (n - 1))) / (s * n)
    freedom = (seeds + patients) ** 2 / (seeds**2 / (s - 1) + patients**2 / (n - 1))
    single = t.ppf(0.975, s - 1) * math.sqrt((seeds - (rest**2).sum() / ((s - 1) * (n - 1))) / (s * n))
    found = effects({("a", seed, "A"): x[seed] for seed in range(s)}).interval("a")
    reach = max(t.ppf(0.975, freedom) * math.sqrt(square), single)
    assert ends(found) == pytest.approx((x.mean() - reach, x.mean() + reach))


def test_interval_moved_split_does_not_count_patients_twice():
    """Three splits without a common patient: half the interval of the same numbers of the same patients, or less."""
    x = np.random.default_rng(4).normal(0.6, 0.1, (3, 30))
    x -= x.mean(axis=1, keepdims=True) - 0.6  # seeds alike
    same = effects({("a", seed, "A"): np.tile(x[0], 1) for seed in range(3)}).interval("a")
    moved = effects({("a", seed, "A"): {f"{seed}-{n}": d for n, d in enumerate(x[seed])} for seed in range(3)})
    width = same["high"] - same["low"], moved.interval("a")["high"] - moved.interval("a")["low"]
    assert width[1] == pytest.approx(width[0] / math.sqrt(3), rel=0.25)


def test_interval_of_difference_is_paired_by_patient():
    random = np.random.default_rng(5)
    local = {seed: random.uniform(0.2, 0.9, 6) for seed in (0, 1)}
    known = {("a", seed, "A"): local[seed] for seed in local} | {("b", seed, "A"): local[seed] + 0.05 for seed in local}
    both = effects(known | {("b", 0, "B"): [0.1, 0.2]})  # local training has no B
    found = both.interval("b", "a", bounds=(-1, 1))
    assert (found["mean"], *ends(found)) == pytest.approx([0.05] * 3)
    assert found["p"] == pytest.approx(0, abs=1e-9)
    assert math.isnan(both.interval("a", site="B")["mean"])
    one = both.interval("b", site="B")  # one seed of several
    assert (one["seeds"], one["mean"]) == (1, pytest.approx(0.15))
    assert math.isnan(one["low"] + one["p"])
    assert both.interval("b", bounds=(0, 0.5))["high"] <= 0.5


def test_interval_union_case_is_one_patient_for_all_sites():
    dice = {f"{'A' if place < 10 else 'B'}/{place}": value for place, value in enumerate(np.linspace(0.2, 0.9, 30))}
    union = effects({("a", 0, site): dice for site in "AB"})
    assert ends(union.interval("a")) == pytest.approx(ends(union.interval("a", site="A")))


STUDIES = {"studies": 50, "seed": 1}  # of 200 hospitals: a standard error of 1.5 points


@pytest.mark.parametrize(
    ("seeds", "patients", "sd", "design"),
    [
        (3, 5, STABLE, {}),
        *(
            pytest.param(seeds, patients, sd, design, marks=pytest.mark.slow)
            for seeds, patients in ((2, 3), (2, 5), (3, 3), (3, 10), (3, 30), (5, 3), (5, 5), (5, 10))
            for sd, design in ((STABLE, {}), (USUAL, {}), (USUAL, {"moved": True}))
        ),
    ],
)
def test_interval_covers_true_dice(seeds, patients, sd, design):
    """95 %, within two and a half standard errors of it, or of the 92 and 98 that are allowed."""
    held, _ = coverage(seeds, patients, sd, **STUDIES, **design)
    assert min(held["Dice"], held["gain"]) >= 89, held
    assert max(held["Dice"], held["gain"]) <= 99.5, held


@pytest.mark.slow
@pytest.mark.parametrize("missing", [False, True])
def test_interval_equals_mixed_model(missing):
    """REML of a linear mixed model with crossed random effects (statsmodels): equal where balanced, near otherwise."""
    random = np.random.default_rng(6)
    dice = 0.7 + random.normal(0, 0.03, (8, 1)) + random.normal(0, 0.08, 20) + random.normal(0, 0.02, (8, 20))
    rows = [(seed, n, dice[seed, n]) for seed in range(8) for n in range(20) if not (missing and (seed + n) % 5 == 0)]
    frame = pd.DataFrame(rows, columns=["seed", "patient", "dice"])
    parts = {name: f"0 + C({name})" for name in ("seed", "patient")}
    model = MixedLM.from_formula("dice ~ 1", frame, groups=np.ones(len(frame)), vc_formula=parts, re_formula="0")
    error = float(model.fit(reml=True).bse["Intercept"])
    found = effects(
        {("a", seed, "A"): dict(zip(of.patient, of.dice, strict=True)) for seed, of in frame.groupby("seed")}
    )
    own = found.interval("a")
    s, p = frame.seed.nunique(), frame.patient.nunique()
    seeds, patients = (frame.groupby(name).dice.mean().var(ddof=1) for name in ("seed", "patient"))
    seeds, patients = seeds / s, patients / p
    freedom = (seeds + patients) ** 2 / (seeds**2 / (s - 1) + patients**2 / (p - 1))
    tolerance = 0.02 if missing else 1e-4
    assert (own["high"] - own["low"]) / 2 == pytest.approx(t.ppf(0.975, freedom) * error, rel=tolerance)
