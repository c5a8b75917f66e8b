"""Which differences of worth can be reported, on synthetic trainings whose noise is known, and expected values."""

import math

import numpy as np
import pandas as pd
import pytest
from noisy_trainings import WORTH, trained
from scipy.stats import t

from fedmerit.contract.semivalues import leave_one_out_weights, shapley_weights
from fedmerit.errors import BadInput
from fedmerit_evaluation.ground_truth.reliability import (
    Resampled,
    Variances,
    estimate_variances,
    pilot_variances,
    power_table,
    reliability_table,
    resample,
    semivalue_function,
)
from fedmerit_evaluation.statistics.inference import SampleSize
from fedmerit_evaluation.statistics.ranks import ranking
from fedmerit_evaluation.statistics.resampling import CrossedEffects
from fedmerit_evaluation.statistics.sample_size import detectable_standard_errors, minimum_detectable_difference

LOO = semivalue_function(leave_one_out_weights)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_minimum_detectable_difference_has_stated_power(seeds):
    difference = minimum_detectable_difference(seeds, 0.02**2 / seeds, 20, 0)
    studies = np.random.default_rng(0).normal(difference, 0.02, (20_000, seeds))
    errors = studies.std(axis=1, ddof=1) / np.sqrt(seeds)
    found = np.abs(studies.mean(axis=1)) > t.ppf(0.975, seeds - 1) * errors
    assert found.mean() == pytest.approx(0.8, abs=0.01)


def test_minimum_detectable_difference_of_one_seed_is_nan():
    random = np.random.default_rng(0).normal(minimum_detectable_difference(2, 0, 20, 0, 0.02**2), 0.02, 20_000)
    assert (np.abs(random) > 1.96 * 0.02).mean() == pytest.approx(0.8, abs=0.01)
    assert minimum_detectable_difference(1, 0, 20, 0.02**2) == minimum_detectable_difference(2, 0, 20, 0.02**2)
    assert math.isnan(minimum_detectable_difference(1, 0.02**2, 20, 0.02**2))
    assert [detectable_standard_errors(seeds) for seeds in (2, 3, 5)] == pytest.approx([16.3, 5.65, 3.76], abs=0.05)
    assert detectable_standard_errors(1000) == pytest.approx(detectable_standard_errors(), rel=0.002)


@pytest.mark.parametrize(
    ("sites", "seeds", "patients"),
    [(4, 10, 5), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((2, 3, 5), (4, 10, 20)))],
)
def test_minimum_detectable_difference_holds_over_all_pairs(sites, seeds, patients):
    """Uncorrected, of one pair and with known variances, it was found in 16 to 30 % of studies of four sites."""
    random = np.random.default_rng([sites, seeds, patients])
    difference = minimum_detectable_difference(seeds, 2 * 1.0**2 / seeds, patients, 2 * 6.0**2 / patients, sites=sites)
    keys = [[""], [0], list("ABCD"[:sites]), range(patients)]
    index = pd.MultiIndex.from_product(keys, names=["method", "seed", "site", "case"])
    found = []
    for study in range(150):
        cases = pd.Series(random.normal(0, 6.0, sites * patients), index)
        values = CrossedEffects.from_cases(cases).resample(200, str(study))[:, 0, 0].T  # (sites, D)
        values[0] += difference
        of_seeds = values + random.normal(0, 1.0, (seeds, sites, 1))
        one = ranking("ABCD"[:sites], of_seeds, sample=SampleSize(patients, seeds))
        found.append(one.order_signs[0, 1] == 1)
    assert 0.70 <= np.mean(found) <= 0.95  # three standard errors below 0.8


@pytest.mark.slow
def test_pilot_variances_equal_simulated(tmp_path):
    found = [
        estimate_variances(
            resample(trained(WORTH, seed_sd=0.05, patient_sd=0.2, seeds=6, patients=8, draw=draw), LOO, 200), 8
        )
        for draw in range(6)
    ]
    assert np.mean([one.seed for one in found]) == pytest.approx(2 * 0.05**2, rel=0.35)
    assert np.mean([one.patient for one in found]) == pytest.approx(2 * 0.2**2 / 5, rel=0.35)  # 5 sites tested
    trained(WORTH, seed_sd=0.05, seeds=2).rows.to_csv(tmp_path / "results.csv", index=False)
    assert pilot_variances(tmp_path).seed > 0
    trained(WORTH, seeds=1).rows.to_csv(tmp_path / "results.csv", index=False)
    with pytest.raises(BadInput, match="has only one seed"):
        pilot_variances(tmp_path)
    trained(WORTH, seed_sd=0.05, seeds=2, patients=1).rows.to_csv(tmp_path / "results.csv", index=False)
    with pytest.raises(BadInput, match="has a site with only one test patient"):
        pilot_variances(tmp_path)


def test_power_table_equals_hand_computed():
    """Of what seeds make of it 16.3 errors count where there are two, 3.2 of nine; of patients likewise."""
    table = power_table(Variances(0.03**2, 0.08**2).with_overrides(round=0.06**2), [4, 5, 16], [2, 9], rounds=36)
    errors = {number: detectable_standard_errors(number) for number in (2, 5, 9, 16)}
    expected = [[np.sqrt(errors[s] ** 2 * 9 / s + errors[p] ** 2 * 64 / p + 2.8016**2 * 36 / 36 / s) for s in (2, 9)]
               for p in (5, 16)]  # fmt: skip
    np.testing.assert_allclose(table.frame.iloc[1:, 1:].to_numpy(), expected, rtol=1e-4)
    assert table.frame.iloc[0, 1:].isna().all()
    wider = power_table(Variances(0.03**2, 0.08**2, sites=4), [5], [9], rounds=1).frame.iloc[0, 1]
    t_value = t.ppf(1 - 0.025 / 6, 4) / t.ppf(0.975, 4)  # six pairs
    errors = [detectable_standard_errors(number, t_value) ** 2 for number in (9, 5)]
    assert wider == pytest.approx(np.sqrt(errors[0] * 9 / 9 + errors[1] * 64 / 5), rel=1e-4)


