"""Reliability and power on made-up trainings whose noise is known."""

import numpy as np
import pandas as pd
import pytest
from games_reference import subsets

from evaluation.results.views import Results
from evaluation.truth.power import Variances, pilot_variances, power_table, smallest_difference, variances_of
from evaluation.truth.regression import least_squares_values
from evaluation.truth.reliability import UTILITIES, by_weights, correlation, resample, stepped_up
from evaluation.truth.semivalues import leave_one_out_weights, shapley_weights, text_of
from evaluation.truth.truth_tables import tables_of_truth
from fedmerit.errors import BadInput
from fedmerit.records.results import COLUMNS, Row

SITES = ["A", "B", "C", "D", "E"]
SHAPLEY, LOO = by_weights(shapley_weights), by_weights(leave_one_out_weights)


def trained(worth, *, seed_sd=0.0, patient_sd=0.0, seeds=3, patients=10, draw=0, leave_out=(), hd95=False):
    """An additive game: the Dice of a coalition's model is its worth on every case, each value off as seeds and cases
    are: what a site adds differs by seed with ``seed_sd``, and by case with ``patient_sd``.
    """
    random = np.random.default_rng(draw)
    names = sorted(worth)
    of_cases = random.normal(0, patient_sd, (len(names), len(names), patients))  # of a site, where tested, case
    rows = []
    for seed in range(seeds):
        of_seed = random.normal(0, seed_sd, len(names))
        for one in subsets(names):
            if not one or one in leave_out:
                continue
            chosen = [names.index(name) for name in one]
            for tester, name in enumerate(names):
                for case in range(patients):
                    dice = sum(worth[names[site]] + of_seed[site] + of_cases[site, tester, case] for site in chosen)
                    head = ("x", "fedavg", seed, 1, name)
                    columns = {"split": "testing", "case": f"{case:03d}", "label": "organ", "coalition": text_of(one)}
                    rows.append(Row(*head, "dice", dice, **columns))
                    if hd95:
                        rows.append(Row(*head, "hd95", 30 - 20 * dice, **columns))
    return Results(pd.DataFrame([vars(row) for row in rows])[COLUMNS])


WORTH = dict(zip(SITES, (0.05, 0.10, 0.15, 0.20, 0.25), strict=True))


def test_values_without_noise_are_the_worth_and_wholly_reliable():
    one = resample(trained(WORTH), SHAPLEY, draws=50)
    np.testing.assert_allclose(one.mean, list(WORTH.values()))
    assert one.values.shape == (3, 5, 51)
    assert (one.reliability, one.ceiling, one.ceiling_of_a_seed) == pytest.approx((1, 1, 1))
    assert (one.between_seeds, one.between_patients) == pytest.approx((1, 1))
    np.testing.assert_allclose(one.standard_errors, 0, atol=1e-12)


@pytest.mark.slow
def test_reliability_is_the_share_of_variance_that_is_the_sites_own():
    """Var of worth 0.00625 (ddof 1), of seeds' means 0.1² / 4; the ceiling is its root, and what truth reaches."""
    found, reached, of_a_seed, reached_by_seed = [], [], [], []
    worth = np.array(list(WORTH.values()))
    for draw in range(40):
        one = resample(trained(WORTH, seed_sd=0.1, seeds=4, patients=1, draw=draw), LOO, 2)
        found.append(one.reliability)
        reached.append(correlation(one.mean, worth))
        of_a_seed.append(one.ceiling_of_a_seed)
        reached_by_seed.append(np.mean([correlation(values, worth) for values in one.values[..., 0]]))
    expected = 0.00625 / (0.00625 + 0.1**2 / 4)
    assert np.mean(found) == pytest.approx(expected, abs=0.12)
    assert np.mean(reached) == pytest.approx(np.sqrt(expected), abs=0.06)
    expected = 0.00625 / (0.00625 + 0.1**2)
    assert np.mean(np.square(of_a_seed)) == pytest.approx(expected, abs=0.06)  # its root would be biased by noise
    assert np.mean(reached_by_seed) == pytest.approx(np.sqrt(expected), abs=0.06)


def test_of_one_seed_both_ceilings_are_one():
    one = resample(trained(WORTH, patient_sd=0.3, seeds=1), SHAPLEY, draws=50)
    assert 0 < one.ceiling < 1
    assert one.ceiling_of_a_seed == pytest.approx(one.ceiling)


def test_standard_errors_add_seeds_and_patients():
    errors = [
        resample(
            trained(WORTH, seed_sd=0.06, patient_sd=0.3, seeds=4, patients=20, draw=draw), LOO, 200
        ).standard_errors
        for draw in range(5)
    ]
    expected = np.sqrt(0.06**2 / 4 + 0.3**2 / 100)  # 100 cases in all
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(expected, rel=0.2)


def test_halves_of_patients_are_disjoint_and_agree_by_chance_alone_where_all_is_noise():
    agreement = [
        resample(trained(dict.fromkeys(SITES, 0.1), patient_sd=0.3, draw=draw), LOO, 2).between_patients
        for draw in range(10)
    ]
    assert np.mean(agreement) < 0.5


