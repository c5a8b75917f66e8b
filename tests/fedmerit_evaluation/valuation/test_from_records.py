"""Estimators of what every run records, on synthetic runs."""

import numpy as np
import pytest
from run_factory import make_run

from fedmerit.errors import BadInput
from fedmerit.schema.results import read_results
from fedmerit_evaluation.valuation.estimators import DataSize, OwnContribution
from fedmerit_evaluation.valuation.observed_run import ObservedRun

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
