"""The contract of an estimator of values, and whether all that there are keep it."""

from dataclasses import FrozenInstanceError, fields

import pytest

from evaluation.values.estimator import Estimator
from evaluation.values.estimators import estimators
from fedmerit.values.observers import OBSERVERS


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
