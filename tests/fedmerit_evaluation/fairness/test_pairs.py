"""Which vectors are compared, by which measures, and why a measure is undefined."""

import math

import numpy as np
import pandas as pd
import pytest
from made_results import made_results, made_rounds

from fedmerit.contract.semivalues import coefficients, shapley_weights
from fedmerit_evaluation.fairness import measures
from fedmerit_evaluation.fairness.measurement import (
    COSINE,
    DICE,
    DISTANCES,
    EUCLIDEAN,
    GAINS,
    LINEAR,
    RANKS,
    Compared,
    Key,
    Pair,
    collect_estimates,
)
from fedmerit_evaluation.ground_truth.ground_truths import Reference
from fedmerit_evaluation.statistics.resampling import SiteDice

SITES = ["A", "B"]
METHODS = {"standalone": "standalone", "fedce": "fedce"}


def _site_dice(**fractions):
    """Of one seed, by method; `_` in a name stands for what a name cannot hold."""
    methods = [name.replace("_", " ") for name in fractions]
    dice = np.array([list(fractions.values())])
    return SiteDice([0], methods, SITES, dice)


def test_pairs_without_ground_truth():
    said = {"fedce": {"mean weight": pd.DataFrame({"B": [0.6], "A": [0.4]}, index=[0])}}
    dice = _site_dice(standalone=(0.5, 0.6), fedce=(0.7, 0.9))
    found = list(Compared(METHODS, "standalone", said, []).pairs(dice))
    assert [(pair.table, pair.method, pair.estimate) for pair in found] == [
        ("dice", "standalone", ""),
        ("dice", "fedce", ""),
        ("performance", "fedce", ""),
        ("performance-ranks", "fedce", ""),
        ("gains", "fedce", ""),
        ("rewards", "fedce", "mean weight"),
    ]
    assert [pair.measures for pair in found] == [DICE, DICE, DISTANCES, RANKS, GAINS, LINEAR | RANKS]
    np.testing.assert_allclose(found[2].x, [[50, 60]])
    np.testing.assert_allclose(found[2].y, [[70, 90]])
    np.testing.assert_allclose(found[5].x, [[0.4, 0.6]])  # in the order of the sites


def test_pairs_without_standalone_have_no_gains():
    tables = {pair.table for pair in Compared({"fedce": "fedce"}, None, {}, []).pairs(_site_dice(fedce=(0.7, 0.9)))}
    assert tables == {"dice"}


def test_pairs_values_are_of_same_seed():
    """v(A) = 10, v(B) = 20, v(AB) = 50 points: Shapley values 20 and 30."""
    said = {"fedce": {"mean weight": pd.DataFrame({"A": [1.0], "B": [3.0]}, index=[0])}}
    reference = Reference("Shapley", {0: coefficients(SITES, shapley_weights)})
    dice = _site_dice(
        fedce=(0.7, 0.9), trained_by_A=(0.15, 0.05), trained_by_B=(0.2, 0.2), **{"trained_by_A+B": (0.4, 0.6)}
    )
    pairs = [pair for pair in Compared({"fedce": "fedce"}, None, said, [reference]).pairs(dice) if pair.table != "dice"]
    assert [(pair.table, pair.shared) for pair in pairs] == [
        ("shapley", False), ("shapley", True), ("shapley", False), ("shapley-ranks", False), ("rewards", False)
    ]  # fmt: skip
    np.testing.assert_allclose(pairs[0].x, [[20, 30]])
    assert pairs[0].names == ("Shapley value", "mean weight")
    ((key, distance),) = pairs[1].values()
    assert key == Key("shapley", "fedce", "mean weight", "euclidean")
    assert distance == pytest.approx(math.hypot(0.4 - 0.25, 0.6 - 0.75))  # of shares


def test_pairs_of_seed_without_ground_truth_are_nan():
    said = {"fedce": {"mean weight": pd.DataFrame({"A": [1.0], "B": [3.0]}, index=[0])}}
    compared = Compared(
        {"fedce": "fedce"}, None, said, [Reference("Shapley", {1: coefficients(SITES, shapley_weights)})]
    )
    (pair, *_) = [pair for pair in compared.pairs(_site_dice(fedce=(0.7, 0.9))) if pair.table == "shapley"]
    assert np.isnan(pair.x).all()
    assert pair.reason("pearson", 0) == "Shapley value is missing"


def test_pairs_explain_undefined_shares():
    x, y = np.array([[1.0, 2.0, 3.0]]), np.array([[1.0, -2.0, 0.5]])
    pair = Pair("t", "m", "e", x, y, ("value", "estimate"), EUCLIDEAN, shared=True)
    assert [math.isnan(value[0]) for _, value in pair.values()] == [True]
    assert pair.reason("euclidean", 0) == "estimate sums to 0 or less, so there are no shares"
    same = Pair("t", "m", "e", x, y, ("value", "estimate"), COSINE)
    assert same.reason("cosine", 0) == ""
    assert dict(same.values())[Key("t", "m", "e", "cosine")] == pytest.approx(measures.cosine(x, y))


def test_collect_estimates_by_method():
    images = made_rounds("num_samples", {name: [(10.0,), (30.0,), (60.0,)] for name in ("fedavg", "fedce", "cgsv")})
    weights = made_rounds("weight", {name: [(0.2,), (0.3,), (0.5,)] for name in ("fedavg", "fedce")})
    said = made_rounds("contribution", {"fedce": [(1.0,), (2.0,), (-1.0,)]})
    methods = {"fedavg": True, "fedce": False, "cgsv": False}
    found = collect_estimates(made_results([*images, *weights, *said], list(methods)), methods)
    assert {label: list(of) for label, of in found.items()} == {
        "fedavg": ["sample share"], "fedce": ["mean weight", "mean contribution"], "cgsv": []
    }  # fmt: skip
    assert found["fedavg"]["sample share"].loc[0].to_list() == pytest.approx([0.1, 0.3, 0.6])
    assert found["fedce"]["mean weight"].loc[0].to_list() == pytest.approx([0.2, 0.3, 0.5])
    assert found["fedce"]["mean contribution"].loc[0].to_list() == pytest.approx([1.0, 2.0, -1.0])
