"""Reliability on synthetic trainings whose noise is known."""

import numpy as np
import pandas as pd
import pytest
from noisy_trainings import WORTH, trained
from simulated_studies import USUAL, value_coverage

from fedmerit.contract.semivalues import leave_one_out_weights, shapley_weights
from fedmerit.errors import BadInput
from fedmerit_evaluation.ground_truth.reliability import UTILITIES, Resampled, resample, semivalue_function
from fedmerit_evaluation.ground_truth.shapley_approximations import least_squares_values
from fedmerit_evaluation.ground_truth.value_tables import ValueTables
from fedmerit_evaluation.results.views import Results

SHAPLEY, LOO = semivalue_function(shapley_weights), semivalue_function(leave_one_out_weights)


def test_resample_without_noise_is_fully_reliable():
    one = resample(trained(WORTH), SHAPLEY, draws=50)
    np.testing.assert_allclose(one.mean, list(WORTH.values()))
    assert one.values.shape == (3, 5, 51)
    assert (one.reliability, one.noise_ceiling.low, one.single_seed_noise_ceiling.mean) == pytest.approx((1, 1, 1))
    np.testing.assert_allclose(one.standard_errors, 0, atol=1e-12)


@pytest.mark.slow
def test_reliability_equals_share_of_true_variance():
    """Var of worth 0.00625 (ddof 1), of seeds' means 0.1² / 4; its root is the noise ceiling."""
    found, reached, of_a_seed, reached_by_seed = [], [], [], []
    worth = np.array(list(WORTH.values()))
    for draw in range(40):
        one = resample(trained(WORTH, seed_sd=0.1, seeds=4, patients=2, draw=draw), LOO, 2)
        found.append(one.reliability)
        reached.append(np.corrcoef(one.mean, worth)[0, 1])
        of_a_seed.append(one.single_seed_noise_ceiling.mean)
        reached_by_seed.append(np.mean([np.corrcoef(values, worth)[0, 1] for values in one.values[..., 0]]))
    expected = 0.00625 / (0.00625 + 0.1**2 / 4)
    assert np.mean(found) == pytest.approx(expected, abs=0.12)
    assert np.mean(reached) == pytest.approx(np.sqrt(expected), abs=0.06)
    expected = 0.00625 / (0.00625 + 0.1**2)
    assert np.mean(np.square(of_a_seed)) == pytest.approx(expected, abs=0.06)  # its root would be biased by noise
    assert np.mean(reached_by_seed) == pytest.approx(np.sqrt(expected), abs=0.06)


def test_noise_ceilings_of_one_seed_are_equal():
    one = resample(trained(WORTH, patient_sd=0.3, seeds=1), SHAPLEY, draws=50)
    assert 0 < one.noise_ceiling.mean < 1
    assert one.single_seed_noise_ceiling.mean == pytest.approx(one.noise_ceiling.mean)


def test_standard_errors_add_seeds_and_patients():
    errors = [
        resample(
            trained(WORTH, seed_sd=0.06, patient_sd=0.3, seeds=4, patients=20, draw=draw), LOO, 200
        ).standard_errors
        for draw in range(5)
    ]
    expected = np.sqrt(0.06**2 / 4 + 0.3**2 / 100)  # 100 cases in all
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(expected, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("patients", [(2, 2, 2, 2, 2), (2, 5, 5, 5, 9)])
def test_standard_errors_of_few_patients_are_unbiased(patients):
    errors = [
        resample(trained(WORTH, patient_sd=0.3, seeds=1, patients=patients, draw=draw), LOO, 100).standard_errors
        for draw in range(20)
    ]
    expected = 0.3 * np.sqrt(np.mean([1 / number for number in patients]) / 5)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("patients", [1, (1, 5, 5, 5, 5)])
def test_standard_errors_with_single_patient_are_nan(patients):
    one = resample(trained(WORTH, patient_sd=0.3, patients=patients), LOO, 20)
    assert np.isnan(
        [one.reliability, one.noise_ceiling.mean, one.single_seed_noise_ceiling.mean, *one.standard_errors]
    ).all()


def test_resample_images_of_a_patient_count_once():
    """Each of six patients has an image, or three alike: nothing changes but the number of cases."""
    once = trained(WORTH, patient_sd=0.3, patients=6, seeds=2).rows
    once = once.assign(patient=once["case"])
    often = pd.concat([once.assign(case=once["case"] + letter) for letter in "abc"], ignore_index=True)
    one, other = (resample(Results(rows), LOO, 50) for rows in (once, often))
    np.testing.assert_allclose(other.values, one.values, atol=1e-12)
    np.testing.assert_allclose(other.patients, one.patients, atol=1e-12)
    assert one.fewest == other.fewest == 6
    apart = resample(Results(often.assign(patient="")), LOO, 50)
    assert (apart.standard_errors < 0.7 * one.standard_errors).all()


def test_resample_unequal_patients_keep_mean_over_images():
    rows = trained(WORTH, patient_sd=0.3, patients=6, seeds=1).rows
    rows = rows.assign(patient=rows["case"].where(rows["case"] > "002", "of three"))
    one = resample(Results(rows), LOO, 20)
    np.testing.assert_allclose(one.mean, resample(Results(rows.assign(patient="")), LOO, 20).mean, atol=1e-12)
    assert (one.fewest, one.patients.shape[-1]) == (4, 20)


def test_repeats_of_folds_are_values_of_their_patients():
    rows = trained(WORTH, patient_sd=0.3, seed_sd=0.1, patients=6, seeds=2).rows
    assert resample(Results(rows), LOO, 2).repeats.shape == (2, 5)
    numbers = pd.factorize(rows["case"])[0]
    rows = rows.assign(fold=np.array(["0", "1", "2"])[numbers % 3])
    one = resample(Results(rows), LOO, 2)
    assert one.repeats.shape == (3, 5)
    np.testing.assert_allclose(one.repeats.mean(axis=0), one.mean, atol=1e-12)
    of_first = resample(Results(rows[rows["fold"] == "0"]), LOO, 2)
    np.testing.assert_allclose(one.repeats[0], of_first.mean, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3])
