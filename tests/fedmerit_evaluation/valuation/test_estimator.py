"""The contract of an estimator of values, and whether all that there are keep it."""

from dataclasses import FrozenInstanceError, fields

import pytest

from fedmerit.observers import OBSERVERS
from fedmerit_evaluation.valuation.estimator import Estimator
from fedmerit_evaluation.valuation.estimators import estimators


def test_an_estimator_without_values_says_so():
    with pytest.raises(NotImplementedError):
        Estimator().values(None)


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
