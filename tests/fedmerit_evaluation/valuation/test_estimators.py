"""The contract of an estimator of values, and whether all that there are keep it.

Estimators by their specs.
"""

from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
from run_factory import make_run

from fedmerit.contract.observers import OBSERVERS
from fedmerit.errors import BadInput
from fedmerit.schema.results import read_results
from fedmerit_evaluation.valuation.estimators import DataSize, OwnContribution, estimators, parse, parse_all
from fedmerit_evaluation.valuation.observed_run import ObservedRun


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


SITES = ("Alder", "Birch", "Cedar")


def made(folder, **changes):
    return ObservedRun(make_run(folder, sites=SITES, rounds=4, **changes), draws=50)


def contributions(run):
    """(T, n) as results.csv has them."""
    rows = read_results(run.path)
    return rows[rows["quantity"] == "contribution"].pivot(index="round", columns="site", values="value").to_numpy()


def test_contributions_are_the_means_of_rounds_as_often_as_they_were_drawn(tmp_path):
    run = made(tmp_path / "run")
    said, drawn = contributions(run), run.round_counts(4)
    values = OwnContribution().values(run)
    assert values.shape == (3, 51)
    np.testing.assert_allclose(values[:, 0], said.mean(axis=0))
    rounds = np.repeat(np.arange(4), drawn[:, 7].astype(int))  # those of one draw, some of them twice
    np.testing.assert_allclose(values[:, 7], said[rounds].mean(axis=0))


def test_a_round_without_a_contribution_counts_as_zero_and_a_site_without_any_is_unknown(tmp_path):
    run = made(tmp_path / "run")
    said = contributions(run)
    results, others = (tmp_path / "run" / "results.csv"), []
    for line in results.read_text().splitlines(keepends=True):
        gone = ",contribution," in line and (",Cedar," in line or ",0,Alder," in line)
        others += [] if gone else [line]
    results.write_text("".join(others))
    values = OwnContribution().values(run)
    np.testing.assert_allclose(values[:2, 0], [said[1:, 0].sum() / 4, said[:, 1].mean()])
    assert np.isnan(values[2]).all()
    assert np.isfinite(values[:2]).all()  # also where only round 0 was drawn


def test_of_a_method_without_contributions_nothing_is_said(tmp_path):
    run = made(tmp_path / "run", method="median")
    file = tmp_path / "run" / "results.csv"
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if "contribution" not in line))
    with pytest.raises(BadInput, match="its method median makes no estimate of contributions"):
        OwnContribution().values(run)


def test_sizes_are_training_images_in_every_draw(tmp_path):
    assert DataSize().values(made(tmp_path / "run")).tolist() == [[40] * 51, [50] * 51, [60] * 51]