def test_spearman_brown():
    assert stepped_up(np.array([0.5]), 2) == pytest.approx(2 / 3)
    assert np.isnan(stepped_up(np.array([np.nan]), 2))


def test_one_patient_a_site_and_one_seed_leave_halves_unknown():
    one = resample(trained(WORTH, seeds=1, patients=1), SHAPLEY, draws=3)
    assert np.isnan(one.between_seeds)
    assert np.isnan(one.between_patients)
    np.testing.assert_allclose(one.mean, list(WORTH.values()))


def test_what_is_missing_is_told():
    lacking = trained(WORTH, leave_out=[frozenset("AB")])
    with pytest.raises(BadInput, match=r"seed 2: coalition A\+B: no utility"):
        resample(lacking, SHAPLEY)
    assert resample(lacking, LOO, 2).seeds == [0, 1, 2]
    with pytest.raises(BadInput, match="no hd95 of trained coalitions"):
        resample(lacking, LOO, 2, UTILITIES["mean HD95"])
    few = trained(dict(list(WORTH.items())[:3]), seeds=1, patients=2, leave_out=[*map(frozenset, ("A", "B", "AB"))])
    with pytest.raises(BadInput, match=r"regression: no seed has all .* 3 coalitions .* do not tell the sites apart"):
        tables_of_truth(few, {"regression": least_squares_values})


def test_the_worst_hospital_and_distances_are_utilities_too():
    results = trained(WORTH, hd95=True)
    np.testing.assert_allclose(resample(results, LOO, 2, UTILITIES["worst hospital's Dice"]).mean, list(WORTH.values()))
    distance = resample(results, LOO, 2, UTILITIES["mean HD95"])
    np.testing.assert_allclose(distance.mean, 20 * np.array(list(WORTH.values())))


def test_tables_say_how_good_the_truth_is_and_who_gains():
    tables = {table.name: table for table in tables_of_truth(trained(WORTH, hd95=True))}
    assert set(tables) == {
        "reliability",
        "shapley-ranks",
        "leave-one-out-ranks",
        "shapley-by-utility",
        "shapley-by-site",
    }
    assert tables["reliability"].frame["Truth"].tolist() == ["Shapley", "leave-one-out"]
    gains = tables["shapley-by-site"].frame.set_index("Site")
    np.testing.assert_allclose(gains.to_numpy(), 100 * np.repeat(np.array([list(WORTH.values())]).T, 5, axis=1))
    assert list(tables["shapley-by-utility"].frame) == ["Site", "mean Dice [points]", "worst hospital's Dice [points]",
                                                        "mean HD95 [mm or px]"]  # fmt: skip
    assert "of one seed alone" in tables_of_truth(trained(WORTH, seeds=1))[0].caption


# Power


def test_the_smallest_difference_is_found_in_four_of_five_studies():
    variance = 0.02**2
    difference = smallest_difference(variance)
    random = np.random.default_rng(0).normal(difference, 0.02, 20_000)
    assert (np.abs(random) > 1.96 * 0.02).mean() == pytest.approx(0.8, abs=0.01)


def test_variances_of_a_pilot_are_those_put_in(tmp_path):
    found = [
        variances_of(
            resample(trained(WORTH, seed_sd=0.05, patient_sd=0.2, seeds=6, patients=8, draw=draw), LOO, 200), 8
        )
        for draw in range(6)
    ]
    assert np.mean([one.seed for one in found]) == pytest.approx(2 * 0.05**2, rel=0.35)
    assert np.mean([one.patient for one in found]) == pytest.approx(2 * 0.2**2 / 5, rel=0.35)  # 5 sites tested
    trained(WORTH, seed_sd=0.05, seeds=2).rows.to_csv(tmp_path / "results.csv", index=False)
    assert pilot_variances(tmp_path).seed > 0
    trained(WORTH, seeds=1).rows.to_csv(tmp_path / "results.csv", index=False)
    with pytest.raises(BadInput, match="has one seed alone"):
        pilot_variances(tmp_path)


def test_the_table_by_hand():
    table = power_table(Variances(0.03**2, 0.08**2).with_stated(round=0.06**2), [4, 16], [1, 9], rounds=36)
    by_hand = [[2.8016 * np.sqrt(9 / s + 64 / p + 36 / 36 / s) for s in (1, 9)] for p in (4, 16)]
    np.testing.assert_allclose(table.frame.iloc[:, 1:].to_numpy(), by_hand, rtol=1e-4)


def test_the_command(fedmerit):
    told = fedmerit("power", "--seed-sd", 3, "--patient-sd", 8, "--patients", "4", "--seeds", "1")
    assert told.exit_code == 0
    assert "14.0" in told.output  # 2.8 times the root of 9 + 16
    for wrong in ("4,", "0", "-2,4", "4;8"):  # as everywhere
        refused = fedmerit("power", "--seed-sd", 3, "--patient-sd", 8, "--patients", wrong)
        assert f"--patients {wrong}: expected whole numbers from 1 on, such as 10,30" in refused.stderr
    refused = fedmerit("power", "--seed-sd", 3)
    assert (refused.exit_code, "give --pilot DIR, or state --seed-sd and --patient-sd" in refused.output) == (2, True)
