"""Estimators by their specs."""

import pytest

from fedmerit.errors import BadInput
from fedmerit_evaluation.valuation.estimator import DataSize
from fedmerit_evaluation.valuation.estimators import estimators, parse, parse_all
from fedmerit_evaluation.valuation.game_estimators import MultiRoundValues


def test_estimators_are_those_of_games_and_records():
    assert {"multi_round", "one_round", "leave_one_out_loss", "contribution", "data_size"} <= set(estimators())


def test_a_spec_is_a_name_and_parameters():
    assert parse("multi_round") == MultiRoundValues()
    assert parse("multi_round:voice=others:last=3") == MultiRoundValues(voice="others", last=3)
    last = MultiRoundValues(last=1)
    assert parse_all(["multi_round:last=1", "data_size"]) == {"multi_round:last=1": last, "data_size": DataSize()}


@pytest.mark.parametrize(
    "spec", ["shap", "multi_round:vote=all", "multi_round:voice=own", "multi_round:last=-1", "data_size:k=1"]
)
def test_what_is_no_estimator_is_refused(spec):
    with pytest.raises(BadInput, match="--estimators"):
        parse(spec)


def test_each_is_named_once_but_may_come_in_several_ways():
    assert len(parse_all(["multi_round", "multi_round:last=1"])) == 2
    with pytest.raises(BadInput, match=r"multi_round,data_size,multi_round: name each once"):
        parse_all(["multi_round", "data_size", "multi_round"])
