"""AUROC, F1, false positives and rewards of federations whose numbers are known."""

from dataclasses import replace

import pytest
from made_federations import NAN, federation, honest

from fedmerit_lab.benchmarks.detection_benchmark import (
    DetectorResult,
    attack_reward_table,
    detection_table,
    detector_results,
    false_positive_table,
    last_scored_round,
    mean_over_seeds,
)
from fedmerit_lab.detection.monitored_federation import MonitoredFederation


def test_a_federation_is_written_and_read():
    one = replace(federation(), weights=[0.3, NAN, 0.4, 0.0])
    again = MonitoredFederation.from_json(one.to_json())
    assert again.suspicion == one.suspicion
    assert str(again.weights) == str(one.weights)


def test_auroc_and_f1_of_one_federation():
    one = federation(suspicion=(0.1, 0.95, 0.3, 0.9))
    found = DetectorResult(one, "one", one.suspicion["one"], one.flagged["one"])
    assert found.auroc(0) == pytest.approx(2 / 3)
    assert found.f1(0) == pytest.approx(2 / 3)  # one of two flags is right
    assert found.is_detected(0) == 1
    late = replace(found, federation=replace(one, first=1))
    assert str(late.auroc(0)) == str(late.f1(0)) == "nan"
    assert last_scored_round(late.federation, 10) == 1
    assert found.false_positives() == {"A": False, "B": False, "C": True}


def test_the_tables_of_detectors():
    found = detector_results([honest(), federation(), federation(seed=1, suspicion=(0.95, 0.2, 0.3, 0.9))])
    table = detection_table(found, 2)
    row = table.frame.set_index("Detector").loc["one"]
    assert row["AUROC"] == pytest.approx((1 + 2 / 3) / 2)
    assert (row["Seeds"], row["Detected [%]"]) == (2, 100)
    assert table.low["AUROC"].notna().any()
    assert table.frame.set_index("Detector").loc["small norm", "AUROC"] == 1  # of the evidence
    flagged = false_positive_table(found).frame.set_index("Detector").loc["one"]
    assert flagged["Honest flagged, honest runs [%]"] == 0
    assert flagged["Honest outlier flagged, all runs [%]"] == 100


def test_the_gain_from_an_attack():
    row = attack_reward_table([honest(), federation()], 2).frame.iloc[0]
    assert row["Weight [points]"] == pytest.approx(-25)
    assert row["Reward [points]"] == pytest.approx(-100)
    assert row["Others' Dice [points]"] == pytest.approx(100 * (-0.02 + 0 - 0.02) / 3)
    assert (row["Detected [%]"], row["False positives"]) == (100, "0")


def test_a_site_split_in_two_has_the_weight_of_both():
    parts = replace(
        federation("a site split in two", attackers=("D-a", "D-b")),
        sites=["A", "B", "C", "D-a", "D-b"],
        verdicts=[[0.0] * 5] * 2,
        weights=[0.2, 0.2, 0.2, 0.2, 0.2],
        rewards=[1.0] * 5,
        dice=[0.82, 0.7, 0.62, 0.5, 0.5],
    )
    row = attack_reward_table([honest(), parts], 2).frame.iloc[0]
    assert row["Weight [points]"] == pytest.approx(15)
    assert (row["Detected [%]"], row["Others' Dice [points]"]) == (0, 0)


def test_one_seed_has_no_confidence_interval():
    assert str(mean_over_seeds([0.5, NAN])) == "(0.5, nan, nan)"
    mean, low, high = mean_over_seeds([0.2, 0.4, 0.6])
    assert mean == pytest.approx(0.4)
    assert 0 <= low < mean < high
    assert mean_over_seeds([0.8, 1.0])[2] == 1  # of two seeds 2.2 by Student
