"""Findings in words, from results made for them."""

import math

import pandas as pd
import pytest
from made_results import made_dice, made_results, made_row

from fedmerit_evaluation.report import summary
from fedmerit_evaluation.statistics.inference import p_values


def test_who_gained_and_who_lost() -> None:
    results = made_dice({"standalone": (0.6, 0.6, 0.6), "a": (0.7, 0.5, 0.6), "b": (0.8, 0.55, 0.7)})
    said = summary.list_sentences(results)
    assert "Alder gained with 2 of 2 methods (2 significantly), compared with local training." in said
    assert any(
        text.startswith("Birch lost with 2 (2 significantly") and "most with a (\N{MINUS SIGN}10.0" in text
        for text in said
    )


def test_who_was_flagged_in_any_round_is_named() -> None:
    rounds = [
        made_row("fedce", 0, 0, "Cedar", "flagged", 1.0),
        made_row("fedce", 0, 0, "Alder", "flagged", 0.0),
        *(made_row("fedce", 0, number, "Birch", "rejected", 1.0) for number in range(12)),
    ]
    (said,) = summary.list_sentences(made_results(rounds, ["fedce"]))
    assert said.startswith("Look at these first: Cedar flagged in at least one round; Birch with a reply")


def test_without_results_nobody_was_flagged() -> None:
    nothing = made_results([], [])
    assert summary.list_sentences(nothing) == ["The server flagged no hospital and rejected no reply."]


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (math.nan, math.nan), (-5.0, -5.0)])
def test_a_lead_without_an_interval_above_0_is_none(low: float, high: float) -> None:
    rows = [
        ("mean", "a", "", 80.0, 79.0, 81.0), ("mean", "b", "", 79.0, 78.0, 80.0), ("mean", "c", "", 60.0, 59.0, 61.0),
        ("difference", "a", "b", 1.0, low, high), ("difference", "a", "c", 20.0, 19.0, 21.0),
        ("difference", "b", "a", -1.0, -high, -low),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["statistic", "method", "of", "mean", "low", "high"])
    table["p"] = p_values(table["mean"], table["low"], table["high"], 3)
    best, leads = summary._leads(table.assign(p_equivalent=math.nan).set_index(["statistic", "method", "of"]))
    assert (best, [method for method, lead in leads.items() if lead.compare(0) < 1]) == ("a", ["b"])