def test_power_command_prints_table(fedmerit):
    reported = fedmerit("value", "power", "--seed-sd", 3, "--patient-sd", 8, "--patients", "16", "--seeds", "1,3")
    assert reported.exit_code == 0
    assert "11.5" in reported.output  # the root of 5.65² 9 / 3 + 3.0² 4
    more = fedmerit("value", "power", "--seed-sd", 3, "--patient-sd", 8, "--hospitals", 4)
    assert "two of 4 sites" in " ".join(more.output.split())
    assert "with one seed the variation over seeds is unknown" in " ".join(reported.output.split())
    for wrong in ("4,", "0", "-2,4", "4;8"):  # as everywhere
        refused = fedmerit("value", "power", "--seed-sd", 3, "--patient-sd", 8, "--patients", wrong)
        assert f"--patients {wrong}: expected whole numbers from 1 on, such as 10,30" in refused.stderr
    refused = fedmerit("value", "power", "--seed-sd", 3)
    assert (refused.exit_code, "give --pilot DIR, or state --seed-sd and --patient-sd" in refused.output) == (2, True)


def two_sites(seeds=2):
    """Values of A and B, which differ by 0.1 and 0.3; two patients move them by 0.1 and 0.2, and 0 and 0.4."""
    values = np.array([[[0.1], [0.0]], [[0.4], [0.1]]])[:seeds]
    moved = np.array([[[0.1, 0.1], [0.0, -0.1]], [[0.0, 0.4], [0.0, 0.0]]])[:seeds]
    return Resampled(["A", "B"], list(range(seeds)), values, moved)


def test_estimate_variances_equals_hand_computed():
    found = estimate_variances(two_sites(), 10)
    assert found.seed == pytest.approx(0.02)  # 2 x 0.1²
    assert found.patient == pytest.approx(10 * (0.05**2 + 0.3**2))  # of the means over seeds
    assert estimate_variances(two_sites(1)).seed == 0


def test_pilot_variances_accept_leave_one_out(tmp_path):
    """Without coalition A+B there are no Shapley values."""
    lacking = trained(WORTH, seed_sd=0.05, patient_sd=0.2, seeds=2, patients=4, leave_out=[frozenset("AB")])
    lacking.rows.to_csv(tmp_path / "results.csv", index=False)
    found = pilot_variances(tmp_path)
    assert found == estimate_variances(resample(lacking, LOO), 4)
    assert found.patients == 4


def test_pilot_variances_take_values_with_two_seeds(tmp_path):
    """The second seed lacks A+B, which Shapley values take and leave-one-out values do not."""
    whole = trained(WORTH, seed_sd=0.05, patient_sd=0.2, seeds=2, patients=4)
    whole.rows.to_csv(tmp_path / "results.csv", index=False)
    found = pilot_variances(tmp_path)
    assert found == estimate_variances(resample(whole, semivalue_function(shapley_weights)), 4)
    assert power_table(found, [4], [2], 1).caption.endswith(" over patients; of Shapley values")
    rows = whole.rows[(whole.rows["seed"] == 0) | (whole.rows["coalition"] != "A+B")]
    rows.to_csv(tmp_path / "results.csv", index=False)
    found = pilot_variances(tmp_path)
    assert found == estimate_variances(resample(whole, LOO), 4)
    assert power_table(found, [4], [2], 1).caption.endswith(" over patients; of leave-one-out values")
    rows[rows["seed"] == 0].to_csv(tmp_path / "results.csv", index=False)
    with pytest.raises(BadInput, match="has only one seed"):
        pilot_variances(tmp_path)


def test_pilot_variances_use_harmonic_mean_of_patients(tmp_path):
    """What two patients at four sites and twenty at one tell of a mean over sites, 2.44 a site do."""
    uneven = trained(WORTH, seed_sd=0.05, patient_sd=0.2, seeds=2, patients=(2, 2, 2, 2, 20))
    uneven.rows.to_csv(tmp_path / "results.csv", index=False)
    assert pilot_variances(tmp_path).patients == pytest.approx(5 / (4 / 2 + 1 / 20))


def test_power_stated_deviation_overrides_pilot():
    assert Variances(1.0, 2.0).with_overrides(patient=5.0) == Variances(1.0, 5.0)


def test_reliability_table_equals_hand_computed():
    """A's variance of seeds is 0.045, of patients 0.065; B's 0.005 and 0.0025."""
    (row,) = reliability_table({"mine": two_sites()}).frame.to_dict("records")
    errors = np.sqrt([0.045 / 2 + 0.065, 0.005 / 2 + 0.0025])
    assert row["Mean standard error [points]"] == pytest.approx(100 * errors.mean())
    assert row["MDD [points]"] == pytest.approx(
        100
        * np.hypot(detectable_standard_errors(2) * np.sqrt(0.02 / 2), detectable_standard_errors(5) * np.sqrt(0.0925)),
        rel=1e-4,
    )
