"""Methods against a baseline over folds, against numbers computed explicitly."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t
from simulated_replication import fold_p
from statsmodels.stats.multitest import multipletests

from fedmerit.errors import BadInput
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.benchmarks.contrasts import MEAN, WORST, contrast, contrast_tables, outcomes_by_fold

METHODS, FOLDS, SITES = ("fedavg", "fedce", "afl"), 5, ("a", "b")


def made(folds=FOLDS, lacking=None):
    """Results of two patients a fold and site, by fold; ``lacking``: a method, fold and site without any."""
    random = np.random.default_rng(1)
    rows = [
        ("r", method, 0, 9, site, "", "testing", f"{fold}{case}", "organ", "dice", random.uniform(), str(fold), "")
        for method in METHODS
        for fold in range(folds)
        for site in SITES
        for case in range(2)
        if (method, fold, site) != lacking
    ]
    names = ["run", "method", "seed", "round", "site", "coalition", "split", "case", "label", "quantity", "value"]
    return Results(pd.DataFrame(rows, columns=[*names, "fold", "patient"]))


def explicitly(results, outcome):
    """Methods x folds."""
    means = results.rows.groupby(["method", "fold", "site"])["value"].mean().unstack("site")
    return (means.mean(axis=1) if outcome == MEAN else means.min(axis=1)).unstack("fold")


@pytest.mark.parametrize("outcome", [MEAN, WORST])
def test_outcomes_by_fold_are_those_computed_explicitly(outcome):
    results = made()
    found = outcomes_by_fold(results)[outcome]
    assert found.loc[list(METHODS)].to_numpy() == pytest.approx(
        explicitly(results, outcome).loc[list(METHODS)].to_numpy()
    )


def test_contrast_counts_shared_training_patients_and_the_whole_family():
    results = made()
    found, p = contrast(outcomes_by_fold(results), "fedavg"), []
    assert [(one.outcome, one.method) for one in found] == [(o, m) for o in (MEAN, WORST) for m in ("afl", "fedce")]
    for one in found:
        table = explicitly(results, one.outcome)
        d = (table.loc[one.method] - table.loc["fedavg"]).to_numpy()
        error = d.std(ddof=1) * np.sqrt(1 / 5 + 1 / 3)
        assert one.difference.mean == pytest.approx(d.mean())
        assert one.difference.high == pytest.approx(d.mean() + t.ppf(0.975, 4) * error)
        assert one.detectable > one.difference.high - one.difference.mean
        p.append(2 * t.sf(abs(d.mean()) / error, 4))
        assert fold_p(d) == pytest.approx(p[-1])  # of the simulated power
    assert [one.difference.p for one in found] == pytest.approx(multipletests(p, method="holm")[1])


def test_contrast_of_a_method_without_every_fold_is_left_out():
    found = contrast(outcomes_by_fold(made(lacking=("afl", 2, "b"))), "fedavg")
    assert {one.method for one in found} == {"fedce"}


def test_contrasts_refuse_a_baseline_or_folds_that_are_missing():
    with pytest.raises(BadInput, match="--baseline krum"):
        contrast_tables(made(), "krum")
    with pytest.raises(BadInput, match="2 fold"):
        contrast_tables(made(folds=2), "fedavg")


def test_contrast_of_some_of_the_prepared_folds_counts_what_these_share():
    results = made(folds=3)
    differences = [np.diff(explicitly(results, MEAN).loc[["fedavg", "afl"]].to_numpy(), axis=0)[0]]
    found = contrast(outcomes_by_fold(results), "fedavg", prepared=5)[0].difference
    error = differences[0].std(ddof=1) * np.sqrt(1 / 3 + 1 / 3)
    assert found.high - found.mean == pytest.approx(t.ppf(0.975, 2) * error)
    assert "3 of 5 folds" in contrast_tables(results, "fedavg", prepared=5)[0].caption
