"""Detectors on made-up tables, in which who rides is known."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import mannwhitneyu

from evaluation.freeriders import detection, detectors
from evaluation.freeriders.detection import auroc, first_flags, named, roc, suspicions
from evaluation.freeriders.detectors import DETECTORS, of_rounds
from evaluation.results.views import Results
from fedmerit.errors import BadInput
from fedmerit.records.results import COLUMNS

SITES = ("A", "B", "C", "D")
HONEST = {
    "weight": 0.25,
    "norm": 2.0,
    "cosine_to_mean": 0.6,
    "cosine_to_previous": 0.2,
    "largest_pair_cosine": 0.3,
    "repeated": 0.0,
    "contribution": 0.25,
    "flagged": 0.0,
    "before": 0.5,
    "after": 0.6,
}
RIDER = "B"
# What gives each detector's rider away, and whose else it is.
GIVEN_AWAY = {
    "free-rider value": {"after": 0.2},
    "small norm": {"norm": 0.19},
    "large norm": {"norm": 6.1},
    "previous step": {"cosine_to_previous": 0.87},
    "near duplicate": {"largest_pair_cosine": 0.87},
    "repeated": {"repeated": 1.0},
    "opposed": {"cosine_to_mean": -0.01},
    "low contribution": {"contribution": 0.05},
    "server": {"flagged": 1.0},
}


def flags(detector, results):
    return detection.flags(detector, detector.suspicion(results))


def table(run="run", rounds=6, start=2, **given_away) -> Results:
    """A run in which `RIDER` is given away from round ``start`` on."""
    rows = []
    for round in range(rounds):
        for site in SITES:
            values = HONEST | (given_away if site == RIDER and round >= start else {})
            for quantity, value in values.items():
                where = {"before": "validation", "after": "validation_trained"}.get(quantity, "")
                if where:
                    for case, add in (("000", -0.1), ("001", 0.1), ("002", math.nan)):
                        rows.append((run, round, site, where, case, "dice", value + add))
                else:
                    rows.append((run, round, site, "", "", quantity, value))
    frame = pd.DataFrame(rows, columns=["run", "round", "site", "split", "case", "quantity", "value"])
    return Results(frame.assign(method="fedavg", seed=0, coalition="", label="prostate")[COLUMNS])


def flagged(results, since=None):
    found = first_flags(results, since)
    return {(row.detector, row.site): row.round for row in found.itertuples()}


def test_nobody_is_flagged_where_all_are_honest():
    assert flagged(table()) == {}


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.name)
def test_each_detector_flags_its_rider_from_the_round_it_is_given_away(detector):
    results = table(start=0, **GIVEN_AWAY[detector.name])
    assert flagged(results) == {(detector.name, RIDER): 0}
    assert detector.what
    assert detector.source
    later = table(start=4, **GIVEN_AWAY[detector.name])
    at_once = detector.name not in ("free-rider value", "opposed", "low contribution")  # those are means over rounds
    assert flagged(later).get((detector.name, RIDER)) == (4 if at_once else None)


def test_every_detector_has_its_case():
    assert {detector.name for detector in DETECTORS} == GIVEN_AWAY.keys()


def test_flags_before_a_round_do_not_count():
    results = table(start=1, **GIVEN_AWAY["small norm"])
    assert flagged(results, {"run": 3}) == {("small norm", RIDER): 3}
    assert flagged(results, {"another": 3}) == {("small norm", RIDER): 1}


def test_the_free_rider_value_is_the_cosine_times_the_growth_of_the_error():
    values = detectors.free_rider_values(table(start=2, after=0.2, cosine_to_mean=0.5))
    assert list(values.columns) == list(SITES)
    assert values.loc[("run", 0), RIDER] == pytest.approx(0.6 * (0.5 - 0.6))
    assert values.loc[("run", 2), RIDER] == pytest.approx(0.5 * (0.5 - 0.2))
    running = detectors.accumulated(values)[RIDER].to_list()
    assert running == pytest.approx(np.cumsum([-0.06, -0.06, 0.15, 0.15, 0.15, 0.15]) / np.arange(1, 7))
    assert named(detectors.accumulated(values)).to_list() == ["", "", *[RIDER] * 4]


def test_the_free_rider_value_of_the_oracle_sign():
    """Worse after training and along with the others: positive. Better, or against them: negative."""
    results = table(rounds=1, start=0, after=0.2, cosine_to_mean=-0.5)
    values = detectors.free_rider_values(results).loc[("run", 0)]
    assert values[RIDER] < 0
    assert (values.drop(RIDER) < 0).all()


def test_the_free_rider_value_flags_one_that_leads_five_times():
    results = table(rounds=1, start=0, after=0.2)  # 0.18
    fedce = DETECTORS[0]
    worse = (results.rows["site"] == "C") & (results.rows["split"] == "validation_trained")
    for growth, alone in ((0.05, True), (0.07, False)):  # 0.03 and 0.042: a fifth of 0.18 is 0.036
        both = Results(results.rows.copy())
        both.rows.loc[worse, "value"] = np.array([0.4, 0.6, math.nan]) - growth
        assert flags(fedce, both).loc[("run", 0), [RIDER, "C"]].to_list() == [alone, False]


def test_results_without_trained_models_say_what_to_do():
    rows = table().rows
    with pytest.raises(BadInput, match="--set validate_trained=true"):
        detectors.free_rider_values(Results(rows[rows["split"] != "validation_trained"]))


def test_a_site_that_was_absent_is_unknown_in_that_round():
    rows = table(start=0, **GIVEN_AWAY["small norm"]).rows
    results = Results(rows[~((rows["site"] == RIDER) & (rows["round"] == 3) & (rows["quantity"] != "weight"))])
    assert math.isnan(of_rounds(results, "norm").loc[("run", 3), RIDER])
    assert not flags(DETECTORS[1], results).loc[("run", 3), RIDER]


def test_runs_are_kept_apart():
    results = Results(pd.concat([table("one", start=1, **GIVEN_AWAY["opposed"]).rows, table("other").rows]))
    found = suspicions(results, {"one": 5, "other": 0})
    assert found.index.names == ["run", "site"]
    assert list(found.columns) == [detector.name for detector in DETECTORS]
    assert found.loc[("one", RIDER), "opposed"] == pytest.approx(-(0.6 + 5 * -0.01) / 6)
    assert found.loc[("other", RIDER), "opposed"] == pytest.approx(-0.6)
    assert len(found) == 2 * len(SITES)


def test_a_method_without_contributions_has_no_rank():
    rows = table().rows
    results = Results(rows[rows["quantity"] != "contribution"])
    assert suspicions(results, {"run": 5})["low contribution"].isna().all()
    assert flagged(results) == {}


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
    assert curve[["honest_flagged", "riders_flagged"]].iloc[0].to_list() == [0, 0]
    assert curve[["honest_flagged", "riders_flagged"]].iloc[-1].to_list() == [1, 1]
    area = np.trapezoid(curve["riders_flagged"], curve["honest_flagged"])
    assert area == pytest.approx(auroc(riders, honest))
