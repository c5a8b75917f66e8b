"""Flags, suspicions and ROC on made-up tables, in which who rides is known."""

import math

import numpy as np
import pandas as pd
import pytest
from given_away import GIVEN_AWAY, RIDER, SITES, flagged, flags, table
from scipy.stats import mannwhitneyu

from fedmerit_evaluation.freeriders.detectors import DETECTORS, auroc, roc, suspicions
from fedmerit_evaluation.results.views import Results


def test_flags_before_a_round_do_not_count():
    results = table(start=1, **GIVEN_AWAY["small norm"])
    assert flagged(results, {"run": 3}) == {("small norm", RIDER): 3}
    assert flagged(results, {"another": 3}) == {("small norm", RIDER): 1}


def test_the_free_rider_value_flags_one_that_leads_five_times():
    results = table(rounds=1, start=0, after=0.2)  # 0.18
    fedce = DETECTORS[0]
    worse = (results.rows["site"] == "C") & (results.rows["split"] == "validation_trained")
    for growth, alone in ((0.05, True), (0.07, False)):  # 0.03 and 0.042: a fifth of 0.18 is 0.036
        both = Results(results.rows.copy())
        both.rows.loc[worse, "value"] = np.array([0.4, 0.6, math.nan]) - growth
        assert flags(fedce, both).loc[("run", 0), [RIDER, "C"]].to_list() == [alone, False]


def test_runs_are_kept_apart():
    results = Results(pd.concat([table("one", start=1, **GIVEN_AWAY["opposed"]).rows, table("other").rows]))
    found = suspicions(results, {"one": 5, "other": 0})
    assert found.index.names == ["run", "site"]
    assert list(found.columns) == [detector.name for detector in DETECTORS]
    assert found.loc[("one", RIDER), "opposed"] == pytest.approx(-(0.6 + 5 * -0.01) / 6)
    assert found.loc[("other", RIDER), "opposed"] == pytest.approx(-0.6)
    assert len(found) == 2 * len(SITES)


# ROC


def test_auroc_counts_pairs():
    riders, honest = [0.9, 0.5, 0.5], [0.5, 0.1]
    pairs = [1.0 if rider > other else 0.5 if rider == other else 0.0 for rider in riders for other in honest]
    assert auroc(riders, honest) == pytest.approx(sum(pairs) / len(pairs))
    assert auroc(riders, honest) == mannwhitneyu(riders, honest).statistic / 6
    assert auroc([2.0], [1.0]) == 1
    assert auroc([math.inf], [1.0, math.nan]) == 1
    assert auroc([1.0, 1.0], [1.0]) == 0.5
    assert math.isnan(auroc([math.nan], [1.0]))
    assert math.isnan(auroc([1.0], []))


def test_the_area_under_the_roc_is_the_auroc():
    random = np.random.default_rng(0)
    riders, honest = random.normal(1, 1, 40).round(1), random.normal(0, 1, 60).round(1)
    curve = roc(riders, honest)
    assert curve[["false_positives", "riders_flagged"]].iloc[0].to_list() == [0, 0]
    assert curve[["false_positives", "riders_flagged"]].iloc[-1].to_list() == [1, 1]
    area = np.trapezoid(curve["riders_flagged"], curve["false_positives"])
    assert area == pytest.approx(auroc(riders, honest))
