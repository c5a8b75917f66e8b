"""Shares of contribution against those worked by hand, and estimates that are but shares of training images."""

from dataclasses import asdict
from math import isnan

import pandas as pd
import pytest
from made_results import SITES, made_results, made_rounds, made_row

from fedmerit.schema.results import COLUMNS, Row
from fedmerit_evaluation.report.contributions import (
    contribution_shares,
    count_share_seeds,
    image_shares,
    methods_by_image_count,
)
from fedmerit_evaluation.report.one_site_tables import redact_other_sites
from fedmerit_evaluation.results.runs import folds_as_seeds, pool_folds
from fedmerit_evaluation.results.views import Results


def test_shares_are_of_the_sum_of_each_seed_and_their_mean_over_seeds() -> None:
    said = made_rounds("contribution", {"fedce": [(1.0, 3.0), (2.0, 4.0), (1.0, 1.0)]})
    results = made_results(said, ["fedce"])
    (shares,) = contribution_shares(results).values()
    # seed 0: 1/4, 2/4, 1/4; seed 1: 3/8, 4/8, 1/8. 12.7 times 1/16 to either side are beyond what a share can be
    expected = {"Alder": (0.3125, 0, 1), "Birch": (0.5, 0.5, 0.5), "Cedar": (0.1875, 0, 1)}
    assert shares.keys() == expected.keys()
    for site, one in shares.items():
        assert (one.mean, one.low, one.high) == pytest.approx(expected[site], abs=0.02)
    assert count_share_seeds(results) == {"fedce": 2}


def test_one_seed_has_shares_without_an_interval() -> None:
    results = made_results(made_rounds("contribution", {"fedce": [(1.0,), (2.0,), (1.0,)]}), ["fedce"])
    shares = contribution_shares(results)["fedce"]
    assert shares["Birch"].mean == 0.5
    assert isnan(shares["Birch"].low)
    assert count_share_seeds(results) == {"fedce": 1}


def test_estimates_whose_shares_mean_nothing_are_left_out() -> None:
    said = {
        "negative": [(1.0, 1.0), (2.0, -3.0), (1.0, 1.0)],  # sums to less than 0 in the second seed
        "alike": [(1.0, 1.0), (1.0, 1.0), (1.0, 1.0)],
        "fine": [(1.0, 1.0), (2.0, 2.0), (-0.5, -0.5)],
    }
    results = made_results(made_rounds("contribution", said), list(said))
    assert {method: {site: one.mean for site, one in sites.items()} for method, sites in
            contribution_shares(results).items()} == {
        "fine": pytest.approx({"Alder": 0.4, "Birch": 0.8, "Cedar": -0.2})
    }  # fmt: skip
    assert contribution_shares(made_results([], [])) == {}


def test_multiples_of_the_numbers_of_images_are_no_estimate() -> None:
    methods = ("shares", "multiple", "expelled", "other")
    images = made_rounds("num_samples", {method: [(10.0,), (30.0,), (60.0,)] for method in methods})
    said = {
        "shares": [(0.1,), (0.3,), (0.6,)],
        "multiple": [(1.0,), (3.0,), (6.0,)],
        "expelled": [(0.0,), (1 / 3,), (2 / 3,)],  # the others share by images still
        "other": [(0.1,), (0.31,), (0.59,)],
    }
    results = made_results([*images, *made_rounds("contribution", said)], methods)
    assert methods_by_image_count(results) == ["shares", "multiple", "expelled"]
    assert methods_by_image_count(results, "weight") == []
    found = image_shares(results, "contribution")
    assert found.index.names == ["method", "seed", "round"]
    assert found.to_list() == [True, True, True, False]


def test_one_update_that_is_taken_is_no_share_of_images() -> None:
    """As by Krum; a round in which one hospital alone answered says nothing of how the others are made."""
    rounds = [(0.0, 1.0, 0.0), (1.0, 0.0, 0.0)]
    taken = [row for number, line in enumerate(rounds) for row in _in_round(number, "contribution", line)]
    images = [row for number in range(3) for row in _in_round(number, "num_samples", (10.0, 30.0, 60.0))]
    assert methods_by_image_count(made_results([*images, *taken], ["fedce"])) == []
    shared = _in_round(2, "contribution", (0.1, 0.3, 0.6))
    results = made_results([*images, *taken, *shared], ["fedce"])
    assert image_shares(results, "contribution").index.get_level_values("round").to_list() == [2]
    assert methods_by_image_count(results) == ["fedce"]


def test_a_single_other_round_makes_it_an_estimate() -> None:
    images = [row for number in range(2) for row in _in_round(number, "num_samples", (10.0, 30.0, 60.0))]
    rounds = [*_in_round(0, "weight", (0.1, 0.3, 0.6)), *_in_round(1, "weight", (0.2, 0.2, 0.6))]
    results = made_results([*images, *rounds], ["fedce"])
    assert image_shares(results, "weight").to_list() == [True, False]
    assert methods_by_image_count(results, "weight") == []


def _in_round(number: int, quantity: str, values: tuple[float, ...]) -> list[Row]:
    return [made_row("fedce", 0, number, site, quantity, value) for site, value in zip(SITES, values, strict=True)]


def test_shares_of_images_are_found_over_folds_whose_images_differ() -> None:
    """Two seeds of each of three folds: of means over folds the multiples are not the same."""
    images = {0: (10, 30, 60), 1: (20, 30, 50), 2: (40, 10, 50)}
    rows = pd.DataFrame(
        [
            asdict(Row("r", "fedavg", seed, number, site, quantity, value, fold=str(fold)))
            for fold, counts in images.items()
            for seed in range(2)
            for number in range(2)
            for site, count in zip("ABC", counts, strict=True)
            for quantity, value in (("num_samples", float(count)), ("contribution", count / 100), ("norm", 1.0 + fold))
        ],
        columns=COLUMNS,
    )
    results = Results(pool_folds(rows), folds_as_seeds(rows))
    assert methods_by_image_count(results) == ["fedavg"]
    left, reasons = redact_other_sites(results, 2)
    assert len(reasons) == 1
    for frame in (left.rows, left.folds):
        assert set(frame["quantity"]) == {"num_samples", "norm"}
