"""The name of the score in what is shown: Dice, or the metric of the sites' script."""

import pytest

from fedmerit.schema.score_name import name_score, show_score_of, shown_score, with_score_name

SCRIPT = {"metric": "accuracy", "lowest": 0.0, "highest": 1.0, "better": "higher"}


def info(**script):
    return {"plan": {"script": {**SCRIPT, **script}}}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "Dice"),
        ({"plan": {}}, "Dice"),
        ({"plan": {"script": None}}, "Dice"),
        (info(metric="dice"), "Dice"),
        (info(), "accuracy"),
        (info(metric="val/AUC (%)", highest=100.0), "val/AUC (%) score"),
        (info(better="lower"), "accuracy score"),
        (info(metric=""), "score"),
        (info(metric="<b>bold</b>"), "score"),  # of a run.json that somebody wrote
        ({"plan": {"script": {}}}, "score"),
    ],
)
def test_the_score_has_the_name_of_the_scripts_metric(given, name):
    show_score_of(given)
    try:
        assert (name_score(given), shown_score()) == (name, name)
        text = 'Test Dice, Normalised surface Dice; <img src="data:image/png;base64,a+Dice+b">'
        assert with_score_name(text) == text.replace("Test Dice", f"Test {name}")
    finally:
        show_score_of({})
