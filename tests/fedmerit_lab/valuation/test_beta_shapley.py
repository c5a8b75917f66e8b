"""Beta-Shapley values: their weights, and known special cases."""

import math

import pytest

from fedmerit.contract import semivalues
from fedmerit.errors import BadInput
from fedmerit_evaluation.valuation.estimators import parse
from fedmerit_lab.valuation.estimators import BetaShapleyValues, beta_weights


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("parameters", [(4, 1), (0.5, 16), (1, 1)])
def test_beta_weights_of_all_coalitions_sum_to_one(n, parameters):
    weights = beta_weights(*parameters)(n)
    assert sum(math.comb(n - 1, s) * w for s, w in enumerate(weights)) == pytest.approx(1, abs=1e-13)


def test_beta_weights_include_shapley_and_nearly_banzhaf():
    assert beta_weights(1, 1)(5) == pytest.approx(semivalues.shapley_weights(5), abs=1e-14)
    assert beta_weights(1e6, 1e6)(5) == pytest.approx(semivalues.banzhaf_weights(5), abs=1e-5)


def test_beta_weights_of_four_and_one_are_those_of_gamma_functions():
    expected = [math.gamma(s + 1) * math.gamma(7 - s) for s in range(4)]
    total = sum(math.comb(3, s) * one for s, one in enumerate(expected))
    assert beta_weights(4, 1)(4) == pytest.approx([one / total for one in expected])


def test_estimator_is_found_by_name_and_rejects_parameters_that_are_not_positive():
    assert parse("beta_shapley:alpha=2") == BetaShapleyValues(alpha=2.0)
    with pytest.raises(BadInput, match="beta=0"):
        parse("beta_shapley:beta=0")
