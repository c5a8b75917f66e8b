"""What a study of free riders says of made-up results: its tables and curves."""

import math

import pytest

from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.outcomes import WITHIN, compare_with_honest, false_flags, outcomes, rocs, tables


def test_outcomes_are_against_the_honest_run_of_the_seed(study):
    told = outcomes(*study).set_index(["Behaviour", "Site", "Seed"])
    assert len(told) == 6
    zero = told.loc[("zero", "B", 1)]
    assert (zero["Weight"], zero["Weight, honest"]) == pytest.approx((0.2, 0.3))
    assert (zero["Others"], zero["Own"]) == pytest.approx((-0.1, -0.1))
    assert zero["Named"] == 1
    assert zero["small norm"] == 1  # in its first round that is not honest
    assert zero["free-rider value"] == 2  # the mean over rounds is below 0.03 in the one before
    assert math.isnan(zero["repeated"])
    twice = told.loc[("duplicate", "A", 0)]
    assert (twice["Weight"], twice["Weight, honest"]) == pytest.approx((0.6, 0.5))
    assert twice["Others"] == pytest.approx(0)
    assert twice["near duplicate"] == 1
    assert math.isnan(twice["Reward"])


def test_what_others_lose_is_over_the_sites_that_both_runs_tested(study):
    """Of A and C, of which A was .9 in the honest run and has no Dice in the other, C lost a tenth."""
    attacks, results = study
    rows = results.rows
    tested = (rows["split"] == "testing") & (rows["quantity"] == "dice") & (rows["site"] == "A")
    rows.loc[tested & (rows["run"] == "honest_1"), "value"] = 0.9
    left = rows[~(tested & (rows["run"] == "zero_B_1"))]
    told = outcomes(attacks, Results(left)).set_index(["Behaviour", "Site", "Seed"])
    assert told.loc[("zero", "B", 1), "Others"] == pytest.approx(-0.1)


def test_the_tables_say_what_paid_and_what_told(study):
    summary, flagged, auroc, honest = tables(*study)
    row = summary.frame.set_index("Behaviour").loc["zero"]
    assert row["Runs"] == 4
    assert row["Weight [%]"] == pytest.approx(20)
    assert row["Weight, honest [%]"] == pytest.approx(40)
    assert row["Others' Dice, change [points]"] == pytest.approx(-10)
    assert row["Highest free-rider value [%]"] == 100
    assert row["Flagged by any detector [%]"] == 100
    assert row["Flagged by (after rounds)"] == "small norm (1), free-rider value (2)"
    twice = summary.frame.set_index("Behaviour").loc["duplicate"]  # no highest value, and flagged all the same
    assert twice["Flagged by any detector [%]"] == 100
    assert "Reward [%]" not in summary.frame
    assert flagged.frame.set_index("Behaviour").loc["zero", "small norm [%]"] == 100
    assert flagged.frame.set_index("Behaviour").loc["duplicate", "small norm [%]"] == 0
    areas = auroc.frame.set_index("Behaviour")
    assert areas.loc["zero", "small norm"] == 1
    assert areas.loc["duplicate", "near duplicate"] == 1
    assert areas.loc["duplicate", "small norm"] == 0.5
    assert math.isnan(areas.loc["zero", "low contribution"])  # nothing recorded
    assert honest.frame["Sites"].to_list() == [6]
    assert (honest.frame.drop(columns=["Method", "Sites"]) == 0).all(axis=None)


def test_an_honest_site_that_is_flagged_is_counted(study):
    attacks, results = study
    rows = results.rows
    odd = (rows["run"] == "honest_0") & (rows["site"] == "C") & (rows["quantity"] == "norm")
    rows.loc[odd & (rows["round"] == 7), "value"] = 5.0
    counted = false_flags(attacks, results)
    assert counted["large norm [%]"].to_list() == pytest.approx([100 / 6])


def test_a_rider_that_is_told_too_late_is_not_told(study):
    attacks, results = study
    rows = results.rows
    rows.loc[(rows["quantity"] == "norm") & (rows["round"] < 2 + WITHIN), "value"] = 1.0
    assert outcomes(attacks, results).set_index("Behaviour").loc["zero", "small norm"].isna().all()


def test_runs_without_their_honest_one_wait(study):
    attacks, results = study
    told = outcomes(attacks, Results(results.rows[results.rows["run"] != "honest_1"]))
    assert set(told["Seed"]) == {0}
    assert tables(attacks, Results(results.rows[~results.rows["run"].str.startswith("honest")])) == []


def test_the_curves_hold_every_detector(study):
    curves = rocs(*study)
    one = curves[(curves["Behaviour"] == "zero") & (curves["Detector"] == "small norm")]
    assert one[["false_positives", "riders_flagged"]].to_numpy().tolist() == [[0, 0], [0, 1], [1, 1]]


def test_one_run_beside_its_honest_one(study):
    attacks, results = study
    table = compare_with_honest(attacks[1], attacks[0], results).frame.set_index("Site")
    assert table["Behaviour"].to_list() == ["zero", "honest", "honest"]
    assert table.loc["A", "Flagged by (after rounds)"] == "small norm (1), free-rider value (2)"
    assert table.loc["B", "Flagged by (after rounds)"] == ""
    assert table.loc["A", "Weight [%]"] == pytest.approx(20)
    assert table.loc["A", "Weight, honest run [%]"] == pytest.approx(50)
    assert table.loc["B", ["Dice [%]", "HD95 [mm]", "NSD at 2 mm [%]"]].to_list() == pytest.approx([70, 7, 35])
    assert table.loc["B", ["Dice, honest run [%]", "HD95, honest run [mm]"]].to_list() == pytest.approx([80, 8])
