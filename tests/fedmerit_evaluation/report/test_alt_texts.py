"""What figures show, in words, from small tables."""

import numpy as np
import pandas as pd
import pytest

from fedmerit_evaluation.report import alt_texts
from fedmerit_evaluation.report.overlays import Overlay

MINUS = "\N{MINUS SIGN}"


def test_dice_of_each_method_from_its_lowest_site_to_its_highest() -> None:
    dice = pd.DataFrame({"Alder": [0.7, 0.82], "Birch": [0.6, np.nan], "Cedar": [0.65, 0.9]}, ["fedavg", "fedce"])
    assert alt_texts.describe_dice(dice) == (
        "A row per hospital. Mean test Dice: fedavg from 60.0 % (Birch) to 70.0 % (Alder); "
        "fedce from 82.0 % (Alder) to 90.0 % (Cedar)."
    )


def test_beyond_six_methods_the_rest_is_counted() -> None:
    dice = pd.Series([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], list("abcdefgh"))
    assert alt_texts.describe_own_figure("Birch", dice) == (
        "A row per method. Mean test Dice of Birch: a 10.0 %, b 20.0 %, c 30.0 %, d 40.0 %, e 50.0 %, f 60.0 %; "
        "and 2 more."
    )
    assert "more" not in alt_texts.describe_own_figure("Birch", dice[:6])


def test_methods_without_numbers_are_not_counted_among_the_rest() -> None:
    dice = pd.DataFrame({"Alder": [*[0.5] * 6, np.nan]}, list("abcdefg"))
    assert "more" not in alt_texts.describe_dice(dice)
    panels = {"empty": pd.DataFrame({"Alder": [np.nan]}), "fedce": pd.DataFrame({"Alder": [0.5]})}
    assert "empty" not in alt_texts.describe_panels(panels, "Weight")


def test_gains_whose_interval_leaves_out_0_are_named() -> None:
    index = pd.MultiIndex.from_product([["fedce", "fedavg"], ["Alder", "Birch", "Cedar"]])
    gains = pd.DataFrame(
        {
            "mean": [0.03, -0.02, 0.01, 0.01, np.nan, 0.02],
            "low": [0.01, -0.04, -0.01, -0.01, np.nan, -0.02],
            "high": [0.05, -0.01, 0.03, 0.03, np.nan, 0.06],
        },
        index,
    )
    assert alt_texts.describe_gains(gains) == (
        f"A row per hospital, a line at 0. Gains: fedce from {MINUS}2.0 points (Birch) to +3.0 points (Alder), the "
        "CI above 0 at Alder, below 0 at Birch; fedavg from +1.0 points (Alder) to +2.0 points (Cedar), no "
        "CI above 0."
    )


def test_shares_by_size() -> None:
    shares = pd.DataFrame({"mean": [0.2, 0.5, 0.3]}, ["Alder", "Birch", "Cedar"])
    assert alt_texts.describe_shares(shares, 1 / 3) == (
        "A row per hospital, the largest share on top: Birch 50.0 %, Cedar 30.0 %, Alder 20.0 %. "
        "A dashed line is at the equal share, 33.3 %."
    )


def test_lines_from_the_first_known_round_to_the_last() -> None:
    lines = pd.DataFrame({"fedavg": [np.nan, 0.25, 0.5, 0.75], "cgsv": np.nan, "fedce": [0.1234, 0.4, 0.8, np.nan]})
    assert alt_texts.describe_lines(lines, "Validation Dice") == (
        "Validation Dice, from the first round to the last: fedavg from 0.25 to 0.75; fedce from 0.123 to 0.8."
    )


def test_panels_of_the_last_round_of_each_site() -> None:
    lines = pd.DataFrame({"Alder": [0.5, 0.2], "Birch": [0.3, np.nan], "Cedar": [0.2, 0.4]})
    assert alt_texts.describe_panels({"fedce": lines}, "Weight") == (
        "Weight, a panel per method, a named line per hospital. fedce: in the last round highest at Cedar (0.4), "
        "lowest at Alder (0.2)."
    )


def test_who_is_highest_by_the_truth_and_by_each_method() -> None:
    values = pd.Series({"Alder": 1.0, "Birch": -0.5, "Cedar": 2.0})
    said = {"fedce": pd.Series({"Alder": 0.4, "Birch": 0.1, "Cedar": 0.3})}
    assert alt_texts.describe_agreement(values, said, "Shapley") == (
        "A panel per method, a named dot per hospital. By Shapley value Cedar is highest and Birch lowest; "
        "fedce puts Alder highest and Birch lowest."
    )


@pytest.mark.parametrize(("which", "words"), [("only", "only case"), ("median", "median case")])
def test_overlays_by_site_method_and_case(which: str, words: str) -> None:
    mask = np.zeros((1, 2, 2), bool)
    shown = [Overlay("Birch", which, "fedce", 0.875, np.zeros((2, 2), np.float32), mask, mask)]
    assert alt_texts.describe_overlays(shown) == (
        f"Images with the outlines of reference (yellow) and prediction (pink). Dice: Birch, fedce, {words} 87.5 %."
    )
