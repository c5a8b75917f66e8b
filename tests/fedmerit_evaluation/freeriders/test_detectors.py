"""Detectors on made-up tables, in which who rides is known."""

import math

import numpy as np
import pytest
from given_away import GIVEN_AWAY, RIDER, SITES, flagged, flags, table

from fedmerit.errors import BadInput
from fedmerit_evaluation.freeriders import detectors
from fedmerit_evaluation.freeriders.detectors import DETECTORS, highest_site, of_rounds, suspicions
from fedmerit_evaluation.results.views import Results


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


def test_the_free_rider_value_is_the_cosine_times_the_growth_of_the_error():
    values = detectors.free_rider_values(table(start=2, after=0.2, cosine_to_mean=0.5))
    assert list(values.columns) == list(SITES)
    assert values.loc[("run", 0), RIDER] == pytest.approx(0.6 * (0.5 - 0.6))
    assert values.loc[("run", 2), RIDER] == pytest.approx(0.5 * (0.5 - 0.2))
    running = detectors.accumulated(values)[RIDER].to_list()
    assert running == pytest.approx(np.cumsum([-0.06, -0.06, 0.15, 0.15, 0.15, 0.15]) / np.arange(1, 7))
    assert highest_site(detectors.accumulated(values)).to_list() == ["", "", *[RIDER] * 4]


def test_the_free_rider_value_of_the_oracle_sign():
    """Worse after training and along with the others: positive. Better, or against them: negative."""
    results = table(rounds=1, start=0, after=0.2, cosine_to_mean=-0.5)
    values = detectors.free_rider_values(results).loc[("run", 0)]
    assert values[RIDER] < 0
    assert (values.drop(RIDER) < 0).all()


def test_results_without_trained_models_say_what_to_do():
    rows = table().rows
    with pytest.raises(BadInput, match="--set validate_trained=true"):
        detectors.free_rider_values(Results(rows[rows["split"] != "validation_trained"]))


def test_a_site_that_was_absent_is_unknown_in_that_round():
    rows = table(start=0, **GIVEN_AWAY["small norm"]).rows
    results = Results(rows[~((rows["site"] == RIDER) & (rows["round"] == 3) & (rows["quantity"] != "weight"))])
    assert math.isnan(of_rounds(results, "norm").loc[("run", 3), RIDER])
    assert not flags(DETECTORS[1], results).loc[("run", 3), RIDER]


def test_a_method_without_contributions_has_no_rank():
    rows = table().rows
    results = Results(rows[rows["quantity"] != "contribution"])
    assert suspicions(results, {"run": 5})["low contribution"].isna().all()
    assert flagged(results) == {}
