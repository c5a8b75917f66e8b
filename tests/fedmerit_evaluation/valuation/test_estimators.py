"""The contract of an estimator of values, and whether all that there are keep it.

Estimators by their specs.
"""

from dataclasses import FrozenInstanceError, fields

import pytest

from fedmerit.contract.observers import OBSERVERS
from fedmerit.errors import BadInput
from fedmerit_evaluation.valuation.estimators import estimators, parse, parse_all


@pytest.mark.parametrize("name", estimators())
def test_every_estimator_keeps_the_contract(name):
    """What it observes can be observed, in one line it says what it is, and its parameters stay."""
    kind = estimators()[name]
    assert kind.observes in {"", *OBSERVERS}
    assert kind.about
    assert "\n" not in kind.about
    one = kind()
    for parameter in fields(kind):
        with pytest.raises(FrozenInstanceError):
            setattr(one, parameter.name, None)


def test_everything_observed_has_an_estimator():
    assert {kind.observes for kind in estimators().values()} >= set(OBSERVERS)


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
