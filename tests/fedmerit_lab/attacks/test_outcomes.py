"""Tables and curves of a study of attacks, of synthetic results."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.outcomes import WITHIN, outcomes, tables


def test_outcomes_are_relative_to_the_honest_run_of_the_seed(study):
    found = outcomes(*study).set_index(["Attack", "Site", "Seed"])
    assert len(found) == 6
    zero = found.loc[("zero", "B", 1)]
    assert (zero["Weight"], zero["Weight, honest"]) == pytest.approx((0.2, 0.3))
    assert (zero["Others"], zero["Own"]) == pytest.approx((-0.1, -0.1))
    assert zero["Highest value"] == 1
    assert zero["server"] == 1  # in the first round of the attack
    assert zero["free-rider value"] == 2  # the mean over rounds is below 0.03 before
    assert math.isnan(zero["training loss"])
    twice = found.loc[("duplicate", "A", 0)]
    assert (twice["Weight"], twice["Weight, honest"]) == pytest.approx((0.6, 0.5))
    assert twice["Others"] == pytest.approx(0)
    assert twice["training loss"] == 1
    assert math.isnan(twice["Reward"])


def test_of_folds_outcomes_are_relative_to_the_honest_run_of_the_fold(study):
    attacks, results = study
    rows = results.rows.assign(fold=results.rows["seed"].astype(str), seed=0)
    in_folds = [replace(one, seed=0, fold=one.seed) for one in attacks]
    found, expected = outcomes(in_folds, Results(rows)), outcomes(attacks, results)
    assert found["Fold"].tolist() == expected["Seed"].tolist()
    pd.testing.assert_frame_equal(found.drop(columns=["Seed", "Fold"]), expected.drop(columns="Seed"))


def test_changes_of_the_others_are_over_sites_tested_in_both_runs(study):
    """A had .9 in the honest run and has no Dice in the other; C lost a tenth."""
    attacks, results = study
    rows = results.rows
    tested = (rows["split"] == "testing") & (rows["quantity"] == "dice") & (rows["site"] == "A")
    rows.loc[tested & (rows["run"] == "honest_1"), "value"] = 0.9
    left = rows[~(tested & (rows["run"] == "zero_B_1"))]
    found = outcomes(attacks, Results(left)).set_index(["Attack", "Site", "Seed"])
    assert found.loc[("zero", "B", 1), "Others"] == pytest.approx(-0.1)


def test_the_table(study):
    (table,) = tables(*study)
    summary = table.frame.set_index("Attack")
    row = summary.loc["zero"]
    assert row["Runs"] == 4
    assert row[["Weight [%]", "Weight, honest [%]"]].to_list() == pytest.approx([20, 40])
    assert row["Others' Dice, change [points]"] == pytest.approx(-10)
    assert row[["Highest free-rider value [%]", "Flagged by any detector [%]"]].to_list() == [100, 100]
    assert row["Flagged by (after rounds)"] == "server (1), free-rider value (2)"
    assert summary.loc["duplicate", "Flagged by any detector [%]"] == 100  # without a highest value
    assert "Reward [%]" not in summary


def test_late_detections_do_not_count(study):
    attacks, results = study
    rows = results.rows
    rows.loc[(rows["quantity"] == "flagged") & (rows["round"] < 2 + WITHIN), "value"] = 0.0
    assert outcomes(attacks, results).set_index("Attack").loc["zero", "server"].isna().all()


def test_runs_without_their_honest_one_are_left_out(study):
    attacks, results = study
    found = outcomes(attacks, Results(results.rows[results.rows["run"] != "honest_1"]))
    assert set(found["Seed"]) == {0}
    assert tables(attacks, Results(results.rows[~results.rows["run"].str.startswith("honest")])) == []
