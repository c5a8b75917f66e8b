"""Findings in words, from results made for them."""

import math

import pandas as pd
import pytest
from made_results import made_dice, made_results, made_rounds, made_row

from fedmerit_evaluation.report import summary
from fedmerit_evaluation.report.summary import Fact
from fedmerit_evaluation.statistics.inference import p_values


def test_who_gained_and_who_lost() -> None:
    results = made_dice({"standalone": (0.6, 0.6, 0.6), "a": (0.7, 0.5, 0.6), "b": (0.8, 0.55, 0.7)})
    said = summary.list_sentences(results)
    assert "Alder gained with 2 of 2 methods (2 significantly), compared with local training." in said
    assert any(
        text.startswith("Birch lost with 2 (2 significantly") and "most with a (\N{MINUS SIGN}10.0" in text
        for text in said
    )


def test_who_ties_is_named_together() -> None:
    tied = made_dice({"a": (0.8, 0.8, 0.6), "b": (0.8, 0.8, 0.6)}, noise=0.0)
    notes = {fact.name: fact.note for fact in summary.list_facts(tied)}
    assert notes["Highest mean Dice"] == notes["Highest worst-site Dice"] == "a and b"
    assert "highest at Alder and Birch (80.0 %)" in dict(summary.describe_each_method(tied))["a"]


def test_the_numbers_at_the_top_of_one_method() -> None:
    rounds = [
        *made_rounds("weight", {"fedce": [(0.2,), (0.5,), (0.3,)]}),
        made_row("fedce", 0, 0, "Cedar", "flagged", 1.0),
        made_row("fedce", 0, 0, "Alder", "flagged", 0.0),
        *(made_row("fedce", 0, number, "Birch", "rejected", 1.0) for number in range(12)),
    ]
    assert summary.list_facts(made_dice({"fedce": (0.7, 0.8, 0.9)}, noise=0.0, seeds=1, rounds=rounds)) == [
        Fact("Mean test Dice", "80.0 %", "mean over sites"),
        Fact("Worst-served site", "70.0 %", "Alder"),
        Fact("Spread over sites", "10.0", "points of Dice, standard deviation"),  # of 70, 80 and 90
        Fact("Largest weight", "50.0 %", "Birch; an equal share is 33.3 %"),
        Fact("Flagged sites", "1", "Cedar, rounds: 1"),
        Fact("Missing or rejected", "1", "Birch, rounds: 12"),
    ]


def test_of_several_methods_the_highest_and_the_most_even() -> None:
    found = {
        fact.name: fact for fact in summary.list_facts(made_dice({"a": (0.7, 0.8, 0.9), "b": (0.7, 0.7, 0.7)}, noise=0))
    }
    assert found["Highest mean Dice"] == Fact("Highest mean Dice", "80.0 %", "a")
    assert found["Highest worst-site Dice"].note == "a and b"
    assert found["Smallest spread"].value == "0.0"
    assert found["Smallest spread"].note == "points of Dice over sites, b, at a mean of 70.0 %"
    assert "Largest weight" not in found


def test_of_one_method_every_finding_is_a_sentence_of_its_own() -> None:
    weights = {"fedce": [(0.2, 0.4), (0.5, 0.5), (0.3, 0.1)]}
    said = {"fedce": [(1.0, 3.0), (2.0, 2.0), (-1.0, -1.0)]}
    rounds = [*made_rounds("weight", weights), *made_rounds("contribution", said)]
    results = made_dice({"fedce": (0.7, 0.8, 0.9)}, noise=0.0, seeds=2, rounds=rounds)
    assert summary.describe_each_method(results) == [
        ("", text)
        for text in (
            "The mean test Dice is 80.0 %, highest at Cedar (90.0 %) and lowest at Alder (70.0 %).",
            "The largest final weight is that of Birch, 50.0 %, and the smallest that of Cedar, 20.0 % "
            "(an equal share is 33.3 %).",
            "The largest estimated contribution is that of Alder and Birch, and the estimate is negative for Cedar.",
            "1 of 3 pairs of hospitals differ significantly by contribution.",
        )
    ]


def test_without_results_nobody_was_flagged() -> None:
    nothing = made_results([], [])
    assert [fact.name for fact in summary.list_facts(nothing)] == ["Flagged sites", "Missing or rejected"]
    assert summary.list_sentences(nothing) == ["The server flagged no hospital and rejected no reply."]
    assert summary.describe_each_method(nothing) == []


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (math.nan, math.nan), (-5.0, -5.0)])
def test_a_lead_without_an_interval_above_0_is_none(low: float, high: float) -> None:
    rows = [
        ("mean", "a", "", 80.0, 79.0, 81.0), ("mean", "b", "", 79.0, 78.0, 80.0), ("mean", "c", "", 60.0, 59.0, 61.0),
        ("difference", "a", "b", 1.0, low, high), ("difference", "a", "c", 20.0, 19.0, 21.0),
        ("difference", "b", "a", -1.0, -high, -low),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["statistic", "method", "of", "mean", "low", "high"])
    table["p"] = p_values(table["mean"], table["low"], table["high"], 3)
    assert summary._close(table.set_index(["statistic", "method", "of"])) == ("a", ["b"])