def test_values_over_folds_cover_true_value(seeds):
    """Of 240 hospitals: a standard error of 1.4 points; over patients of one seed it was 88 %."""
    held, wrong, _ = value_coverage(seeds, 9, USUAL, studies=60, schemes=("folds",))
    assert held["folds"] >= 91.5
    assert wrong["folds"] <= 5


@pytest.mark.slow
def test_values_over_overlapping_folds_are_rarely_significant():
    """Folds share these patients: without `fold_overlap` 18 % of studies have a significant pair."""
    _, wrong, _ = value_coverage(3, 9, USUAL, from_patients=1.0, studies=100)
    assert wrong["folds"] <= 9


def test_resample_names_missing_coalition():
    lacking = trained(WORTH, leave_out=[frozenset("AB")])
    with pytest.raises(BadInput, match=r"seed 2: coalition A\+B: no utility"):
        resample(lacking, SHAPLEY)
    assert resample(lacking, LOO, 2).seeds == [0, 1, 2]
    with pytest.raises(BadInput, match="no hd95 of trained coalitions"):
        resample(lacking, LOO, 2, UTILITIES["mean HD95"])
    few = trained(dict(list(WORTH.items())[:3]), seeds=1, patients=2, leave_out=[*map(frozenset, ("A", "B", "AB"))])
    with pytest.raises(BadInput, match=r"regression: no seed has all .* 3 coalitions .* do not determine the values"):
        ValueTables(few, {"regression": least_squares_values}).tables()


def test_resample_accepts_worst_hospital_and_distance():
    results = trained(WORTH, hd95=True)
    np.testing.assert_allclose(resample(results, LOO, 2, UTILITIES["worst hospital's Dice"]).mean, list(WORTH.values()))
    distance = resample(results, LOO, 2, UTILITIES["mean HD95"])
    np.testing.assert_allclose(distance.mean, 20 * np.array(list(WORTH.values())))


@pytest.mark.parametrize(("sites", "patients", "worth_sd"), [(4, 2, 5.0), (4, 5, 2.0), (8, 5, 5.0), (4, 5, 0.0)])
def test_noise_ceiling_interval_covers_true_noise_ceiling(sites, patients, worth_sd):
    """Three seeds of SD 3, patients of SD 5 a site: of equal sites it was .27 where it is 0, and 0 where it is not."""
    random, held = np.random.default_rng([sites, patients]), []
    true = np.sqrt(worth_sd**2 / (worth_sd**2 + 3**2 / 3 + 5**2 / patients))
    for _ in range(400):
        own = random.normal(0, 5, (sites, patients))
        moved = np.zeros((3, sites, sites, patients))
        for site in range(sites):
            moved[:, site, site] = (own[site] - own[site].mean()) / np.sqrt(patients * (patients - 1))
        values = random.normal(0, worth_sd, sites) + own.mean(axis=1) + random.normal(0, 3, (3, sites))
        names = [str(site) for site in range(sites)]
        one = Resampled(names, [0, 1, 2], values[..., None], moved.reshape(3, sites, -1))
        held.append(one.noise_ceiling.low - 1e-9 <= true <= one.noise_ceiling.high)
    assert 0.92 <= np.mean(held) <= 0.99 if worth_sd else np.mean(held) >= 0.94
